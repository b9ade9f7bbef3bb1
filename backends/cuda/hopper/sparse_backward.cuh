// The windows' part of the sparse backward pass. A job is up to 128 consecutive keys of a kv head, which walks the
// query tiles that admit some of them, for every query head that reads them.
//
//   S^T = K Q^T, P^T = exp2(scale_log2 (S^T + bias) - lse_log2), dP^T = V dO^T, dS^T = P^T (dP^T - delta)
//   dV += P^T dO,  dK += dS^T Q          sums in registers, operand A straight from registers
//   dQ += dS K                           dS through shared memory; added to float32 sums in global memory
//
// A block takes one job after another from a counter. One warp copies, and goes on to the next job's keys and queries
// while the two warpgroups that compute (sparse_backward_consumer.cuh) still store a job's dk and dv. Landmarks come
// before, in a kernel of their own (landmark_backward.cuh, list_backward.cuh). A key that is somebody's landmark gets
// its gradient from several jobs: these add to float32 sums that a last kernel rounds. Additions come in any order.
#pragma once

#include "../attention_call.cuh"
#include "dense_call.cuh"
#include "landmark_sums.cuh"
#include "sparse_backward_consumer.cuh"
#include "sparse_backward_jobs.cuh"
#include "tma.cuh"

namespace dsalt::cuda::hopper {

template <class T, int kHead, int kQueries, bool kSoft>
struct SparseBackward {
  using Element = T;
  using Queries = QueryRows<kQueries, kSoft>;
  static constexpr int head = kHead, queries = kQueries;
  static constexpr bool soft = kSoft;
  static constexpr int keys = KeyTiles::keys, stages = 3, boxes = kHead / 64, query_boxes = kQueries / 64;
  static constexpr int consumers = 256, threads = consumers + 128, blocks_per_multiprocessor = 1;
  static constexpr std::uint32_t key_bytes = keys * kHead * 2, query_bytes = kQueries * kHead * 2,
                                 ds_bytes = keys * kQueries * 2, rows_bytes = sizeof(Queries);
  static_assert(query_boxes * boxes == 2, "dQ is cut into two 64 x 64 products");

  struct Barriers {
    Barrier keys_full, q_full[stages], do_full[stages], empty[stages];
    Barrier ds_done[2];  // a warp has stored its dS, and no longer reads the other one
  };
  /// A query tile of the walk, or what follows a job's last.
  struct Step {
    int head, tile;              // tile -1: the job ends; head -1: there are no more jobs
    int begin, end;              // keys that some row of it admits as window
    int whole_begin, whole_end;  // those that every row does, without an edge
  };
  struct Job : BackwardJob {
    int keys_parity;  // of keys_full
  };
  /// Those that somebody may still look at when the copying warp starts another.
  static constexpr int jobs_at_once = stages + 2;
  // Shared memory: K, V, then per stage Q and dO, two dS, rows, steps, jobs, barriers.
  static constexpr std::uint32_t q_at = 2 * key_bytes, do_at = q_at + stages * query_bytes,
                                 ds_at = do_at + stages * query_bytes, rows_at = ds_at + 2 * ds_bytes,
                                 steps_at = rows_at + stages * rows_bytes, jobs_at = steps_at + stages * sizeof(Step),
                                 barriers_at = jobs_at + jobs_at_once * sizeof(Job);
  static constexpr std::uint32_t shared_bytes = 1024 + barriers_at + sizeof(Barriers);
  static_assert(shared_bytes <= 227 * 1024);
  static_assert(jobs_at % alignof(Job) == 0 && barriers_at % 8 == 0);

  struct Parameters {
    CUtensorMap q, k, v, dout;
    DenseCall call;  // tiles: of keys
    AttentionCall<T> sparse;
    QuerySlots slots;
    const Queries* rows;       // [slots]
    const RowExtent* extents;  // [slots]
    const QueryRange* ranges;  // [KeyTiles]
    LandmarkSums landmarks;
    int job_count;
    int* next;  // how many were taken beyond the first of each block, 0 at first
    Rows<T> dk, dv;
    float* dwindow;  // [slots, rows]; null: not wanted
    float scale;
  };

  unsigned char* shared;
  const Parameters& p;
  Barriers& barriers;

  __device__ SparseBackward(const Parameters& parameters, unsigned char* memory)
      : shared(memory), p(parameters), barriers(*reinterpret_cast<Barriers*>(memory + barriers_at)) {}

  __device__ unsigned char* k_tile() const { return shared; }
  __device__ unsigned char* v_tile() const { return shared + key_bytes; }
  __device__ unsigned char* q_tile(int stage) const { return shared + q_at + stage * query_bytes; }
  __device__ unsigned char* do_tile(int stage) const { return shared + do_at + stage * query_bytes; }
  __device__ unsigned char* ds_tile(int n) const { return shared + ds_at + n % 2 * ds_bytes; }
  __device__ Queries& query_rows(int stage) const {
    return *reinterpret_cast<Queries*>(shared + rows_at + stage * rows_bytes);
  }
  __device__ Step& step_of(int n) const { return reinterpret_cast<Step*>(shared + steps_at)[n % stages]; }
  __device__ Job& job(int n) const { return reinterpret_cast<Job*>(shared + jobs_at)[n % jobs_at_once]; }

