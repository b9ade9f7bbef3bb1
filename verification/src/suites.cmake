# Comparison, tolerances, conditions, suites, reports.
target_sources(dsalt_verification PRIVATE
  src/compare.cpp
  src/compare_selection.cpp
  src/condition.cpp
  src/condition/adamw.cpp
  src/condition/arrays.cpp
  src/condition/attention.cpp
  src/condition/call_recorder.cpp
  src/condition/cross_entropy.cpp
  src/condition/energies.cpp
  src/condition/merge.cpp
  src/condition/rmsnorm.cpp
  src/condition/rope.cpp
  src/condition/select_landmarks.cpp
  src/condition/selection.cpp
  src/condition/swiglu.cpp
  src/condition/window_sizes.cpp
  src/forwarding_backend.cpp
  src/report/histogram.cpp
  src/report/html.cpp
  src/report/json.cpp
  src/report/junit.cpp
  src/report/report.cpp
  src/report/table.cpp
  src/report/xml.cpp
  src/run_suites.cpp
  src/suites/causality.cpp
  src/suites/determinism.cpp
  src/suites/determinism_rows.cpp
  src/suites/determinism_rows_attention.cpp
  src/suites/determinism_rows_pieces.cpp
  src/suites/determinism_rows_prefill.cpp
  src/suites/determinism_strides.cpp
  src/suites/equivalence.cpp
  src/suites/finite_difference.cpp
  src/suites/gradient_cases.cpp
  src/suites/gradients.cpp
  src/suites/guarded_backend.cpp
  src/suites/guards.cpp
  src/suites/identities.cpp
  src/suites/identities_attention.cpp
  src/suites/identities_pieces.cpp
  src/suites/stability.cpp
  src/suites/suite.cpp
  src/suites/suite_cases.cpp
  src/tolerance.cpp)

# Only report/json.cpp uses it: headers, nothing to link, nothing that consumers need.
find_package(nlohmann_json 3.11 REQUIRED)
target_include_directories(dsalt_verification SYSTEM PRIVATE
  $<TARGET_PROPERTY:nlohmann_json::nlohmann_json,INTERFACE_INCLUDE_DIRECTORIES>)
