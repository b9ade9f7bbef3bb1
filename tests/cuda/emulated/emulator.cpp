#include "emulator.hpp"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <sys/mman.h>

#include "blocks.hpp"

// Saves the callee's registers and the stack pointer, and goes on where the other stack was left. x86-64, System V.
extern "C" void dsalt_emulator_switch(void** saved_stack, void* next_stack);
asm(R"(
.text
.globl dsalt_emulator_switch
.hidden dsalt_emulator_switch
.type dsalt_emulator_switch, @function
dsalt_emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size dsalt_emulator_switch, . - dsalt_emulator_switch
)");

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace emulator {

namespace {

constexpr std::size_t stack_bytes = 128 * 1024;
constexpr unsigned most_blocks = 8;  // of a cluster
constexpr std::size_t guard_bytes = 1024;
constexpr unsigned char guard = 0xa5;

std::vector<Thread> threads;  // of a cluster
std::vector<Block> blocks;    // of a cluster
Thread* running = nullptr;
void* scheduler_stack = nullptr;
void (*body)(void*) = nullptr;
void* body_argument = nullptr;
std::uint32_t shared_bytes_of_launch = 0;
std::uint64_t rounds = 1;
int live_threads = 0;  // of the cluster
BlockBarrier cluster_barrier;

struct alignas(1024) SharedMemory {
  unsigned char bytes[most_shared_bytes / 1024 * 1024 + guard_bytes];
};
SharedMemory shared_memory[most_blocks];

void finish_if_complete(BlockBarrier& barrier, int needed) {
  if (needed == 0 || barrier.arrived < needed) return;
  barrier.arrived = 0;
  ++barrier.generation;
}

void finish_all_if_complete(Block& block) {
  if (block.live_threads == 0 || block.all.arrived < block.live_threads) return;
  block.votes_of_last = block.votes;
  block.votes = 0;
  finish_if_complete(block.all, block.live_threads);
}

void finish_collective_if_complete(Warp& warp) {
  const std::uint32_t needed = warp.mask & warp.live;
  if (warp.arrived == 0 || (warp.arrived & needed) != needed) return;
  warp.arrived = 0;
  ++warp.generation;
}

Warp& warp_of(const Thread& thread) { return thread.block->warps[thread.number / 32]; }

void yield() { dsalt_emulator_switch(&running->stack_pointer, scheduler_stack); }

void fiber_main() {
  body(body_argument);
  check_wgmma_done(*running);
  running->done = true;
  --live_threads;
  Block& block = *running->block;
  --block.live_threads;
  Warp& warp = warp_of(*running);
  warp.live &= ~(1u << running->number % 32);
  finish_all_if_complete(block);  // threads that have ended are not waited for
  finish_if_complete(cluster_barrier, live_threads);
  finish_collective_if_complete(warp);
  if (block.live_threads == 0) {
    if (has_copies(block)) give_up("the block ends with copies under way");
    check_wgmma_done(block);
    for (std::size_t n = 0; n < guard_bytes; ++n)
      if (block.shared[shared_bytes_of_launch + n] != guard) give_up("wrote past the end of shared memory");
    std::memset(block.shared, 0xff, shared_bytes_of_launch);  // other blocks of the cluster must not read it any more
  }
  yield();
  give_up("a finished thread ran on");
}

void prepare(Thread& thread) {
  if (thread.stack == nullptr) {
    void* memory = mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (memory == MAP_FAILED) give_up("no memory for a stack");
    thread.stack = static_cast<char*>(memory);
  }
  // As the switch leaves a stack: six registers, then the address to go to. fiber_main sees the alignment of a call.
  void** top = reinterpret_cast<void**>(thread.stack + stack_bytes) - 1;
  *top = nullptr;
  *--top = reinterpret_cast<void*>(&fiber_main);
  for (int n = 0; n < 6; ++n) *--top = nullptr;
  thread.stack_pointer = top;
  thread.done = thread.spins = false;
  thread.word = nullptr;
  thread.watched = nullptr;
  thread.unfenced.clear();
  thread.async_copies.clear();
  thread.async_groups = 0;
  thread.wgmma.reset();
}

[[noreturn]] void report_deadlock() {
  std::set<std::string> said;
  for (const Thread& thread : threads) {
    if (thread.done || thread.block == nullptr) continue;
    std::string line = "  block " + std::to_string(thread.block->index.x) + " warp " +
                       std::to_string(thread.number / 32) + " waits for " + thread.what;
    const auto* at = reinterpret_cast<const unsigned char*>(thread.word);
    if (at >= thread.block->shared && at < thread.block->shared + most_shared_bytes)
      line += " at byte " + std::to_string(at - thread.block->shared) + " of shared memory, parity " +
              std::to_string(thread.value != 0) + " (" + describe_barrier(*thread.word) + ")";
    said.insert(line);
  }
  for (const std::string& line : said) std::fprintf(stderr, "%s\n", line.c_str());
  give_up("threads wait for each other: a barrier or collective that not all of its threads reach");
}

void run_cluster(unsigned count, unsigned threads_per_block) {
  cluster_barrier = {};
  live_threads = static_cast<int>(count * threads_per_block);
  for (unsigned n = 0; n < count; ++n) {
    Block& block = blocks[n];
    std::memset(block.shared, 0xff, shared_bytes_of_launch);  // NaN: what nobody wrote is seen
    std::memset(block.shared + shared_bytes_of_launch, guard, guard_bytes);
    block.live_threads = static_cast<int>(threads_per_block);
    block.votes = 0;
    block.all = {};
    block.named = {};
    block.warpgroups.clear();
    block.unfenced.assign((system_shared_bytes + most_shared_bytes) / 16, false);
    block.warps.assign((threads_per_block + 31) / 32, Warp{});
    for (unsigned t = 0; t < threads_per_block; ++t) {
      Thread& thread = threads[n * threads_per_block + t];
      prepare(thread);
      thread.block = &block;
      thread.number = t;
      thread.index = {t % blockDim.x, t / blockDim.x % blockDim.y, t / (blockDim.x * blockDim.y)};
      block.warps[t / 32].live |= 1u << t % 32;
    }
  }
  const unsigned all = count * threads_per_block;
  while (live_threads > 0) {
    bool progress = false, paused = false;
    // Warps start at another one every time, and now and then one stays behind: no kernel may rely on an order.
    const unsigned start = all > 32 ? random_number() % (all / 32) * 32 : 0;
    for (Block& block : blocks)
      for (Warp& warp : block.warps)
        if (warp.pause > 0)
          --warp.pause;
        else if (random_number() % 16 == 0)
          warp.pause = random_number() % 32;
    for (unsigned n = 0; n < all; ++n) {
      Thread& thread = threads[(start + n) % all];
      if (warp_of(thread).pause > 0) {
        paused = true;
        continue;
      }
      if (thread.done || (thread.word != nullptr && (*thread.word & thread.mask) == thread.value)) continue;
      thread.word = nullptr;
      thread.spins = false;
      running = &thread;
      threadIdx = thread.index;
      blockIdx = thread.block->index;
      dsalt_emulator_switch(&scheduler_stack, thread.stack_pointer);
      progress |= !thread.spins;
    }
    ++rounds;
    if (random_number() % 8 == 0) progress |= do_some_copy();
    if (progress) continue;
    if (paused)
      for (Block& block : blocks)
        for (Warp& warp : block.warps) warp.pause = 0;
    else if (!do_some_copy())
      report_deadlock();
  }
}

}  // namespace

void give_up(const char* format, ...) {
  std::fprintf(stderr, "emulator: ");
  std::va_list arguments;
  va_start(arguments, format);
  std::vfprintf(stderr, format, arguments);
  va_end(arguments);
  std::fprintf(stderr, " (block %u,%u,%u, thread %u of %u)\n", blockIdx.x, blockIdx.y, blockIdx.z,
               running == nullptr ? 0 : running->number, blockDim.x * blockDim.y * blockDim.z);
  std::abort();
}

bool left_out(const char* call) {
  struct Fault {
    std::string call;
    unsigned every = 0;  // 0: none
    Fault() {
      const char* text = std::getenv("DSALT_EMULATED_FAULT");
      if (text == nullptr || *text == '\0') return;
      const std::string fault = text;
      const std::size_t colon = fault.find(':');
      call = fault.substr(0, colon);
      if (colon != std::string::npos) every = static_cast<unsigned>(std::atoi(text + colon + 1));
      if (every == 0) give_up("DSALT_EMULATED_FAULT is %s, need a call and a number, as in barrier_wait:7", text);
    }
  };
  static const Fault fault;
  static unsigned calls = 0;
  return fault.every != 0 && fault.call == call && ++calls % fault.every == 0;
}

std::uint32_t random_number() {
  static std::minstd_rand generator = [] {
    const char* seed = std::getenv("DSALT_EMULATED_SEED");
    return std::minstd_rand(seed == nullptr ? 1 : static_cast<unsigned>(std::atoi(seed)) + 1);
  }();
  return static_cast<std::uint32_t>(generator() >> 8);
}

Thread& running_thread() { return *running; }
std::uint32_t launched_shared_bytes() { return shared_bytes_of_launch; }

void wait_while(const std::uint64_t* word, std::uint64_t mask, std::uint64_t value, const char* what) {
  if ((*word & mask) != value) return;
  running->word = word;
  running->mask = mask;
  running->value = value;
  running->what = what;
  running->watched = nullptr;
  yield();
}

std::uint64_t some_later_round() {
  switch (random_number() % 8) {
    case 0: return rounds + random_number() % 256;
    case 1: return rounds + random_number() % 16;
    default: return rounds;
  }
}
void wait_for_round(std::uint64_t round) {
  while (rounds < round) wait_while(&rounds, ~std::uint64_t{0}, rounds, "its time");
}

void preempt() {
  if (random_number() % 4 == 0) yield();
}

int watch(const int* global) {
  // To read it for the first time is progress, since it may already be what the thread needs.
  running->spins = running->watched == global && running->watched_value == *global;
  running->what = "global memory to change";
  yield();
  running->watched = global;
  return running->watched_value = *global;
}

int lane() { return static_cast<int>(running->number % 32); }
void* dynamic_shared_memory() { return running->block->shared; }

std::uint32_t shared_address(const void* shared) {
  const std::ptrdiff_t at = static_cast<const unsigned char*>(shared) - running->block->shared;
  if (at < 0 || at > static_cast<std::ptrdiff_t>(shared_bytes_of_launch))
    give_up("an address in shared memory is needed, %p is none", shared);
  return system_shared_bytes + static_cast<std::uint32_t>(at);
}

unsigned char* in_shared(const Block& block, std::uint32_t address, std::uint32_t bytes, const char* what) {
  if (address < system_shared_bytes || address + bytes > system_shared_bytes + shared_bytes_of_launch)
    give_up("%s leaves the block's shared memory: bytes %d to %d of %u", what,
            static_cast<int>(address - system_shared_bytes), static_cast<int>(address - system_shared_bytes + bytes),
            shared_bytes_of_launch);
  return block.shared + (address - system_shared_bytes);
}

void barrier() { __syncthreads_count(false); }

void named_barrier(int number, int count, bool wait) {
  if (left_out("named_barrier")) return;
  if (number < 1 || number > 15) give_up("named barrier %d", number);
  if (count % 32 != 0) give_up("named barrier %d counts %d threads, which are no whole warps", number, count);
  BlockBarrier& barrier = running->block->named[static_cast<std::size_t>(number)];
  if (barrier.arrived == 0) barrier.needed = count;
  if (barrier.needed != count)
    give_up("named barrier %d counts %d threads for some and %d for others", number, barrier.needed, count);
  const std::uint64_t generation = barrier.generation;
  ++barrier.arrived;
  finish_if_complete(barrier, count);
  if (wait)
    wait_while(&barrier.generation, ~std::uint64_t{0}, generation, "a named barrier");
  else
    preempt();
}

unsigned blocks_of_cluster() { return static_cast<unsigned>(blocks.size()); }
unsigned rank_in_cluster() { return running->block->rank; }
void* in_block_of_cluster(const void* shared, unsigned rank) {
  if (rank >= blocks.size()) give_up("block %u of a cluster of %zu", rank, blocks.size());
  return blocks[rank].shared + (shared_address(shared) - system_shared_bytes);
}
void sync_cluster() {
  if (left_out("sync_cluster")) return;
  const std::uint64_t generation = cluster_barrier.generation;
  ++cluster_barrier.arrived;
  finish_if_complete(cluster_barrier, live_threads);
  wait_while(&cluster_barrier.generation, ~std::uint64_t{0}, generation, "the cluster's barrier");
}

const unsigned char* exchange(std::uint32_t mask, const void* value, std::size_t bytes) {
  if (bytes > 64) give_up("a collective of more than 64 bytes");
  Warp& warp = warp_of(*running);
  const std::uint32_t me = 1u << lane();
  if ((mask & me) == 0) give_up("a collective whose mask leaves out the calling lane");
  if (warp.arrived == 0) warp.mask = mask;
  if (warp.mask != mask) give_up("two collectives of one warp at the same time");
  unsigned char* slots = warp.slots[warp.generation % 2];
  std::memcpy(slots + 64 * lane(), value, bytes);
  const std::uint64_t generation = warp.generation;
  warp.arrived |= me;
  finish_collective_if_complete(warp);
  wait_while(&warp.generation, ~std::uint64_t{0}, generation, "its warp");
  return slots;
}

void run_blocks(dim3 grid, dim3 block, std::size_t shared_bytes, unsigned cluster, void (*kernel)(void*),
                void* argument) {
  if (shared_bytes > most_shared_bytes) give_up("too much dynamic shared memory");
  if (grid.y > 65535 || grid.z > 65535) give_up("grid.y or grid.z above 65535");
  if (cluster < 1 || cluster > most_blocks || grid.x % cluster != 0)
    give_up("clusters of %u of %u blocks", cluster, grid.x);
  const unsigned threads_per_block = block.x * block.y * block.z;
  if (threads_per_block > 1024) give_up("more than 1024 threads in a block");
  while (threads.size() < cluster * threads_per_block) threads.emplace_back();
  for (Thread& thread : threads) thread.block = nullptr;
  blocks.clear();
  blocks.resize(cluster);
  blockDim = block;
  gridDim = grid;
  body = kernel;
  body_argument = argument;
  shared_bytes_of_launch = static_cast<std::uint32_t>(shared_bytes);
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; x += cluster) {
        for (unsigned n = 0; n < cluster; ++n) {
          blocks[n].index = {x + n, y, z};
          blocks[n].rank = n;
          blocks[n].shared = shared_memory[n].bytes;
        }
        run_cluster(cluster, threads_per_block);
      }
}

}  // namespace emulator

int __syncthreads_count(bool vote) {
  using namespace emulator;
  Block& block = *running->block;
  const std::uint64_t generation = block.all.generation;
  ++block.all.arrived;
  block.votes += vote;
  finish_all_if_complete(block);
  wait_while(&block.all.generation, ~std::uint64_t{0}, generation, "__syncthreads");
  return block.votes_of_last;
}
