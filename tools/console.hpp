// Talking to the user: results on standard output, progress and notes on standard error.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "dsalt/registry.hpp"

namespace dsalt::tools {

/// Writes to standard output. A reader that went away (broken pipe) is not an error: the command goes on and its exit
/// code still tells the outcome. Any other failure is an IoError.
void print(std::string_view text);

/// One line on standard error, prefixed "dsalt: ".
void note(std::string_view text);

/// Shows how far a long run is: nothing for two seconds; then on a terminal one line that updates itself, elsewhere a
/// plain line about every five seconds. A thread of its own keeps the clock going during a long case.
class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void update(std::string_view what, std::size_t done, std::size_t total);
  /// Takes the updating line away; nothing is shown afterwards.
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// make_backend whose BackendUnavailable message names the backend: "backend cuda is unavailable: <reason>".
/// Says on standard error what "auto" chose.
std::unique_ptr<Backend> open_backend(const std::string& name, const BackendOptions& options);

/// The command line, quoted so that a shell reads it back.
std::string quoted_command(int argc, char** argv);

}  // namespace dsalt::tools
