// The products of warpgroups (wgmma) on emulated shared memory.
//
// Each of a warpgroup's 128 threads hands in its part of an instruction and goes on. Each warp has 16 rows of D, which
// are computed when all of its lanes have committed them: at once, or some time after the first of them waits. D is
// taken out of a thread's registers, which get NaN, and put back at that thread's own wait.
#include "hopper_wgmma.hpp"

#include <algorithm>
#include <bit>
#include <deque>

#include "blocks.hpp"

namespace emulator {
namespace {

constexpr unsigned group_threads = 128, group_warps = 4;
std::uint64_t register_multiplications = 0;   // of products whose operand A is in registers
constexpr std::uint32_t poison = 0x7fa5a5a5;  // a signalling NaN: arithmetic does not leave it as it is

struct Sums {
  unsigned threads = 0;  // that have not got them back
  float at[64 * 256];
};

struct Product {
  WgmmaShape shape{};
  bool add = false;
  unsigned group = 0, lanes[group_warps] = {};  // lanes: of each warp that have issued it
  std::uint64_t ready[group_warps] = {};        // round in which it happens at the latest, once a warp waits
  std::uint64_t a = 0, b = 0;
  std::uint16_t a_rows[64][16];
  Sums* sums = nullptr;
};

}  // namespace

struct Warpgroup {
  std::deque<Product> products;
  std::uint64_t first = 0;                   // number of products.front()
  std::uint64_t issued[group_warps] = {};    // by all lanes of a warp
  std::uint64_t executed[group_warps] = {};  // for a warp
  std::deque<Sums> sums;

