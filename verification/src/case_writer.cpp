// Writing case files: aside, flushed, renamed. Contract in case_file.hpp.
//
// The layout is deterministic: no times, contiguous storage, string attributes of fixed length, and metadata in the
// HDF5 1.8 format, whose checksums let a reader notice a flipped bit.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "dsalt/errors.hpp"
#include "dsalt/verification/case_file.hpp"
#include "hdf5_types.hpp"

namespace dsalt::verification {
namespace {

static_assert(std::endian::native == std::endian::little, "raw bits are written as they lie in memory");

namespace fs = std::filesystem;

std::string system_reason() { return std::strerror(errno); }

/// Where the finished file goes: behind symbolic links, so that the link stays one.
std::string resolve_target(const std::string& path) {
  std::error_code error;
  fs::path target = path;
  if (fs::is_symlink(target, error)) {
    const fs::path resolved = fs::canonical(target, error);
    if (!error) target = resolved;
  }
  const fs::file_status status = fs::status(target, error);
  if (fs::is_directory(status)) throw IoError(path + ": cannot write: it is a directory");
  if (fs::exists(status) && !fs::is_regular_file(status))
    throw IoError(path + ": cannot write: it is not a regular file");
  return target.string();
}

/// Creates an empty file of a new name beside `target`; the umask applies.
std::string reserve_beside(const std::string& target) {
  static std::atomic<unsigned> counter{0};
  for (int attempt = 0; attempt < 1000; ++attempt) {
    const std::string name = target + ".unfinished-" + std::to_string(::getpid()) + "-" + std::to_string(counter++);
    const int descriptor = ::open(name.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
    if (descriptor >= 0) {
      ::close(descriptor);
      return name;
    }
    if (errno != EEXIST) throw IoError(target + ": cannot write beside it: " + system_reason());
  }
  throw IoError(target + ": cannot find a free name beside it");
}

/// Waits until the bytes (or, for a directory, its entries) are on the disk.
void flush_to_disk(const std::string& path, bool directory) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | (directory ? O_DIRECTORY : 0));
  if (descriptor < 0) throw IoError(path + ": cannot open to flush: " + system_reason());
  const int result = ::fsync(descriptor);
  const int error = errno;
  ::close(descriptor);
  // Some file systems cannot flush a directory and say so with EINVAL; the rename is in order there all the same.
  if (result != 0 && !(directory && error == EINVAL))
    throw IoError(path + ": cannot flush to disk: " + std::strerror(error));
}

Hdf5Handle group_properties(unsigned compact_links) {
  Hdf5Handle properties(H5Pcreate(H5P_GROUP_CREATE), H5Pclose);
  H5Pset_obj_track_times(properties, false);
  H5Pset_link_phase_change(properties, compact_links, 0);
  H5Pset_attr_phase_change(properties, 64, 0);  // all attributes of a case stay in its header
  return properties;
}

}  // namespace

struct CaseWriter::State {
  std::string path, target, unfinished;
  Hdf5Handle file, cases;

  [[noreturn]] void fail(const std::string& object, const std::string& fault) const {
    throw IoError(path + ": " + object + ": " + fault + hdf5_reason());
  }

  ~State() {
    const QuietHdf5 quiet;
    cases.close();
    file.close();
    if (!unfinished.empty()) ::unlink(unfinished.c_str());
  }

  Hdf5Handle create_group(hid_t parent, const std::string& name, unsigned compact_links, const std::string& object) {
    const Hdf5Handle properties = group_properties(compact_links);
    Hdf5Handle group(H5Gcreate2(parent, name.c_str(), H5P_DEFAULT, properties, H5P_DEFAULT), H5Gclose);
    if (!group.valid()) fail(object, "cannot create the group");
    return group;
  }

