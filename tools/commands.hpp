// The subcommands of `dsalt` and their arguments, as command_line.cpp parses them. Each returns an exit code; errors
// are thrown as dsalt::Error and become one sentence and an exit code in main.cpp.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "exit_code.hpp"

namespace dsalt::tools {

/// Parses the command line and runs the subcommand it names.
int run_command_line(int argc, char** argv);

int show_backends();

/// Version, build features and detected instruction sets, several lines.
std::string version_text();

struct VerifyArguments {
  std::string backend;  // empty: DSALT_BACKEND, or auto
  std::vector<std::string> suites;
  std::string case_glob = "*";
  std::string text;
  std::string report, junit, json;  // paths; empty: not written
  bool quick = false;
  bool deterministic = false;
  bool list = false;
  int threads = 0;
  std::string command;  // the command line as typed, for the report
};
int verify(const VerifyArguments& arguments);

struct GoldenArguments {
  std::string backend;
  std::string input, output;
  std::string case_glob = "*";
  int threads = 0;
  std::string command;
};
int golden_generate(const GoldenArguments& arguments);
int golden_check(const GoldenArguments& arguments);
int golden_run(const GoldenArguments& arguments);
int golden_show(const GoldenArguments& arguments);

struct AttentionMapArguments {
  std::string backend;
  std::string text, string;  // a file, or the text itself
  std::string output;
  std::string policy = "causal";
  std::int64_t length = 80;
  std::int64_t head = 0;
  std::int64_t row = -1;  // -1: the last one
  std::int64_t chunk = 16, landmarks = 4;
  double n_min = 3, n_max = 24;
  int threads = 0;
};
int attention_map(const AttentionMapArguments& arguments);

struct BenchArguments {
  std::vector<std::string> backends;     // empty: DSALT_BACKEND, or auto
  std::vector<std::string> operations;   // names or shell patterns; empty: all (with scaling: attention)
  std::vector<std::string> dtypes;       // empty: f32
  std::vector<std::string> shapes;       // numbers or written out; empty: see bench.cpp
  std::vector<std::string> windows;      // kinds; empty: the shape's own
  std::vector<std::int64_t> page_sizes;  // of paged caches beside those in one piece
  std::int64_t chunk = 128;              // 0: one landmark list for all rows
  double min_time = 0.5, max_time = 3;   // seconds per row and per call
  bool scaling = false, list = false, deterministic = false;
  std::string json, report;          // paths; empty: not written
  std::vector<std::string> compare;  // two result files, or none
  int threads = 0;
  std::string command;
};
int bench(const BenchArguments& arguments);

}  // namespace dsalt::tools
