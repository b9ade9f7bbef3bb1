# Comparison, tolerances, conditions, suites, planted faults, reports.
dsalt_test(verification_compare
  SOURCES compare_comparator.cpp compare_selection.cpp condition_by_hand.cpp condition_rounding.cpp
  LIBRARIES dsalt::verification)
dsalt_test(verification_suites
  SOURCES suites_on_backends.cpp suites_selection.cpp
  LIBRARIES dsalt::verification)
dsalt_test(verification_planted INTERNAL
  SOURCES planted_attention.cpp planted_memory.cpp planted_pages.cpp planted_promises.cpp
  LIBRARIES dsalt::verification)
dsalt_test(verification_device INTERNAL
  SOURCES device_backends.cpp
  LIBRARIES dsalt::verification)

# The stand-in device as a module, for tests of the command and of scripts.
add_library(test_fake_device MODULE fake_device_module.cpp)
target_link_libraries(test_fake_device PRIVATE dsalt::dsalt dsalt::verification)
set_target_properties(test_fake_device PROPERTIES PREFIX "" OUTPUT_NAME libdsalt_cuda
                      LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/fake_device)
dsalt_configure(test_fake_device)

find_package(nlohmann_json 3.11 REQUIRED)
dsalt_test(verification_reports
  SOURCES report_formats.cpp
  LIBRARIES dsalt::verification nlohmann_json::nlohmann_json)
