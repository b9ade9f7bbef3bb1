// Loops over independent tasks on the backend's threads.
//
// Contract: body(index) (or body(scratch, index)) runs once for every index in [0, count), in any order, on any thread.
// Callers get the same bits for any thread count by giving each index outputs of its own and by choosing tasks whose
// boundaries do not depend on `threads`; what must be summed across tasks is summed afterwards, in index order.
// An exception of a task (out of memory) stops the loop and is rethrown on the calling thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>

namespace dsalt::internal {

struct TaskRange {
  std::int64_t begin, end;
};

/// Hands out tasks [0, count) in order, `most` at a time and fewer towards the end, so that the threads of a team end
/// together.
class SharedTasks {
 public:
  SharedTasks(std::int64_t count, int team, std::int64_t most) : count_(count), team_(team), most_(most) {}
  /// Empty when nothing is left.
  TaskRange take() {
    std::int64_t begin = next_.load(std::memory_order_relaxed), end = 0;
    do {
      const std::int64_t left = count_ - begin;
      end = begin + std::clamp<std::int64_t>(left / (2 * team_), left > 0 ? 1 : 0, most_);
    } while (!next_.compare_exchange_weak(begin, end, std::memory_order_relaxed));
    return {begin, end};
  }

 private:
  const std::int64_t count_, team_, most_;
  std::atomic<std::int64_t> next_{0};
};

/// Tasks that are cheaper than a thread's wake-up are kept together: no more threads than count / grain are used.
/// make_scratch() is called once per thread.
template <class MakeScratch, class Body>
void parallel_for(int threads, std::int64_t count, std::int64_t grain, MakeScratch&& make_scratch, Body&& body) {
  if (count <= 0) return;
  const int team = static_cast<int>(std::clamp<std::int64_t>(count / std::max<std::int64_t>(1, grain), 1, threads));
  if (team == 1) {
    auto scratch = make_scratch();
    for (std::int64_t index = 0; index < count; ++index) body(scratch, index);
    return;
  }
  const std::int64_t step = std::max<std::int64_t>(1, count / (8 * std::int64_t{team}));
  std::atomic<std::int64_t> next{0};
  std::exception_ptr error;
#pragma omp parallel num_threads(team)
  {
    try {
      auto scratch = make_scratch();
      for (;;) {
        const std::int64_t begin = next.fetch_add(step, std::memory_order_relaxed);
        if (begin >= count) break;
        const std::int64_t end = std::min(count, begin + step);
        for (std::int64_t index = begin; index < end; ++index) body(scratch, index);
      }
    } catch (...) {
      next.store(count, std::memory_order_relaxed);
#pragma omp critical(dsalt_parallel_for)
      if (!error) error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

template <class Body>
void parallel_for(int threads, std::int64_t count, std::int64_t grain, Body&& body) {
  parallel_for(
      threads, count, grain, [] { return 0; }, [&](int, std::int64_t index) { body(index); });
}

}  // namespace dsalt::internal
