#include "output_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "dsalt/errors.hpp"

namespace dsalt::tools {
namespace {

[[noreturn]] void fail(const std::string& path, const char* what) {
  throw IoError("output file " + path + ": " + what + ": " + std::strerror(errno));
}

/// A new file in the same folder, and its name.
int make_aside(const std::string& path, std::string& aside) {
  aside = path + ".XXXXXX";
  const int descriptor = mkstemp(aside.data());
  if (descriptor < 0) fail(path, "cannot be created");
  return descriptor;
}

bool write_all(int descriptor, std::string_view content) {
  while (!content.empty()) {
    const ssize_t written = ::write(descriptor, content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    content.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

/// The mode that an ordinary new file would get: mkstemp makes private ones.
mode_t ordinary_mode() {
  const mode_t mask = umask(0);
  umask(mask);
  return 0666 & ~mask;
}

}  // namespace

OutputFile::OutputFile(std::string path) : path_(std::move(path)) {
  if (!wanted()) return;
  struct stat status {};
  if (stat(path_.c_str(), &status) == 0) {
    if (S_ISDIR(status.st_mode)) {
      errno = EISDIR;
      fail(path_, "cannot be written");
    }
    in_place_ = !S_ISREG(status.st_mode);
  }
  if (in_place_) return;
  std::string aside;
  close(make_aside(path_, aside));
  unlink(aside.c_str());
}

void OutputFile::write(std::string_view content) const {
  if (!wanted()) return;
  std::string aside = path_;
  const int descriptor = in_place_ ? open(path_.c_str(), O_WRONLY) : make_aside(path_, aside);
  if (descriptor < 0) fail(path_, "cannot be opened");
  const auto abandon = [&](const char* what) {
    const int error = errno;
    close(descriptor);
    if (!in_place_) unlink(aside.c_str());
    errno = error;
    fail(path_, what);
  };
  if (!write_all(descriptor, content)) abandon("cannot be written");
  if (in_place_) {
    close(descriptor);
    return;
  }
  if (fchmod(descriptor, ordinary_mode()) != 0) abandon("cannot get its mode");
  if (fsync(descriptor) != 0) abandon("cannot be flushed");
  close(descriptor);
  if (rename(aside.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    unlink(aside.c_str());
    errno = error;
    fail(path_, "cannot be replaced");
  }
}

}  // namespace dsalt::tools
