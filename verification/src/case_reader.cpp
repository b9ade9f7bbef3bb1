// Reading case files; contract in case_file.hpp.
//
// Releases of the HDF5 library crash, loop or exhaust memory on some damaged metadata (a few in ten thousand single
// byte flips). Nothing in the calling process can prevent that, so a child process with limits on memory and processor
// time does the parsing and sends the case back; when it dies, that is an IoError, and the next read starts another.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>

#include "case_parser.hpp"
#include "channel.hpp"
#include "dsalt/errors.hpp"

namespace dsalt::verification {
namespace {

constexpr std::uint64_t working_memory = std::uint64_t{256} << 20;  // of HDF5 itself, beside one case
constexpr int processor_seconds = 4;                                // per request, and one more per 16 MiB of the file
constexpr int patience_milliseconds = 600'000;                      // a child that neither works nor dies

enum : std::uint64_t { reply_good = 0, reply_fault = 1 };

/// Address space in use now: what limits must be added to.
std::uint64_t address_space() {
  unsigned long long pages = 0;
  if (std::FILE* statistics = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(statistics, "%llu", &pages) != 1) pages = 0;
    std::fclose(statistics);
  }
  return pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

void lower_limit(int resource, std::uint64_t value) {
  rlimit limit = {};
  if (::getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0) return;
  limit.rlim_cur = std::min<rlim_t>(value, limit.rlim_max);
  limit.rlim_max = limit.rlim_cur;
  ::setrlimit(static_cast<__rlimit_resource_t>(resource), &limit);
}

/// Deaths of the child are answers, not events: no handler of the parent, no core file, no message.
void prepare_child(const CaseFileLimits& limits) {
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGPROF, SIGINT, SIGTERM})
    ::signal(signal, SIG_DFL);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  lower_limit(RLIMIT_CORE, 0);
  // The C library and sanitizers announce a corrupt heap on the error output before they end the process.
  const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (nowhere >= 0) ::dup2(nowhere, STDERR_FILENO);
  const std::uint64_t used = address_space();
  if (used > 0) lower_limit(RLIMIT_AS, used + limits.max_bytes_per_case + working_memory);
}

/// Seconds of processor time for one request, after which SIGPROF ends the child.
void start_clock(const std::string& path) {
  struct stat status = {};
  ::stat(path.c_str(), &status);
  itimerval timer = {};
  timer.it_value.tv_sec = processor_seconds + static_cast<time_t>(status.st_size >> 24);
  ::setitimer(ITIMER_PROF, &timer, nullptr);
}

/// Runs `request`, which sends its own answer, and sends a fault as text instead when there is one.
template <class Request>
bool answer(Channel& channel, const std::string& path, const Request& request) {
  std::string fault;
  try {
    request();
    return true;
  } catch (const Error& error) {
    fault = error.what();
  } catch (const std::bad_alloc&) {
    fault = path + ": reading needs more memory than the limit per case allows";
  }
  channel.send_number(reply_fault);
  channel.send_text(fault);
  return false;
}

/// The child: opens the file, then answers requests for cases by their index until the other end closes.
void serve(Channel& channel, const std::string& path, const CaseFileLimits& limits) {
  const QuietHdf5 quiet;
  std::unique_ptr<CaseParser> parser;
  start_clock(path);
  const bool opened = answer(channel, path, [&] {
    parser = std::make_unique<CaseParser>(path, limits);
    channel.send_number(reply_good);
    channel.send_text(parser->generator());
    channel.send_number(parser->names().size());
    for (const std::string& name : parser->names()) channel.send_text(name);
  });
  while (opened) {
    const std::string name = channel.receive_text();
    start_clock(path);
    answer(channel, path, [&] {
      const Case c = parser->read(name);  // whole before the first byte is sent
      channel.send_number(reply_good);
      channel.send_case(c);
    });
  }
}

