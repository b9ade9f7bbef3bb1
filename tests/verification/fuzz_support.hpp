// Reading a suspicious file in a child with little memory and time: it must end with a verdict, not with a signal.
#pragma once

#include <sys/resource.h>
#include <sys/wait.h>

#include "case_support.hpp"

namespace fuzz_support {

using namespace case_support;

enum class Verdict { valid, refused, crashed };

/// Opens the file, reads, checks and describes every case, in a child that may take `megabytes` more address space and
/// `seconds` of time. Everything but success, IoError and InvalidArgument is a crash.
inline Verdict judge(const std::string& path, [[maybe_unused]] std::uint64_t megabytes = 1024, unsigned seconds = 60) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child < 0) throw std::runtime_error("fork failed");
  if (child == 0) {
#ifndef __SANITIZE_ADDRESS__
    unsigned long long pages = 0;
    if (std::FILE* statm = std::fopen("/proc/self/statm", "r")) {
      if (std::fscanf(statm, "%llu", &pages) != 1) pages = 0;
      std::fclose(statm);
    }
    const rlim_t cap = pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + (megabytes << 20);
    const rlimit limit = {cap, cap};
    ::setrlimit(RLIMIT_AS, &limit);
#endif
    ::alarm(seconds);
    int code = 0;
    try {
      const CaseReader reader(path, {std::uint64_t{64} << 20});
      for (const std::string& name : reader.names()) {
        try {
          check_schema(reader.read(name));
        } catch (const IoError&) {
          code = 1;
        } catch (const InvalidArgument&) {
          code = 1;
        }
      }
    } catch (const IoError&) {
      code = 1;
    } catch (...) {
      code = 2;
    }
    ::_exit(code);
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) > 1) return Verdict::crashed;
  return WEXITSTATUS(status) == 0 ? Verdict::valid : Verdict::refused;
}

}  // namespace fuzz_support
