// Inside the emulator: blocks, their threads, and what threads wait for.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "emulator.hpp"

namespace emulator {

[[noreturn, gnu::format(printf, 1, 2)]] void give_up(const char* format, ...);

/// Whether to leave this call out, so that tests can show what the emulator makes of a kernel without it:
/// DSALT_EMULATED_FAULT=barrier_wait:7 is every seventh call of barrier_wait, of all threads together.
bool left_out(const char* call);

/// From a generator that is seeded by DSALT_EMULATED_SEED (0 if unset): the same in every run.
std::uint32_t random_number();

struct Warp {
  std::uint64_t generation = 0;
  std::uint32_t arrived = 0, mask = 0, live = 0;
  unsigned pause = 0;  // rounds in which it does not run
  alignas(16) unsigned char slots[2][32 * 64];
};

/// __syncthreads, or a barrier of some threads.
struct BlockBarrier {
  std::uint64_t generation = 0;
  int arrived = 0, needed = 0;  // needed: named barriers, as the first to arrive says
};

struct Warpgroup;  // wgmma.cpp

struct Block {
  uint3 index{};
  unsigned rank = 0;  // in its cluster
  unsigned char* shared = nullptr;
  std::vector<Warp> warps;
  int live_threads = 0, votes = 0, votes_of_last = 0;
  BlockBarrier all;                    // __syncthreads
  std::array<BlockBarrier, 16> named;  // number 0 is not used
  // 16 bytes each of shared addresses: stored by stmatrix or cp.async, unknown to the async proxy.
  std::vector<bool> unfenced;
  std::vector<std::unique_ptr<Warpgroup, void (*)(Warpgroup*)>> warpgroups;
};

struct WgmmaThread;  // wgmma.cpp

/// cp.async of 16 bytes.
struct AsyncCopy {
  void* shared;
  const void* global;
  std::size_t bytes;
  unsigned group;
};

struct Thread {
  void* stack_pointer = nullptr;
  char* stack = nullptr;
  Block* block = nullptr;
  unsigned number = 0;
  uint3 index{};
  bool done = false, spins = false;
  const int* watched = nullptr;  // what it last read to see whether it may go on, unless it has waited since
  int watched_value = 0;
  // It waits while (*word & mask) == value; null: it does not wait.
  const std::uint64_t* word = nullptr;
  std::uint64_t mask = 0, value = 0;
  const char* what = nullptr;
  std::vector<std::uint32_t> unfenced;  // shared addresses of its stores since its last fence
  std::vector<AsyncCopy> async_copies;  // under way, in the order of their groups
  unsigned async_groups = 0;            // committed
  std::unique_ptr<WgmmaThread, void (*)(WgmmaThread*)> wgmma{nullptr, nullptr};
};

Thread& running_thread();

/// The running thread goes on only when (*word & mask) != value. `what` completes "waits for".
void wait_while(const std::uint64_t* word, std::uint64_t mask, std::uint64_t value, const char* what);

/// Rounds of all threads so far, and after how many something is done that takes time.
std::uint64_t some_later_round();
void wait_for_round(std::uint64_t round);
/// Now and then lets other threads run: where these may rely on nothing that the running thread does next.
void preempt();

/// Shared memory as the running block addresses it: its bytes start where the system's 1024 end, as on a device.
constexpr std::uint32_t system_shared_bytes = 1024, most_shared_bytes = 227 * 1024;
std::uint32_t launched_shared_bytes();  // of each block of the running kernel
/// The place of `bytes` at a shared address of `block`. Outside of its shared memory: the end.
unsigned char* in_shared(const Block& block, std::uint32_t address, std::uint32_t bytes, const char* what);

/// What is under way of `block`, all blocks' copies, and doing one of them: see copies.cpp.
bool do_some_copy();
bool has_copies(const Block& block);
/// Says what a word that somebody waits for is.
std::string describe_barrier(std::uint64_t word);

/// Called at the end of a thread, and of a block.
void check_wgmma_done(const Thread& thread);
void check_wgmma_done(const Block& block);

}  // namespace emulator
