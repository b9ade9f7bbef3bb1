// ratio = new median / old median. A change counts when the ranges from p10 to p90 of both do not touch.
#include "bench/compare.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "bench/format.hpp"
#include "dsalt/errors.hpp"

namespace dsalt::benchmark {
namespace {

using Json = nlohmann::json;

struct Measured {
  std::string skipped;
  double median = 0, p10 = 0, p90 = 0;
};

struct File {
  std::string path, heading;
  std::vector<std::string> order;  // keys as they stand in the file
  std::map<std::string, Measured> rows;
};

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw IoError("benchmark file " + path + ": " + what);
}

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  if (file) content << file.rdbuf();
  if (!file || file.bad()) fail(path, std::string("cannot be read: ") + std::strerror(errno ? errno : EIO));
  return content.str();
}

const Json& member(const Json& object, const char* name, const std::string& where, const std::string& path) {
  const auto found = object.find(name);
  if (found == object.end()) fail(path, where + " has no \"" + name + "\"");
  return *found;
}

std::string text_of(const Json& object, const char* name, const std::string& where, const std::string& path) {
  const Json& value = member(object, name, where, path);
  if (value.is_null()) return "";
  if (!value.is_string()) fail(path, where + ": \"" + name + "\" is not a string");
  return value.get<std::string>();
}

double seconds_of(const Json& object, const char* name, const std::string& where, const std::string& path) {
  const Json& value = member(object, name, where, path);
  if (!value.is_number() || !(value.get<double>() > 0))
    fail(path, where + ": \"" + name + "\" is not a positive number");
  return value.get<double>();
}

std::string key_of(const Json& row, const std::string& where, const std::string& path) {
  std::string key;
  for (const char* name : {"operation", "backend", "isa", "dtype", "shape"}) {
    const std::string part = text_of(row, name, where, path);
    if (!part.empty()) key += (key.empty() ? "" : "  ") + part;
  }
  return key;
}

File read(const std::string& path) {
  Json json;
  try {
    json = Json::parse(content_of(path));
  } catch (const Json::parse_error& error) {
    fail(path, "is not JSON: " + std::string(error.what()));
  }
  if (!json.is_object()) fail(path, "is not a JSON object");
  if (text_of(json, "schema", "the file", path) != "dsalt-bench")
    fail(path, "\"schema\" is \"" + text_of(json, "schema", "the file", path) + "\", need \"dsalt-bench\"");
  const Json& version = member(json, "version", "the file", path);
  if (version != 1) fail(path, "\"version\" is " + version.dump() + ", this program reads 1");
  File file;
  file.path = path;
  const std::string commit = text_of(json, "commit", "the file", path);
  file.heading = path + ": dsalt " + text_of(json, "dsalt", "the file", path) +
                 (commit.empty() ? "" : " (" + commit + ")") + ", " + text_of(json, "date", "the file", path);
  const Json& rows = member(json, "rows", "the file", path);
  if (!rows.is_array()) fail(path, "\"rows\" is not an array");
  for (std::size_t n = 0; n < rows.size(); ++n) {
    const std::string where = "row " + std::to_string(n + 1);
    if (!rows[n].is_object()) fail(path, where + " is not an object");
    const std::string key = key_of(rows[n], where, path);
    Measured measured{text_of(rows[n], "skipped", where, path)};
    if (measured.skipped.empty()) {
      measured.median = seconds_of(rows[n], "median_s", where, path);
      measured.p10 = seconds_of(rows[n], "p10_s", where, path);
      measured.p90 = seconds_of(rows[n], "p90_s", where, path);
    }
    if (!file.rows.emplace(key, measured).second) fail(path, where + " repeats " + key);
    file.order.push_back(key);
  }
  return file;
}

std::string padded(std::string text, std::size_t width) {
  text.resize(std::max(width, text.size()), ' ');
  return text;
}

std::string verdict(const Measured& before, const Measured& after) {
  if (after.p10 > before.p90) return "slower";
  if (after.p90 < before.p10) return "faster";
  return "";
}

std::string only_in(const File& file, const File& other) {
  std::string text;
  for (const std::string& key : file.order)
    if (!other.rows.contains(key)) text += "  " + key + "\n";
  return text.empty() ? text : "\nonly in " + file.path + ":\n" + text;
}

}  // namespace

Comparison compare_files(const std::string& old_path, const std::string& new_path) {
  const File before = read(old_path), after = read(new_path);
  std::size_t width = 3;
  for (const std::string& key : before.order)
    if (after.rows.contains(key)) width = std::max(width, key.size());
  Comparison result;
  std::string rows, skipped;
  for (const std::string& key : before.order) {
    const auto found = after.rows.find(key);
    if (found == after.rows.end()) continue;
    const Measured& a = before.rows.at(key);
    const Measured& b = found->second;
    if (!a.skipped.empty() || !b.skipped.empty()) {
      if (a.skipped.empty() || b.skipped.empty())
        skipped += "  " + key + "  " + (a.skipped.empty() ? "new: " + b.skipped : "old: " + a.skipped) + "\n";
      continue;
    }
    ++result.common;
    rows += padded(key, width) + "  " + padded(seconds_text(a.median), 8) + "  " + padded(seconds_text(b.median), 8) +
            "  " + padded(number_text(b.median / a.median), 6) + verdict(a, b) + "\n";
  }
  result.table = "old  " + before.heading + "\nnew  " + after.heading + "\n";
  if (!rows.empty())
    result.table += "\n" + padded("row", width) + "  old       new       ratio\n" + rows +
                    "ratio: new time / old time; slower, faster: the ranges from p10 to p90 do not touch\n";
  if (!skipped.empty()) result.table += "\nskipped in one of them:\n" + skipped;
  result.table += only_in(before, after) + only_in(after, before);
  return result;
}

}  // namespace dsalt::benchmark
