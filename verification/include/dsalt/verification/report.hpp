// Results as a table for people, JUnit XML for CI, JSON for programs, and one self-contained HTML page with pictures.
#pragma once

#include <string>
#include <vector>

#include "dsalt/verification/suites.hpp"

namespace dsalt::verification {

struct ReportHeader {
  std::string backend;  // name() and description() of what ran
  std::string description;
  std::string command;         // the command line that reproduces the run
  std::string text_file{};     // of suite "text", for the commands that rerun one of its cases
  bool deterministic = false;  // BackendOptions::deterministic, for these commands
};

DSALT_API std::string to_table(const std::vector<Result>& results, const ReportHeader& header);
DSALT_API std::string to_junit(const std::vector<Result>& results, const ReportHeader& header);
DSALT_API std::string to_json(const std::vector<Result>& results, const ReportHeader& header);
DSALT_API std::string to_html(const std::vector<Result>& results, const ReportHeader& header);

}  // namespace dsalt::verification
