// Barriers in shared memory and the copies that complete them, bytes by bytes as the device's copy engine places them;
// and what threads store in shared memory by cp.async and stmatrix.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>

#include "blocks.hpp"
#include "hopper_tma.hpp"
#include "tensor_map.hpp"

namespace emulator {
namespace {

/// A barrier's state, in its own eight bytes of shared memory, so that it can be overwritten as on a device.
struct BarrierState {
  std::uint32_t arrivals = 0, pending = 0;  // of a phase; missing in this one
  std::int64_t bytes = 0;                   // expected less copied
  bool parity = false;                      // of this phase

  static constexpr std::uint64_t magic = 0x5bab, parity_bit = std::uint64_t{1} << 47;
  static constexpr std::int64_t most_bytes = (1 << 20) - 1;
  static constexpr std::uint32_t most_arrivals = (1 << 12) - 1;

  static bool is_barrier(std::uint64_t word) { return word >> 48 == magic; }
  explicit BarrierState(std::uint64_t word)
      : arrivals(word & most_arrivals),
        pending(word >> 12 & most_arrivals),
        bytes(static_cast<std::int64_t>(word >> 24 & 0x7fffff) - (1 << 22)),
        parity(word & parity_bit) {}
  std::uint64_t word() const {
    return magic << 48 | (parity ? parity_bit : 0) | static_cast<std::uint64_t>(bytes + (1 << 22)) << 24 |
           std::uint64_t{pending} << 12 | arrivals;
  }
};

BarrierState load(const std::uint64_t* barrier) {
  if (!BarrierState::is_barrier(*barrier))
    give_up("no barrier at byte %d of shared memory", static_cast<int>(shared_address(barrier) - system_shared_bytes));
  return BarrierState(*barrier);
}

void store(std::uint64_t* barrier, BarrierState state) {
  if (state.bytes > BarrierState::most_bytes || state.bytes < -BarrierState::most_bytes)
    give_up("a barrier expects %lld bytes", static_cast<long long>(state.bytes));
  if (state.pending == 0 && state.bytes == 0) {
    state.pending = state.arrivals;
    state.parity = !state.parity;
  }
  *barrier = state.word();
}

struct Copy {
  const Block* block;
  std::uint64_t* barrier;
  std::uint32_t to;  // shared address
  TensorMap map;     // rank 0: plain bytes
  int coordinates[5];
  const void* from;
  std::uint32_t bytes;
};
std::deque<Copy> copies;

/// One row of a box: 16 bytes at a time, each where the 128-byte swizzle puts it.
void copy_row(const Copy& copy, std::uint32_t to, const unsigned char* from, bool exists) {
  const TensorMap& map = copy.map;
  const int pieces = static_cast<int>(map.box[0] * map.element_bytes / 16),
            each = static_cast<int>(16 / map.element_bytes);
  for (int n = 0; n < pieces; ++n) {
    unsigned char piece[16] = {};
    for (int e = 0; e < each; ++e) {
      const std::int64_t at = copy.coordinates[0] + n * each + e;
      if (exists && at >= 0 && at < static_cast<std::int64_t>(map.sizes[0]))
        std::memcpy(piece + static_cast<std::size_t>(e) * map.element_bytes, from + at * map.element_bytes,
                    map.element_bytes);
    }
    const std::uint32_t address = to + 16 * static_cast<std::uint32_t>(n);
    std::memcpy(in_shared(*copy.block, address ^ (address >> 7 & 7) << 4, 16, "a copy"), piece, 16);
  }
}

void run(const Copy& copy) {
  const TensorMap& map = copy.map;
  if (map.rank == 0) {
    std::memcpy(in_shared(*copy.block, copy.to, copy.bytes, "a copy"), copy.from, copy.bytes);
  } else {
    std::uint32_t rows = 1;
    for (unsigned d = 1; d < map.rank; ++d) rows *= map.box[d];
    for (std::uint32_t row = 0; row < rows; ++row) {
      bool exists = true;
      const unsigned char* from = map.address;
      std::uint32_t rest = row;
      for (unsigned d = 1; d < map.rank; ++d) {
        const std::int64_t at = copy.coordinates[d] + static_cast<std::int64_t>(rest % map.box[d]);
        rest /= map.box[d];
        exists &= at >= 0 && at < static_cast<std::int64_t>(map.sizes[d]);
        from += at * static_cast<std::int64_t>(map.strides[d]);
      }
      copy_row(copy, copy.to + row * map.box[0] * map.element_bytes, from, exists);
    }
  }
  BarrierState state = load(copy.barrier);
  state.bytes -= copy.bytes;
  store(copy.barrier, state);
}

/// The async proxy must not read what the thread has stored there before its next fence.
void mark_unfenced(Thread& thread, std::uint32_t address) {
  thread.unfenced.push_back(address);
  thread.block->unfenced[address / 16] = true;
}

/// Does the thread's copies of all groups but the latest `pending`.
void finish_async_copies(Thread& thread, unsigned pending) {
  const auto first = thread.async_copies.begin();
  auto end = first;
  for (; end != thread.async_copies.end() && end->group + pending < thread.async_groups; ++end) {
    std::memset(end->shared, 0, 16);
    std::memcpy(end->shared, end->global, end->bytes);
    const auto* const at = static_cast<const unsigned char*>(end->shared);
    const bool is_dynamic = at >= thread.block->shared && at < thread.block->shared + launched_shared_bytes();
    if (is_dynamic) mark_unfenced(thread, shared_address(at));
  }
  thread.async_copies.erase(first, end);
}

void start(const Copy& copy) {
  load(copy.barrier);
  std::memset(in_shared(*copy.block, copy.to, copy.bytes, "a copy"), 0xff, copy.bytes);
  // At once, or when a later copy or nobody else has anything to do.
  copies.push_back(copy);
  while (!copies.empty() && random_number() % 2 == 0) do_some_copy();
}

}  // namespace

bool do_some_copy() {
  if (copies.empty()) return false;
  const std::size_t n = random_number() % copies.size();
  const Copy copy = copies[n];
  copies.erase(copies.begin() + static_cast<std::ptrdiff_t>(n));
  run(copy);
  return true;
}

bool has_copies(const Block& block) {
  for (const Copy& copy : copies)
    if (copy.block == &block) return true;
  return false;
}

std::string describe_barrier(std::uint64_t word) {
  if (!BarrierState::is_barrier(word)) return "overwritten";
  const BarrierState state(word);
  return "in a phase of parity " + std::to_string(state.parity) + ", which lacks " + std::to_string(state.pending) +
         " of " + std::to_string(state.arrivals) + " arrivals and " + std::to_string(state.bytes) + " bytes";
}

bool every_lane_arrives() {
  static const bool every = [] {
    const char* text = std::getenv("DSALT_EMULATED_EVERY_LANE_ARRIVES");
    if (text == nullptr || std::strcmp(text, "0") == 0) return false;
    if (std::strcmp(text, "1") != 0) give_up("DSALT_EMULATED_EVERY_LANE_ARRIVES is %s, need 0 or 1", text);
    return true;
  }();
  return every;
}

void barrier_init(std::uint64_t* barrier, int arrivals) {
  if (shared_address(barrier) % 8 != 0) give_up("a barrier is not aligned");
  if (arrivals < 1 || arrivals > static_cast<int>(BarrierState::most_arrivals))
    give_up("a barrier of %d arrivals", arrivals);
  BarrierState state(0);
  state.arrivals = state.pending = static_cast<std::uint32_t>(arrivals);
  state.bytes = 0;
  *barrier = state.word();
}

void barrier_arrive(std::uint64_t* barrier, std::uint32_t expected_bytes) {
  if (left_out("barrier_arrive")) return;
  BarrierState state = load(barrier);
  if (state.pending == 0)
    give_up("one arrival too many at the barrier at byte %d of shared memory",
            static_cast<int>(shared_address(barrier) - system_shared_bytes));
  state.bytes += expected_bytes;
  --state.pending;
  store(barrier, state);
  preempt();
}

void barrier_wait(std::uint64_t* barrier, std::uint32_t parity) {
  if (left_out("barrier_wait")) return;
  load(barrier);
  if (parity > 1) give_up("parity %u", parity);
  wait_while(barrier, BarrierState::parity_bit, parity ? BarrierState::parity_bit : 0, "the barrier");
}

void load_box(void* shared, const CUtensorMap* map, std::uint64_t* barrier, unsigned rank, const int* coordinates) {
  Copy copy{running_thread().block, barrier, shared_address(shared), {}, {}, nullptr, 0};
  std::memcpy(&copy.map, map, sizeof copy.map);
  if (copy.map.magic != TensorMap::expected_magic) give_up("this is no tensor map");
  if (copy.map.rank != rank) give_up("a copy of rank %u by a tensor map of rank %u", rank, copy.map.rank);
  if (reinterpret_cast<std::uintptr_t>(map) % 64 != 0) give_up("a tensor map is not aligned to 64 bytes");
  if (copy.to % 128 != 0) give_up("a box goes to an address that is not a multiple of 128");
  copy.bytes = copy.map.element_bytes;
  for (unsigned d = 0; d < rank; ++d) {
    copy.coordinates[d] = coordinates[d];
    copy.bytes *= copy.map.box[d];
  }
  start(copy);
}

void load_bytes(void* shared, const void* global, std::uint32_t bytes, std::uint64_t* barrier) {
  const std::uint32_t to = shared_address(shared);
  if (to % 16 != 0 || reinterpret_cast<std::uintptr_t>(global) % 16 != 0 || bytes % 16 != 0)
    give_up("a bulk copy is not aligned to 16 bytes");
  start({running_thread().block, barrier, to, {}, {}, global, bytes});
}

void stmatrix_x4(void* row, const std::uint32_t (&r)[4]) {
  if (shared_address(row) % 16 != 0) give_up("stmatrix: a row is not aligned to 16 bytes");
  const unsigned char* rows = exchange(0xffffffffu, &row, sizeof row);
  Thread& thread = running_thread();
  for (int matrix = 0; matrix < 4; ++matrix) {
    unsigned char* const to = from_lane<unsigned char*>(rows, 8 * matrix + lane() / 4);
    std::memcpy(to + lane() % 4 * 4, &r[matrix], 4);
    mark_unfenced(thread, shared_address(to));
  }
}

void copy_async_16(void* shared, const void* global, int bytes) {
  if (reinterpret_cast<std::uintptr_t>(shared) % 16 != 0 ||
      (bytes > 0 && reinterpret_cast<std::uintptr_t>(global) % 16))
    give_up("cp.async is not aligned to 16 bytes");
  if (bytes < 0 || bytes > 16) give_up("cp.async of %d bytes", bytes);
  Thread& thread = running_thread();
  std::memset(shared, 0xff, 16);
  thread.async_copies.push_back({shared, global, static_cast<std::size_t>(bytes), thread.async_groups});
}

void copy_async_commit() {
  if (left_out("copy_async_commit")) return;
  Thread& thread = running_thread();
  ++thread.async_groups;
  if (random_number() % 4 == 0) finish_async_copies(thread, 0);
}

void copy_async_wait(unsigned pending) {
  if (!left_out("copy_async_wait")) finish_async_copies(running_thread(), pending);
}

void async_proxy_fence() {
  if (left_out("async_proxy_fence")) return;
  Thread& thread = running_thread();
  for (const std::uint32_t address : thread.unfenced) thread.block->unfenced[address / 16] = false;
  thread.unfenced.clear();
}

}  // namespace emulator
