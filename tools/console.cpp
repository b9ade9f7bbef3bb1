#include "console.hpp"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

#include "dsalt/errors.hpp"

namespace dsalt::tools {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds quiet_start(2000), terminal_period(200), plain_period(5000);

/// All bytes to a descriptor; errno of the failure, or 0.
int write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(descriptor, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

std::string cut(std::string_view text, std::size_t width) {
  return std::string(text.size() <= width ? text : text.substr(0, width));
}

}  // namespace

void print(std::string_view text) {
  static bool reader_gone = false;
  if (reader_gone) return;
  const int error = write_all(STDOUT_FILENO, text);
  if (error == EPIPE)
    reader_gone = true;
  else if (error != 0)
    throw IoError(std::string("standard output: ") + std::strerror(error));
}

void note(std::string_view text) { write_all(STDERR_FILENO, "dsalt: " + std::string(text) + "\n"); }

struct ProgressLine::State {
  bool terminal = isatty(STDERR_FILENO) == 1;
  Clock::time_point start = Clock::now();
  std::mutex mutex;
  std::condition_variable wake;
  std::string what;
  std::size_t done = 0, total = 0;
  bool stop = false, shown = false;
  std::thread ticker;

  void draw() {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - start).count();
    std::string line =
        "[" + std::to_string(done) + "/" + std::to_string(total) + "] " + std::to_string(seconds) + " s  " + what;
    line = terminal ? "\r\033[K" + cut(line, 110) : "dsalt: " + line + "\n";
    write_all(STDERR_FILENO, line);
    shown = true;
  }

  void tick() {
    std::unique_lock lock(mutex);
    auto next = start + (terminal ? quiet_start : plain_period);
    while (!wake.wait_until(lock, next, [this] { return stop; })) {
      if (!what.empty()) draw();
      next = Clock::now() + (terminal ? terminal_period : plain_period);
    }
    if (terminal && shown) write_all(STDERR_FILENO, "\r\033[K");
  }
};

ProgressLine::ProgressLine() : state_(std::make_unique<State>()) {}

ProgressLine::~ProgressLine() { finish(); }

void ProgressLine::update(std::string_view what, std::size_t done, std::size_t total) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->what = what;
    state_->done = done;
    state_->total = total;
  }
  // Not before the first update: by then a case file's parser has been forked, and a fork beside a thread that is just
  // starting may find the allocator's lock held (AddressSanitizer's allocator is not prepared for fork).
  if (!state_->ticker.joinable()) state_->ticker = std::thread([state = state_.get()] { state->tick(); });
}

void ProgressLine::finish() {
  if (!state_->ticker.joinable()) return;
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->wake.notify_one();
  state_->ticker.join();
}

std::unique_ptr<Backend> open_backend(const std::string& name, const BackendOptions& options) {
  const char* variable = std::getenv("DSALT_BACKEND");
  const bool from_variable = name.empty() && variable && *variable;
  const std::string wanted = from_variable ? variable : name.empty() ? "auto" : name;
  try {
    auto backend = make_backend(wanted, options);
    if (wanted == "auto") note("backend auto is " + std::string(backend->name()) + " (" + backend->description() + ")");
    return backend;
  } catch (const BackendUnavailable& error) {
    std::string reason = error.what();
    for (const std::string& prefix : {"backend " + wanted + ": ", wanted + ": "})
      if (reason.starts_with(prefix)) reason.erase(0, prefix.size());
    throw BackendUnavailable("backend " + wanted + (from_variable ? " (from DSALT_BACKEND)" : "") +
                             " is unavailable: " + reason);
  }
}

std::string quoted_command(int argc, char** argv) {
  std::string command;
  for (int n = 0; n < argc; ++n) {
    const std::string_view word = n == 0 ? std::string_view("dsalt") : std::string_view(argv[n]);
    if (n > 0) command += ' ';
    const bool plain = !word.empty() && word.find_first_not_of(
                                            "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                            "0123456789_-+=./:,@%") == std::string_view::npos;
    if (plain) {
      command += word;
      continue;
    }
    command += '\'';
    for (const char c : word) command += c == '\'' ? std::string("'\\''") : std::string(1, c);
    command += '\'';
  }
  return command;
}

}  // namespace dsalt::tools
