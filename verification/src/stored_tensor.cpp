// Datasets of a case file: element type, extents and storage are checked, then read. Contract in stored_objects.hpp.
#include <algorithm>
#include <bit>

#include "hdf5_types.hpp"
#include "stored_objects.hpp"

namespace dsalt::verification {
namespace {

static_assert(std::endian::native == std::endian::little, "raw bits are read as they lie in memory");

constexpr std::uint64_t deflate_ratio = 1032;  // no deflate stream expands more
constexpr std::uint64_t max_checked_chunks = 1 << 12;

}  // namespace

void ObjectReader::check_chunks(hid_t dataset, hid_t properties, std::uint64_t bytes, std::uint64_t limit,
                                const std::string& object) const {
  bool deflated = false;
  const int filters = H5Pget_nfilters(properties);
  if (filters < 0) refuse(object, "has unreadable filters" + hdf5_reason());
  for (int n = 0; n < filters; ++n) {
    unsigned flags = 0, config = 0;
    std::size_t values = 0;
    const H5Z_filter_t filter =
        H5Pget_filter2(properties, static_cast<unsigned>(n), &flags, &values, nullptr, 0, nullptr, &config);
    if (filter == H5Z_FILTER_DEFLATE)
      deflated = true;
    else if (filter != H5Z_FILTER_SHUFFLE && filter != H5Z_FILTER_FLETCHER32)
      refuse(object, "uses filter " + std::to_string(filter) + "; only deflate, shuffle and fletcher32 are read");
  }
  hsize_t extents[H5S_MAX_RANK] = {};
  const int rank = H5Pget_chunk(properties, H5S_MAX_RANK, extents);
  if (rank < 0) refuse(object, "has unreadable chunks" + hdf5_reason());
  std::uint64_t chunk_elements = 1;
  for (int dim = 0; dim < rank; ++dim) {
    if (extents[dim] == 0 || chunk_elements > limit / extents[dim]) refuse(object, "has chunks beyond the limit");
    chunk_elements *= extents[dim];
  }
  constexpr std::uint64_t usual_chunk = std::uint64_t{1} << 24;  // elements; h5py's own are far smaller
  if (chunk_elements > std::max(usual_chunk, bytes)) refuse(object, "has chunks far larger than itself");
  const std::uint64_t stored = H5Dget_storage_size(dataset);
  const std::uint64_t ratio = deflated ? deflate_ratio : 1;
  if (stored < bytes / ratio || stored > file_size_)
    refuse(object, "declares " + std::to_string(bytes) + " bytes, but " + std::to_string(stored) + " are stored");
  if (!deflated || stored <= limit / deflate_ratio) return;
    // Large: no single chunk may inflate beyond the limit.
#if H5_VERSION_GE(1, 10, 5)
  hsize_t chunks = 0;
  const Hdf5Handle space(H5Dget_space(dataset), H5Sclose);
  if (H5Dget_num_chunks(dataset, space, &chunks) < 0 || chunks > max_checked_chunks)
    refuse(object, "has compressed chunks that are too many to check");
  for (hsize_t n = 0; n < chunks; ++n) {
    hsize_t offset[H5S_MAX_RANK] = {}, size = 0;
    unsigned mask = 0;
    haddr_t address = 0;
    if (H5Dget_chunk_info(dataset, space, n, offset, &mask, &address, &size) < 0)
      refuse(object, "has unreadable chunks" + hdf5_reason());
    if (size > limit / deflate_ratio) refuse(object, "has a compressed chunk that may inflate beyond the limit");
  }
#else
  (void)max_checked_chunks;
  refuse(object, "has compressed chunks that may inflate beyond the limit");
#endif
}

void ObjectReader::check_storage(hid_t dataset, std::uint64_t bytes, std::uint64_t limit,
                                 const std::string& object) const {
  const Hdf5Handle properties(H5Dget_create_plist(dataset), H5Pclose);
  if (!properties.valid()) refuse(object, "has unreadable properties" + hdf5_reason());
  if (H5Pget_external_count(properties) != 0)
    refuse(object, "is stored in external files; only data stored in this file is read");
  const auto require_stored = [&] {
    const std::uint64_t stored = H5Dget_storage_size(dataset);
    if (stored < bytes)
      refuse(object, "declares " + std::to_string(bytes) + " bytes, but " + std::to_string(stored) + " are stored");
  };
  switch (H5Pget_layout(properties)) {
    case H5D_COMPACT: require_stored(); return;
    case H5D_CONTIGUOUS: {
      if (bytes == 0) return;
      require_stored();
      const haddr_t offset = H5Dget_offset(dataset);
      if (offset == HADDR_UNDEF || offset > file_size_ || bytes > file_size_ - offset)
        refuse(object, "declares " + std::to_string(bytes) + " bytes beyond the end of the file");
      return;
    }
    case H5D_CHUNKED:
      if (bytes > 0) check_chunks(dataset, properties, bytes, limit, object);
      return;
    case H5D_VIRTUAL: refuse(object, "is a virtual dataset; only data stored in this file is read");
    default: refuse(object, "has an unknown storage layout");
  }
}

Tensor ObjectReader::tensor(hid_t dataset, const std::string& object, std::uint64_t& bytes_left) const {
  require_no_attributes(dataset, object);
  const Hdf5Handle type(H5Dget_type(dataset), H5Tclose);
  const Hdf5Handle space(H5Dget_space(dataset), H5Sclose);
  if (!type.valid() || !space.valid()) refuse(object, "has no readable type" + hdf5_reason());
  const auto stored = stored_type(type);
  if (!stored)
    refuse(object, "has type " + describe_type(type) + "; needs float64, float32, bfloat16, float16 or int32");
  const H5S_class_t extent = H5Sget_simple_extent_type(space);
  const int rank = extent == H5S_SCALAR ? 0 : extent == H5S_SIMPLE ? H5Sget_simple_extent_ndims(space) : -1;
  if (rank < 0) refuse(object, "has no extent");
  if (rank > max_rank)
    refuse(object, "has rank " + std::to_string(rank) + "; at most " + std::to_string(max_rank) + " is read");
  hsize_t extents[max_rank] = {};
  if (rank > 0 && H5Sget_simple_extent_dims(space, extents, nullptr) != rank)
    refuse(object, "has no readable extent" + hdf5_reason());

  // A zero extent excuses no giant others: strides and outputs are computed from all of them.
  std::uint64_t product = size_of(stored->dtype);
  bool is_empty = false;
  std::vector<std::int64_t> shape;
  for (int dim = 0; dim < rank; ++dim) {
    const std::uint64_t factor = std::max<std::uint64_t>(extents[dim], 1);
    is_empty = is_empty || extents[dim] == 0;
    if (product > bytes_left / factor)
      refuse(object, "is larger than the limit per case; " + std::to_string(bytes_left) + " bytes are left of it");
    product *= factor;
    shape.push_back(static_cast<std::int64_t>(extents[dim]));
  }
  if (product > bytes_left) refuse(object, "is larger than the limit per case");
  const std::uint64_t bytes = is_empty ? 0 : product;
  check_storage(dataset, bytes, bytes_left, object);
  bytes_left -= bytes;

  Tensor tensor = Tensor::empty(shape, stored->dtype);
  if (bytes == 0) return tensor;
  const Hdf5Handle swapped = make_file_type(stored->dtype);
  const hid_t memory = stored->big_endian ? static_cast<hid_t>(swapped) : static_cast<hid_t>(type);
  if (H5Dread(dataset, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, tensor.view().data) < 0)
    refuse(object, "cannot read the data" + hdf5_reason());
  return tensor;
}

}  // namespace dsalt::verification
