#include "emulator.hpp"

#include <cstdio>
#include <cstdlib>
#include <vector>

#include <sys/mman.h>

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
constexpr std::size_t most_shared_bytes = 228 * 1024;

[[noreturn]] void give_up(const char* what) {
  std::fprintf(stderr, "emulator: %s (block %u,%u,%u)\n", what, blockIdx.x, blockIdx.y, blockIdx.z);
  std::abort();
}

struct Warp {
  unsigned generation = 0;
  std::uint32_t arrived = 0, mask = 0, live = 0;
  alignas(16) unsigned char slots[2][32 * 64];
};

struct Fiber {
  void* stack_pointer = nullptr;
  char* stack = nullptr;
  uint3 index{};
  bool done = false;
};

std::vector<Fiber> fibers;
std::vector<Warp> warps;
Fiber* running = nullptr;
void* scheduler_stack = nullptr;
void (*body)(void*) = nullptr;
void* body_argument = nullptr;
bool progress = false;
int live_threads = 0, arrived_threads = 0, votes = 0, votes_of_last = 0;
unsigned barrier_generation = 0;

alignas(1024) unsigned char shared_bytes_of_block[most_shared_bytes];

void yield() { dsalt_emulator_switch(&running->stack_pointer, scheduler_stack); }

unsigned thread_number() { return static_cast<unsigned>(running - fibers.data()); }

void finish_barrier_if_complete() {
  if (live_threads == 0 || arrived_threads < live_threads) return;
  arrived_threads = 0;
  votes_of_last = votes;
  votes = 0;
  ++barrier_generation;
  progress = true;
}

void finish_collective_if_complete(Warp& warp) {
  const std::uint32_t needed = warp.mask & warp.live;
  if (warp.arrived == 0 || (warp.arrived & needed) != needed) return;
  warp.arrived = 0;
  ++warp.generation;
  progress = true;
}

void fiber_main() {
  body(body_argument);
  running->done = true;
  progress = true;
  --live_threads;
  Warp& warp = warps[thread_number() / 32];
  warp.live &= ~(1u << thread_number() % 32);
  finish_barrier_if_complete();  // threads that have ended are not waited for
  finish_collective_if_complete(warp);
  yield();
  give_up("a finished thread ran on");
}

void prepare(Fiber& fiber) {
  if (fiber.stack == nullptr) {
    void* memory = mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (memory == MAP_FAILED) give_up("no memory for a stack");
    fiber.stack = static_cast<char*>(memory);
  }
  // As the switch leaves a stack: six registers, then the address to go to. fiber_main sees the alignment of a call.
  void** top = reinterpret_cast<void**>(fiber.stack + stack_bytes) - 1;
  *top = nullptr;
  *--top = reinterpret_cast<void*>(&fiber_main);
  for (int n = 0; n < 6; ++n) *--top = nullptr;
  fiber.stack_pointer = top;
  fiber.done = false;
}

void run_block(unsigned threads) {
  live_threads = static_cast<int>(threads);
  arrived_threads = votes = 0;
  for (Warp& warp : warps) warp = Warp{};
  for (unsigned n = 0; n < threads; ++n) {
    prepare(fibers[n]);
    fibers[n].index = {n % blockDim.x, n / blockDim.x % blockDim.y, n / (blockDim.x * blockDim.y)};
    warps[n / 32].live |= 1u << n % 32;
  }
  while (live_threads > 0) {
    progress = false;
    for (unsigned n = 0; n < threads; ++n) {
      if (fibers[n].done) continue;
      running = &fibers[n];
      threadIdx = running->index;
      dsalt_emulator_switch(&scheduler_stack, running->stack_pointer);
    }
    if (!progress) give_up("threads wait for each other: a barrier or collective that not all of its threads reach");
  }
}

}  // namespace

int lane() { return static_cast<int>(thread_number() % 32); }
void* dynamic_shared_memory() { return shared_bytes_of_block; }

void barrier() { __syncthreads_count(false); }

const unsigned char* exchange(std::uint32_t mask, const void* value, std::size_t bytes) {
  if (bytes > 64) give_up("a collective of more than 64 bytes");
  Warp& warp = warps[thread_number() / 32];
  const std::uint32_t me = 1u << lane();
  if ((mask & me) == 0) give_up("a collective whose mask leaves out the calling lane");
  if (warp.arrived == 0) warp.mask = mask;
  if (warp.mask != mask) give_up("two collectives of one warp at the same time");
  unsigned char* slots = warp.slots[warp.generation % 2];
  std::memcpy(slots + 64 * lane(), value, bytes);
  const unsigned generation = warp.generation;
  warp.arrived |= me;
  finish_collective_if_complete(warp);
  while (warp.generation == generation) yield();
  return slots;
}

void run_blocks(dim3 grid, dim3 block, std::size_t shared_bytes, void (*kernel)(void*), void* argument) {
  if (shared_bytes > most_shared_bytes) give_up("too much dynamic shared memory");
  if (grid.y > 65535 || grid.z > 65535) give_up("grid.y or grid.z above 65535");
  const unsigned threads = block.x * block.y * block.z;
  if (threads > 1024) give_up("more than 1024 threads in a block");
  if (fibers.size() < threads) fibers.resize(threads);
  warps.resize((threads + 31) / 32);
  blockDim = block;
  gridDim = grid;
  body = kernel;
  body_argument = argument;
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        blockIdx = {x, y, z};
        std::memset(shared_bytes_of_block, 0xff, shared_bytes);  // NaN: what nobody wrote is seen
        run_block(threads);
      }
}

}  // namespace emulator

int __syncthreads_count(bool vote) {
  using namespace emulator;
  const unsigned generation = barrier_generation;
  ++arrived_threads;
  votes += vote;
  finish_barrier_if_complete();
  while (barrier_generation == generation) yield();
  return votes_of_last;
}