/// A running child and the line to it.
class ParserProcess {
 public:
  ParserProcess(const std::string& path, const CaseFileLimits& limits) {
    int ends[2] = {-1, -1};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
      throw IoError(path + ": cannot make a channel for its parser: " + std::strerror(errno));
    Channel ours(ends[0]), theirs(ends[1]);
    child_ = ::fork();
    if (child_ < 0) throw IoError(path + ": cannot start its parser: " + std::strerror(errno));
    if (child_ == 0) {
      ::close(ends[0]);
      try {
        prepare_child(limits);
        serve(theirs, path, limits);
      } catch (...) {  // the other end is gone
      }
      ::_exit(0);
    }
    channel_ = std::move(ours);
    channel_.set_patience(patience_milliseconds);
  }

  ~ParserProcess() {
    if (child_ > 0) end();
  }
  ParserProcess(const ParserProcess&) = delete;
  ParserProcess& operator=(const ParserProcess&) = delete;

  Channel& channel() { return channel_; }

  /// Ends the child and says how it ended when that was not our doing.
  std::string end() {
    channel_ = Channel();
    // One that died by itself keeps its own status; the signal then goes nowhere.
    int status = 0;
    pid_t ended = ::waitpid(child_, &status, WNOHANG);
    if (ended == 0) {
      ::kill(child_, SIGKILL);
      do ended = ::waitpid(child_, &status, 0);
      while (ended < 0 && errno == EINTR);
    }
    child_ = -1;
    if (ended <= 0 || !WIFSIGNALED(status)) return "its parser ended early";
    const int signal = WTERMSIG(status);
    if (signal == SIGKILL) return "its parser was killed or did not answer";
    if (signal == SIGPROF) return "the HDF5 library did not finish with it";
    return std::string("the HDF5 library crashed on it (") + ::strsignal(signal) + ")";
  }

 private:
  pid_t child_ = -1;
  Channel channel_;
};

}  // namespace

struct CaseReader::State {
  std::string path, generator;
  CaseFileLimits limits;
  std::vector<std::string> names;  // sorted
  std::unique_ptr<ParserProcess> process;

  /// Waits for an answer about `object`; a fault, or the death of the child, is an IoError.
  template <class Receive>
  auto ask(const std::string& object, const Receive& receive) {
    std::string fault;
    try {
      if (process->channel().receive_number() == reply_good) return receive(process->channel());
      fault = process->channel().receive_text();
    } catch (const ChannelBroken& broken) {
      fault = path + ": " + object + ": " + process->end() + "; it is damaged";
      process.reset();
    }
    throw IoError(fault);
  }

  void start() {
    process = std::make_unique<ParserProcess>(path, limits);
    std::vector<std::string> found;
    generator = ask("/", [&](Channel& channel) {
      std::string text = channel.receive_text();
      for (std::uint64_t count = channel.receive_number(); count > 0; --count) found.push_back(channel.receive_text());
      return text;
    });
    std::sort(found.begin(), found.end());
    names = std::move(found);
  }
};

CaseReader::CaseReader(const std::string& path, const CaseFileLimits& limits) : state_(std::make_unique<State>()) {
  state_->path = path;
  state_->limits = limits;
  state_->start();
}

CaseReader::~CaseReader() = default;
CaseReader::CaseReader(CaseReader&&) noexcept = default;
CaseReader& CaseReader::operator=(CaseReader&&) noexcept = default;

const std::string& CaseReader::generator() const { return state_->generator; }
const std::vector<std::string>& CaseReader::names() const { return state_->names; }

Case CaseReader::read(const std::string& name) const {
  const std::string object = "/cases/" + name;
  const auto known = [&] { return std::binary_search(state_->names.begin(), state_->names.end(), name); };
  if (!known()) throw IoError(state_->path + ": " + object + ": no such case");
  if (!state_->process) state_->start();
  if (!known()) throw IoError(state_->path + ": " + object + ": the file was replaced by one without this case");
  try {
    state_->process->channel().send_text(name);
  } catch (const ChannelBroken&) {
    state_->process.reset();
    throw IoError(state_->path + ": " + object + ": its parser is gone");
  }
  return state_->ask(object, [&](Channel& channel) { return channel.receive_case(state_->limits.max_bytes_per_case); });
}

}  // namespace dsalt::verification
