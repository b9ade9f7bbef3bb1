// Runs the built `dsalt` in a shell and keeps what it says.
#pragma once

#include <filesystem>
#include <string>

struct Outcome {
  int code = -1;  // exit code, or as a shell tells it
  std::string out, err;
};

/// `ENVIRONMENT dsalt ARGUMENTS AFTER`: before the program come "NAME=value ..." (DSALT_BACKEND is unset unless given
/// there) or a wrapper; after it a redirection or a pipe. The exit code is always the program's own.
Outcome run_dsalt(const std::string& arguments, const std::string& environment = "", const std::string& after = "");

/// A folder of this process, removed at exit.
std::filesystem::path scratch(const std::string& name);

std::string read_file(const std::filesystem::path& path);
void write_file(const std::filesystem::path& path, const std::string& content);

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// Empty when `text` is one well-formed XML element after optional prolog; otherwise what is wrong and where.
std::string xml_fault(const std::string& text);