  __device__ void init_barriers() const {
    barrier_init(&barriers.keys_full, 1);
    for (int stage = 0; stage < stages; ++stage) {
      barrier_init(&barriers.q_full[stage], 1);
      barrier_init(&barriers.do_full[stage], 1);
      barrier_init(&barriers.empty[stage], consumers / 32 * arrivals_of_warp());
    }
    for (Barrier& done : barriers.ds_done) barrier_init(&done, consumers / 32 * arrivals_of_warp());
  }

  /// The first jobs need no counter: every block has one.
  __device__ int take() const { return static_cast<int>(gridDim.x) + atomicAdd(p.next, 1); }
  /// The copying warp.
  __device__ void produce(int lane) const {
    int n = 0, number = static_cast<int>(blockIdx.x), keys_sent = 0;  // lane 0 knows the number
    for (int j = 0;; ++j) {
      Job& job = this->job(j);
      if (lane == 0) {
        while (number < p.job_count && !job.locate(p.call, number)) number = take();
        job.keys_parity = keys_sent % 2;
      }
      if (__shfl_sync(0xffffffffu, number, 0) >= p.job_count) break;
      if (lane == 0) number = take();
      __syncwarp();
      keys_sent += walk(job, n, lane);
      if (lane == 0) send_end(n, 0);
      ++n;
    }
    if (lane == 0) send_end(n, -1);
  }

  /// Sends a job's steps, number n and on; whether its keys were sent.
  __device__ bool walk(const Job& job, int& n, int lane) const {
    bool keys_sent = false;
    for (int head = job.first_head; head < job.first_head + job.heads; ++head) {
      const QueryRange range = p.ranges[job.key_tile + head * KeyTiles::per_head(p.call)];
      for (int base = range.first(); base < range.end; base += 32) {
        const int mine = base + lane;
        RowExtent rows;
        bool wanted = mine < range.end;
        if (wanted) {
          rows = p.extents[p.slots.slot(p.call, kQueries, job.sequence, head, mine)];
          wanted = rows.begin < job.first_key + keys && rows.end > job.first_key;
        }
        for (unsigned left = __ballot_sync(0xffffffffu, wanted); left != 0; left &= left - 1) {
          const int from = __ffs(left) - 1;
          const auto of = [&](int value) { return __shfl_sync(0xffffffffu, value, from); };
          const Step step{head, base + from, of(rows.begin), of(rows.end), of(rows.whole_begin), of(rows.whole_end)};
          if (lane == 0) {
            send(job, n, step);
            if (!keys_sent) send_keys(job, n);
          }
          keys_sent = true;
          ++n;
        }
      }
    }
    return keys_sent;
  }
  __device__ int entry(const Job& job) const { return p.call.cu_q.present() ? 0 : job.sequence; }
  __device__ void wait_until_empty(int n) const { barrier_wait(&barriers.empty[n % stages], n / stages % 2 ^ 1); }
  /// Step n is the job's first: the one before is the end of another job, and whoever has seen that needs its keys no
  /// longer.
  __device__ void send_keys(const Job& job, int n) const {
    if (n > 0) wait_until_empty(n - 1 + stages);
    barrier_expect(&barriers.keys_full, 2 * key_bytes);
    const int row = job.extent.k_start + job.first_key;
    for (int box = 0; box < boxes; ++box) {
      tma_load(k_tile() + box * keys * 128, &p.k, &barriers.keys_full, 64 * box, row, job.kv_head, entry(job));
      tma_load(v_tile() + box * keys * 128, &p.v, &barriers.keys_full, 64 * box, row, job.kv_head, entry(job));
    }
  }
  __device__ void send(const Job& job, int n, const Step& step) const {
    const int stage = n % stages, row = job.extent.q_start + step.tile * kQueries;
    wait_until_empty(n);
    step_of(n) = step;
    barrier_expect(&barriers.q_full[stage], query_bytes + rows_bytes);
    for (int box = 0; box < boxes; ++box)
      tma_load(q_tile(stage) + box * kQueries * 128, &p.q, &barriers.q_full[stage], 64 * box, row, step.head,
               entry(job));
    bulk_load(&query_rows(stage), p.rows + p.slots.slot(p.call, kQueries, job.sequence, step.head, step.tile),
              rows_bytes, &barriers.q_full[stage]);
    barrier_expect(&barriers.do_full[stage], query_bytes);
    for (int box = 0; box < boxes; ++box)
      tma_load(do_tile(stage) + box * kQueries * 128, &p.dout, &barriers.do_full[stage], 64 * box, row, step.head,
               entry(job));
  }
  /// Step n is none: the end of a job, or of all.
  __device__ void send_end(int n, int head) const {
    wait_until_empty(n);
    step_of(n) = {head, -1, 0, 0, 0, 0};
    barrier_arrive(&barriers.q_full[n % stages]);
    barrier_arrive(&barriers.do_full[n % stages]);
  }

  __device__ __forceinline__ void run(int thread) {
    if (thread >= consumers) {
      fewer_registers<24>();
      if (thread < consumers + 32) produce(thread - consumers);
    } else {
      more_registers<240>();
      SparseBackwardConsumer<SparseBackward>(*this, thread).run();
    }
  }
};

}  // namespace dsalt::cuda::hopper
