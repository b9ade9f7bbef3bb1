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
# The suites once more, on the stand-in device: a test of its own, so that sanitizers meet them once.
set(all_suites device_backends/every_suite_passes)
set_property(TEST verification_device APPEND PROPERTY ENVIRONMENT "BOOST_TEST_RUN_FILTERS=!${all_suites}")
add_test(NAME verification_device_suites COMMAND test_verification_device --report_level=short --run_test=${all_suites})
set_tests_properties(verification_device_suites PROPERTIES LABELS suites TIMEOUT 900)
set_tests_properties(verification_suites PROPERTIES COST 100)  # begins first: it takes longest

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
