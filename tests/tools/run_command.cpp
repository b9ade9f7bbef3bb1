#include "run_command.hpp"

#include <unistd.h>

#include <cctype>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <vector>

namespace {

struct Folder {
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("dsalt-tools-" + std::to_string(static_cast<long>(getpid())));
  Folder() { std::filesystem::create_directories(path); }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
};

bool is_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == ':' || c == '.';
}

}  // namespace

std::filesystem::path scratch(const std::string& name) {
  static const Folder folder;
  return folder.path / name;
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path.string());
  std::ostringstream content;
  content << file.rdbuf();
  return content.str();
}

void write_file(const std::filesystem::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

Outcome run_dsalt(const std::string& arguments, const std::string& environment, const std::string& after) {
  const auto out = scratch("out"), err = scratch("err"), code = scratch("code");
  std::filesystem::remove(code);
  const std::string command = "{ { env -u DSALT_BACKEND " + environment + " '" DSALT_COMMAND "' " + arguments +
                              "; echo $? >'" + code.string() + "'; } " + after + "; } >'" + out.string() + "' 2>'" +
                              err.string() + "' </dev/null";
  if (std::system(command.c_str()) == -1) throw std::runtime_error("cannot start a shell");
  Outcome outcome;
  outcome.code = std::stoi(read_file(code));
  outcome.out = read_file(out);
  outcome.err = read_file(err);
  return outcome;
}

std::string xml_fault(const std::string& text) {
  std::vector<std::string> open;
  std::size_t roots = 0, at = 0;
  const auto fault = [&](const std::string& what) { return what + " at byte " + std::to_string(at); };
  while (at < text.size()) {
    if (text[at] == '&') {
      const std::size_t end = text.find(';', at);
      if (end == std::string::npos || end - at > 8 || end == at + 1) return fault("bare &");
      at = end + 1;
      continue;
    }
    if (text[at] == '>') return fault("bare >");
    if (text[at] != '<') {
      if (open.empty() && !std::isspace(static_cast<unsigned char>(text[at]))) return fault("text outside the root");
      const auto byte = static_cast<unsigned char>(text[at]);
      if (byte < 0x20 && !std::isspace(byte)) return fault("control character");
      ++at;
      continue;
    }
    if (text.compare(at, 4, "<!--") == 0) {
      at = text.find("-->", at);
      if (at == std::string::npos) return "unfinished comment";
      at += 3;
      continue;
    }
    if (text.compare(at, 2, "<?") == 0) {
      if (at != 0) return fault("processing instruction inside");
      at = text.find("?>", at);
      if (at == std::string::npos) return "unfinished prolog";
      at += 2;
      continue;
    }
    const bool closing = text.compare(at, 2, "</") == 0;
    std::size_t n = at + (closing ? 2 : 1);
    const std::size_t name_begin = n;
    while (n < text.size() && is_name(text[n])) ++n;
    const std::string name = text.substr(name_begin, n - name_begin);
    if (name.empty()) return fault("bare <");
    while (n < text.size() && text[n] != '>' && !(text[n] == '/' && n + 1 < text.size() && text[n + 1] == '>')) {
      if (std::isspace(static_cast<unsigned char>(text[n]))) {
        ++n;
        continue;
      }
      const std::size_t attribute = n;
      while (n < text.size() && is_name(text[n])) ++n;
      if (n == attribute || closing || text.compare(n, 2, "=\"") != 0) return fault("bad attribute in <" + name);
      const std::size_t end = text.find('"', n + 2);
      if (end == std::string::npos || text.substr(n + 2, end - n - 2).find('<') != std::string::npos)
        return fault("bad attribute value in <" + name);
      n = end + 1;
    }
    if (n >= text.size()) return fault("unfinished <" + name);
    const bool empty = text[n] == '/';
    if (closing) {
      if (open.empty() || open.back() != name) return fault("unexpected </" + name + ">");
      open.pop_back();
    } else {
      if (open.empty() && ++roots > 1) return fault("second root <" + name + ">");
      if (!empty) open.push_back(name);
    }
    at = n + (empty ? 2 : 1);
  }
  if (!open.empty()) return "unclosed <" + open.back() + ">";
  return roots == 1 ? "" : "no root element";
}