  void write_attribute(hid_t object, const std::string& name, const Attribute& value, const std::string& label) {
    Hdf5Handle type;
    const void* data = nullptr;
    if (const auto* integer = std::get_if<std::int64_t>(&value)) {
      type = Hdf5Handle(H5Tcopy(H5T_STD_I64LE), H5Tclose);
      data = integer;
    } else if (const auto* real = std::get_if<double>(&value)) {
      type = Hdf5Handle(H5Tcopy(H5T_IEEE_F64LE), H5Tclose);
      data = real;
    } else {
      const std::string& text = std::get<std::string>(value);
      type = Hdf5Handle(H5Tcopy(H5T_C_S1), H5Tclose);
      H5Tset_size(type, text.empty() ? 1 : text.size());
      H5Tset_strpad(type, H5T_STR_NULLPAD);
      H5Tset_cset(type, H5T_CSET_UTF8);
      data = text.c_str();  // an empty text is one NUL
    }
    const Hdf5Handle space(H5Screate(H5S_SCALAR), H5Sclose);
    const Hdf5Handle attribute(H5Acreate2(object, name.c_str(), type, space, H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
    if (!attribute.valid() || H5Awrite(attribute, type, data) < 0) fail(label + ": attribute " + name, "cannot write");
  }

  void write_dataset(hid_t group, const std::string& name, const TensorView& view, const std::string& label) {
    if (!view.present() || view.device.type != DeviceType::cpu)
      throw InvalidArgument(label + ": got " + to_string(view) + ", need a host tensor");
    Tensor copy;
    const void* data = view.data;
    if (!view.contiguous()) {
      copy = Tensor::empty(std::span(view.shape.data(), static_cast<std::size_t>(view.rank)), view.dtype);
      copy_elements(view, copy);
      data = copy.view().data;
    }
    hsize_t extents[max_rank] = {};
    for (int dim = 0; dim < view.rank; ++dim)
      extents[dim] = static_cast<hsize_t>(view.shape[static_cast<std::size_t>(dim)]);
    const Hdf5Handle space(view.rank == 0 ? H5Screate(H5S_SCALAR) : H5Screate_simple(view.rank, extents, nullptr),
                           H5Sclose);
    const Hdf5Handle type = make_file_type(view.dtype);
    const Hdf5Handle properties(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    H5Pset_obj_track_times(properties, false);
    H5Pset_layout(properties, H5D_CONTIGUOUS);
    H5Pset_fill_time(properties, H5D_FILL_TIME_NEVER);  // every element is written below
    const Hdf5Handle dataset(H5Dcreate2(group, name.c_str(), type, space, H5P_DEFAULT, properties, H5P_DEFAULT),
                             H5Dclose);
    if (!dataset.valid()) fail(label, "cannot create the dataset");
    if (view.size() > 0 && H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) < 0)
      fail(label, "cannot write the data");
  }

  void open(const std::string& generator) {
    const Hdf5Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
    H5Pset_fclose_degree(access, H5F_CLOSE_STRONG);
    H5Pset_libver_bounds(access, H5F_LIBVER_V18, H5F_LIBVER_V18);
#if H5_VERSION_GE(1, 10, 7)
    H5Pset_file_locking(access, false, true);  // nobody else knows the unfinished name
#endif
    const Hdf5Handle creation(H5Pcreate(H5P_FILE_CREATE), H5Pclose);
    H5Pset_obj_track_times(creation, false);
    file = Hdf5Handle(H5Fcreate(unfinished.c_str(), H5F_ACC_TRUNC, creation, access), H5Fclose);
    if (!file.valid()) fail("/", "cannot create the file");
    write_attribute(file, "schema", std::string("dsalt-cases"), "/");
    write_attribute(file, "version", std::int64_t{1}, "/");
    write_attribute(file, "generator", generator, "/");
    cases = create_group(file, "cases", 8, "/cases");
  }
};

CaseWriter::CaseWriter(const std::string& path, const std::string& generator) : state_(std::make_unique<State>()) {
  const QuietHdf5 quiet;
  state_->path = path;
  state_->target = resolve_target(path);
  state_->unfinished = reserve_beside(state_->target);
  state_->open(generator);
}

CaseWriter::~CaseWriter() = default;
CaseWriter::CaseWriter(CaseWriter&&) noexcept = default;
CaseWriter& CaseWriter::operator=(CaseWriter&&) noexcept = default;

void CaseWriter::add(const Case& c) {
  const QuietHdf5 quiet;
  if (!state_->file.valid()) throw IoError(state_->path + ": cannot add a case after commit");
  if (c.name.empty() || c.name == "." || c.name.find('/') != std::string::npos ||
      c.name.find('\0') != std::string::npos)
    throw InvalidArgument("case name: got \"" + c.name + "\", need a name without '/'");
  const std::string label = "/cases/" + c.name;
  const Hdf5Handle group = state_->create_group(state_->cases, c.name, 8, label);
  state_->write_attribute(group, "op", std::string(name_of(c.op)), label);
  for (const auto& [name, value] : c.attributes) state_->write_attribute(group, name, value, label);
  for (const auto& [kind, tensors] :
       {std::pair<const char*, const Tensors*>{"inputs", &c.inputs}, {"outputs", &c.outputs}}) {
    const Hdf5Handle members = state_->create_group(group, kind, 32, label + "/" + kind);
    for (const auto& [name, tensor] : *tensors)
      state_->write_dataset(members, name, tensor, label + "/" + kind + "/" + name);
  }
}

void CaseWriter::commit() {
  const QuietHdf5 quiet;
  if (!state_->file.valid()) throw IoError(state_->path + ": already committed");
  if (H5Fflush(state_->file, H5F_SCOPE_GLOBAL) < 0) state_->fail("/", "cannot flush");
  if (!state_->cases.close() || !state_->file.close()) state_->fail("/", "cannot close");
  flush_to_disk(state_->unfinished, false);
  if (std::rename(state_->unfinished.c_str(), state_->target.c_str()) != 0)
    throw IoError(state_->path + ": cannot rename the finished file: " + system_reason());
  state_->unfinished.clear();
  const fs::path folder = fs::path(state_->target).parent_path();
  flush_to_disk(folder.empty() ? "." : folder.string(), true);
}

}  // namespace dsalt::verification