  Product& product(std::uint64_t n) { return products[n - first]; }
};

struct WgmmaThread {
  struct Accumulator {
    float* d;
    Sums* sums;
    unsigned columns, group;
  };
  struct OperandA {
    const std::uint32_t* registers;
    std::uint32_t values[4];
    unsigned group;
  };
  std::uint64_t issued = 0;
  unsigned committed = 0;
  bool fenced = false;
  std::deque<std::uint64_t> issued_at_commit;  // of the latest groups
  std::vector<Accumulator> accumulators;
  std::vector<OperandA> operands;
};

namespace {

void delete_warpgroup(Warpgroup* group) { delete group; }
void delete_wgmma_thread(WgmmaThread* thread) { delete thread; }

WgmmaThread& state_of(Thread& thread) {
  if (thread.wgmma == nullptr)
    thread.wgmma = std::unique_ptr<WgmmaThread, void (*)(WgmmaThread*)>(new WgmmaThread, delete_wgmma_thread);
  return *thread.wgmma;
}

Warpgroup& warpgroup_of(Thread& thread) {
  Block& block = *thread.block;
  const unsigned number = thread.number / group_threads;
  if ((number + 1) * group_threads > blockDim.x) give_up("wgmma by a thread of no whole warpgroup");
  while (block.warpgroups.size() <= number) block.warpgroups.emplace_back(new Warpgroup, delete_warpgroup);
  return *block.warpgroups[number];
}

/// Calls body(row, column pair, index of the pair in d) for the thread's part of 64 rows.
template <class Body>
void for_fragment(unsigned thread, int columns, Body&& body) {
  const int lane = static_cast<int>(thread % 32), row = static_cast<int>(thread / 32 % 4) * 16 + lane / 4;
  for (int c = 0; c < columns / 8; ++c)
    for (int r = 0; r < 2; ++r) body(row + 8 * r, 8 * c + lane % 4 * 2, 4 * c + 2 * r);
}

float bf16_value(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
float half_value(std::uint16_t bits) {
  const std::uint32_t magnitude = bits & 0x7fffu, sign = (bits & 0x8000u) << 16;
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  const std::uint32_t special =
      (magnitude >= 0x7c00u) ? 0x7f800000u | magnitude << 13 : std::bit_cast<std::uint32_t>(scaled);
  return std::bit_cast<float>(special | sign);
}

/// A matrix in shared memory as its descriptor tells: 128-byte rows with the 128-byte swizzle.
struct Operand {
  const Block& block;
  std::uint32_t start, leading, stride;

  Operand(const Block& b, std::uint64_t descriptor)
      : block(b),
        start(static_cast<std::uint32_t>(descriptor & 0x3fff) << 4),
        leading(static_cast<std::uint32_t>(descriptor >> 16 & 0x3fff) << 4),
        stride(static_cast<std::uint32_t>(descriptor >> 32 & 0x3fff) << 4) {
    if (descriptor >> 62 != 1) give_up("wgmma: only the 128-byte swizzle is emulated");
    if ((descriptor >> 49 & 7) != 0) give_up("wgmma: a base offset is not emulated");
  }
  /// 16 bytes, eight elements of the contiguous dimension.
  void read(std::uint32_t address, std::uint16_t (&to)[8]) const {
    const std::uint32_t swizzled = address ^ (address >> 7 & 7) << 4;
    std::memcpy(to, in_shared(block, swizzled, 16, "wgmma"), 16);
    if (block.unfenced[swizzled / 16]) give_up("wgmma reads what was stored without an async_proxy_fence()");
  }
  /// Element k of row (A) or column (B) first + n is to[n * of_row + k * of_k].
  void gather(bool transposed, int first, int count, bool is_half, float* to, int of_row, int of_k) const {
    const auto value = is_half ? half_value : bf16_value;
    std::uint16_t piece[8];
    if (!transposed) {
      for (int n = first; n < first + count; ++n)
        for (int k = 0; k < 16; k += 8) {
          read(start + static_cast<std::uint32_t>(n / 8) * stride + static_cast<std::uint32_t>(n % 8 * 128 + k * 2),
               piece);
          for (int e = 0; e < 8; ++e) to[(n - first) * of_row + (k + e) * of_k] = value(piece[e]);
        }
    } else {
      for (int k = 0; k < 16; ++k)
        for (int n = first; n < first + count; n += 8) {
          read(start + static_cast<std::uint32_t>(n / 64) * leading + static_cast<std::uint32_t>(k / 8) * stride +
                   static_cast<std::uint32_t>(k % 8 * 128 + n % 64 * 2),
               piece);
          for (int e = 0; e < 8; ++e) to[(n - first + e) * of_row + k * of_k] = value(piece[e]);
        }
    }
  }
};

/// sums [16, columns] += a [16, 16] b [16, columns]
__attribute__((target_clones("avx512f", "avx2", "default"))) void multiply(float* sums, int columns, const float* a,
                                                                           const float* b) {
  constexpr int width = 32;
  for (int first = 0; first < columns; first += width)
    for (int row = 0; row < 16; ++row) {
      float sum[width];
      float* const to = sums + row * columns + first;
      for (int j = 0; j < width; ++j) sum[j] = to[j];
      for (int k = 0; k < 16; ++k) {
        const float factor = a[row * 16 + k];
        for (int j = 0; j < width; ++j) sum[j] += factor * b[k * columns + first + j];
      }
      for (int j = 0; j < width; ++j) to[j] = sum[j];
    }
}

/// The 16 rows of one warp.
void execute(const Block& block, Product& product, unsigned warp) {
  static float a[16 * 16], b[16 * 256];
  const WgmmaShape& shape = product.shape;
  const int first = static_cast<int>(16 * warp);
  if (shape.a_in_registers) {
    const auto value = shape.is_half ? half_value : bf16_value;
    for (int row = 0; row < 16; ++row)
      for (int k = 0; k < 16; ++k) a[row * 16 + k] = value(product.a_rows[first + row][k]);
  } else {
    Operand(block, product.a).gather(shape.a_transposed, first, 16, shape.is_half, a, 16, 1);
  }
  Operand(block, product.b).gather(shape.b_transposed, 0, shape.columns, shape.is_half, b, 1, shape.columns);
  float* const sums = product.sums->at + first * shape.columns;
  if (!product.add) std::fill(sums, sums + 16 * shape.columns, 0.0f);
  multiply(sums, shape.columns, a, b);
}

void execute_until(const Block& block, Warpgroup& group, unsigned warp, std::uint64_t end) {
  for (; group.executed[warp] < end; ++group.executed[warp]) execute(block, group.product(group.executed[warp]), warp);
  while (group.first < *std::min_element(group.executed, group.executed + group_warps)) {
    group.products.pop_front();
    ++group.first;
  }
}

/// Where the thread's d is while it is in flight.
WgmmaThread::Accumulator& accumulator_of(WgmmaThread& state, unsigned number, const Product& product, float* d,
                                         bool& is_new) {
  for (auto& accumulator : state.accumulators)
    if (accumulator.d == d) {
      if (accumulator.columns != static_cast<unsigned>(product.shape.columns))
        give_up("wgmma of another width into sums that are in flight");
      is_new = false;
      return accumulator;
    }
  is_new = true;
  Sums* const sums = product.sums;
  for_fragment(number, product.shape.columns, [&](int row, int column, int at) {
    std::memcpy(sums->at + row * product.shape.columns + column, d + at, 2 * sizeof(float));
  });
  std::fill(d, d + product.shape.columns / 2, std::bit_cast<float>(poison));
  return state.accumulators.emplace_back(
      WgmmaThread::Accumulator{d, sums, static_cast<unsigned>(product.shape.columns), 0});
}

Sums* free_sums(Warpgroup& group) {
  for (Sums& sums : group.sums)
    if (sums.threads == 0) {
      sums.threads = group_threads;
      return &sums;
    }
  group.sums.emplace_back().threads = group_threads;
  return &group.sums.back();
}

}  // namespace

void wgmma(const WgmmaShape& shape, float* d, std::uint64_t a, const std::uint32_t* a_registers, std::uint64_t b,
           bool add) {
  Thread& thread = running_thread();
  WgmmaThread& state = state_of(thread);
  Warpgroup& group = warpgroup_of(thread);
  const std::uint64_t number = state.issued++;
  if (number - group.first == group.products.size()) {
    Product& product = group.products.emplace_back();
    product.shape = shape;
    product.add = add;
    product.group = state.committed;
    product.a = a;
    product.b = b;
    for (const auto& accumulator : state.accumulators)
      if (accumulator.d == d) product.sums = accumulator.sums;
    if (product.sums == nullptr) product.sums = free_sums(group);
    if (shape.a_in_registers) register_multiplications += 64 * 16 * static_cast<std::uint64_t>(shape.columns);
  }
  Product& product = group.product(number);
  if (product.shape != shape || product.add != add || product.group != state.committed || product.a != a ||
      product.b != b)
    give_up("the threads of a warpgroup issue different wgmma instructions");
  bool is_new;
  auto& accumulator = accumulator_of(state, thread.number, product, d, is_new);
  if (accumulator.sums != product.sums) give_up("the threads of a warpgroup have different sums in flight");
  accumulator.group = product.group;
  if ((is_new || a_registers != nullptr) && !state.fenced)
    give_up("no wgmma_fence() between a wait and a product with registers");
  if (a_registers != nullptr) {
    const int lane = static_cast<int>(thread.number % 32),
              row = static_cast<int>(thread.number / 32 % 4) * 16 + lane / 4;
    WgmmaThread::OperandA& operand = state.operands.emplace_back();
    operand.registers = a_registers;
    operand.group = product.group;
    std::memcpy(operand.values, a_registers, sizeof operand.values);
    for (int n = 0; n < 4; ++n)
      std::memcpy(&product.a_rows[row + n % 2 * 8][lane % 4 * 2 + n / 2 * 8], &a_registers[n], 4);
  }
  const unsigned warp = thread.number / 32 % group_warps;
  if (++product.lanes[warp] == 32) group.issued[warp] = number + 1;
}

void wgmma_fence() {
  if (!left_out("wgmma_fence")) state_of(running_thread()).fenced = true;
}

void wgmma_commit() {
  Thread& thread = running_thread();
  WgmmaThread& state = state_of(thread);
  ++state.committed;
  state.issued_at_commit.push_back(state.issued);
  if (state.issued_at_commit.size() > 8) state.issued_at_commit.pop_front();
  Warpgroup& group = warpgroup_of(thread);
  const unsigned warp = thread.number / 32 % group_warps;
  if (group.issued[warp] < state.issued || group.executed[warp] == state.issued) return;
  if (random_number() % 4 == 0) execute_until(*thread.block, group, warp, state.issued);
}

void wgmma_wait(unsigned pending) {
  if (left_out("wgmma_wait")) return;
  Thread& thread = running_thread();
  WgmmaThread& state = state_of(thread);
  state.fenced = false;
  if (pending >= state.issued_at_commit.size()) return;
  Warpgroup& group = warpgroup_of(thread);
  const unsigned finished = state.committed - pending;  // groups
  const std::uint64_t needed = state.issued_at_commit[state.issued_at_commit.size() - 1 - pending];
  const unsigned warp = thread.number / 32 % group_warps;
  const std::uint64_t& issued = group.issued[warp];
  while (issued < needed) wait_while(&issued, ~std::uint64_t{0}, issued, "a wgmma that not all of its warp has issued");
  if (group.executed[warp] < needed) {
    std::uint64_t& ready = group.product(needed - 1).ready[warp];
    if (ready == 0) ready = some_later_round();
    wait_for_round(ready);
    execute_until(*thread.block, group, warp, needed);
  }
  std::erase_if(state.accumulators, [&](const WgmmaThread::Accumulator& accumulator) {
    if (accumulator.group >= finished) return false;
    for (unsigned n = 0; n < accumulator.columns / 2; ++n)
      if (std::bit_cast<std::uint32_t>(accumulator.d[n]) != poison)
        give_up("sums were written while a product was under way");
    for_fragment(thread.number, static_cast<int>(accumulator.columns), [&](int row, int column, int at) {
      std::memcpy(accumulator.d + at, accumulator.sums->at + row * static_cast<int>(accumulator.columns) + column,
                  2 * sizeof(float));
    });
    --accumulator.sums->threads;
    return true;
  });
  std::erase_if(state.operands, [&](const WgmmaThread::OperandA& operand) {
    if (operand.group >= finished) return false;
    if (std::memcmp(operand.registers, operand.values, sizeof operand.values) != 0)
      give_up("operand A in registers was written while a product was under way");
    return true;
  });
}

void check_wgmma_done(const Thread& thread) {
  if (thread.wgmma != nullptr && !thread.wgmma->accumulators.empty()) give_up("a thread ends with products under way");
}

void check_wgmma_done(const Block& block) {
  for (const auto& group : block.warpgroups)
    if (!group->products.empty()) give_up("not all warps of a warpgroup have issued the same wgmma instructions");
}

}  // namespace emulator

/// For tests that compare what kernels execute with what is said of them (tests/tools/bench_emulated_test.cpp).
extern "C" __attribute__((visibility("default"))) std::uint64_t dsalt_emulated_register_multiplications() {
  return emulator::register_multiplications;
}
