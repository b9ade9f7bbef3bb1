# Comparison, tolerances, conditions, suites, planted faults, reports.
dsalt_test(verification_compare
  SOURCES compare_comparator.cpp compare_selection.cpp condition_by_hand.cpp condition_rounding.cpp
  LIBRARIES dsalt::verification)
dsalt_test(verification_suites
  SOURCES suites_on_backends.cpp suites_selection.cpp
  LIBRARIES dsalt::verification)
dsalt_test(verification_planted INTERNAL
  SOURCES planted_attention.cpp planted_memory.cpp planted_promises.cpp
  LIBRARIES dsalt::verification)
find_package(nlohmann_json 3.11 REQUIRED)
dsalt_test(verification_reports
  SOURCES report_formats.cpp
  LIBRARIES dsalt::verification nlohmann_json::nlohmann_json)
