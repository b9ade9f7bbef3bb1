// The frame of a case file: root attributes, /cases, and the groups of one case. Contract in case_parser.hpp.
#include "case_parser.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "dsalt/errors.hpp"
#include "stored_objects.hpp"

namespace dsalt::verification {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& object, const std::string& fault) {
  throw IoError(path + ": " + object + ": " + fault);
}

}  // namespace

CaseParser::CaseParser(const std::string& path, const CaseFileLimits& limits) : path_(path), limits_(limits) {
  open();
  read_root();
}

void CaseParser::open() {
  struct stat status = {};
  if (::stat(path_.c_str(), &status) != 0) throw IoError(path_ + ": cannot open: " + std::strerror(errno));
  if (S_ISDIR(status.st_mode)) throw IoError(path_ + ": cannot open: it is a directory");
  if (!S_ISREG(status.st_mode)) throw IoError(path_ + ": cannot open: it is not a regular file");
  file_size_ = static_cast<std::uint64_t>(status.st_size);
  const Hdf5Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  H5Pset_fclose_degree(access, H5F_CLOSE_STRONG);
#if H5_VERSION_GE(1, 10, 7)
  H5Pset_file_locking(access, false, true);  // files are replaced, never changed in place
#endif
  file_ = Hdf5Handle(H5Fopen(path_.c_str(), H5F_ACC_RDONLY, access), H5Fclose);
  if (!file_.valid()) throw IoError(path_ + ": cannot open as an HDF5 file" + hdf5_reason());
}

void CaseParser::read_root() {
  const ObjectReader reader(path_, file_size_);
  const Hdf5Handle root = reader.open_group(file_, "/", "/");
  const auto attributes = reader.attributes(root, "/");
  for (const auto& [name, value] : attributes)
    if (name != "schema" && name != "version" && name != "generator") fail(path_, "/", "unknown attribute " + name);
  const auto find = [&](const char* name) -> const Attribute& {
    const auto found = attributes.find(name);
    if (found == attributes.end()) fail(path_, "/", std::string("missing attribute ") + name);
    return found->second;
  };
  const auto* schema = std::get_if<std::string>(&find("schema"));
  if (schema == nullptr || *schema != "dsalt-cases") fail(path_, "/", "attribute schema is not \"dsalt-cases\"");
  const auto* version = std::get_if<std::int64_t>(&find("version"));
  if (version == nullptr) fail(path_, "/", "attribute version is not an int64");
  if (*version != 1) fail(path_, "/", "is version " + std::to_string(*version) + "; version 1 is read");
  const auto* text = std::get_if<std::string>(&find("generator"));
  if (text == nullptr) fail(path_, "/", "attribute generator is not a string");
  generator_ = *text;
  const std::vector<std::string> members = reader.members(root, "");
  for (const std::string& name : members)
    if (name != "cases") fail(path_, "/" + name, "unknown object");
  if (members.empty()) fail(path_, "/cases", "missing group");
  const Hdf5Handle cases = reader.open_group(root, "cases", "/cases");
  reader.require_no_attributes(cases, "/cases");
  names_ = reader.members(cases, "/cases");
}

Case CaseParser::read(const std::string& name) const {
  const std::string object = "/cases/" + name;
  const ObjectReader reader(path_, file_size_);
  const Hdf5Handle cases = reader.open_group(file_, "cases", "/cases");
  const Hdf5Handle group = reader.open_group(cases, name, object);
  Case c;
  c.name = name;
  c.attributes = reader.attributes(group, object);
  const auto op = c.attributes.find("op");
  if (op == c.attributes.end()) fail(path_, object, "missing attribute op");
  const auto* op_name = std::get_if<std::string>(&op->second);
  if (op_name == nullptr) fail(path_, object, "attribute op is not a string");
  try {
    c.op = operation_from_name(*op_name);
  } catch (const InvalidArgument& error) {
    fail(path_, object, error.what());
  }
  c.attributes.erase(op);

  const std::vector<std::string> members = reader.members(group, object);
  for (const std::string& member : members)
    if (member != "inputs" && member != "outputs") fail(path_, object + "/" + member, "unknown object");
  if (std::find(members.begin(), members.end(), "inputs") == members.end())
    fail(path_, object + "/inputs", "missing group");
  std::uint64_t bytes_left = limits_.max_bytes_per_case;
  for (const std::string& kind : members) {
    const std::string label = object + "/" + kind;
    const Hdf5Handle tensors = reader.open_group(group, kind, label);
    reader.require_no_attributes(tensors, label);
    for (const std::string& tensor : reader.members(tensors, label)) {
      const Hdf5Handle dataset = reader.open_dataset(tensors, tensor, label + "/" + tensor);
      (kind == "inputs" ? c.inputs : c.outputs)[tensor] = reader.tensor(dataset, label + "/" + tensor, bytes_left);
    }
  }
  return c;
}

}  // namespace dsalt::verification
