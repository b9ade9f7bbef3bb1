// The landmarks' part of the sparse backward pass (sparse_backward.cuh has the equations), before the windows' part. A
// block walks the query tiles of a segment of a head, with up to 64 landmarks of a list at a time. It is the first to
// meet a tile, so it finds delta = rowsum(dO O) of its rows and stores what the other kernel adds to: of dQ, no zeros
// are written first, O is read once, and the dO of that visit serves delta too.
//
// One warp copies, two warpgroups compute (landmark_backward_consumer.cuh), each for 64 queries of its own: while one
// multiplies, the other takes exponentials. Gradients of keys are added to float32 sums, in any order.
#pragma once

#include "../attention_call.cuh"
#include "dense_call.cuh"
#include "landmark_backward_consumer.cuh"
#include "landmark_backward_jobs.cuh"
#include "landmark_sums.cuh"
#include "sparse_backward_jobs.cuh"
#include "tma.cuh"

namespace dsalt::cuda::hopper {

template <class T, int kHead, int kQueries>
struct LandmarkBackward {
  using Element = T;
  using Queries = QueryRows<kQueries, false>;  // of rows with a soft edge, too: their first part
  using Job = LandmarkJob;
  static constexpr int head = kHead, queries = kQueries;
  static constexpr bool soft = false;
  static constexpr int keys = LandmarkJob::keys, stages = 3, boxes = kHead / 64, query_boxes = kQueries / 64;
  static constexpr int consumers = 256, threads = consumers + 128, blocks_per_multiprocessor = 1;
  static constexpr std::uint32_t key_bytes = keys * kHead * 2, query_bytes = kQueries * kHead * 2,
                                 ds_bytes = keys * 64 * 2, rows_bytes = sizeof(Queries);

  struct Barriers {
    Barrier q_full[stages], do_full[stages], empty[stages];
  };
  struct Step {
    int tile;    // -1: the job ends; -2: there are no more jobs
    int place;   // of the tile in the segment
    bool first;  // nobody has met the tile: O is there too
  };
  /// Those that somebody may still look at when the copying warp starts another.
  static constexpr int jobs_at_once = stages + 2;
  // Shared memory: K, V, then per stage Q, dO and O, a dS for each warpgroup, delta of the segment, rows, jobs,
  // barriers, landmarks, steps, the cursor.
  static constexpr std::uint32_t q_at = 2 * key_bytes, do_at = q_at + stages * query_bytes,
                                 out_at = do_at + stages * query_bytes, ds_at = out_at + stages * query_bytes,
                                 delta_at = ds_at + 2 * ds_bytes,
                                 rows_at = delta_at + LandmarkSegments::most_rows * sizeof(float),
                                 jobs_at = rows_at + stages * rows_bytes,
                                 barriers_at = jobs_at + jobs_at_once * sizeof(Job),
                                 names_at = barriers_at + sizeof(Barriers), bias_at = names_at + keys * sizeof(int),
                                 steps_at = bias_at + keys * sizeof(float),
                                 cursor_at = steps_at + stages * sizeof(Step);
  static constexpr std::uint32_t shared_bytes = 1024 + cursor_at + sizeof(LandmarkCursor);
  static_assert(shared_bytes <= 227 * 1024);
  static_assert(jobs_at % alignof(Job) == 0 && barriers_at % 8 == 0);

  struct Parameters {
    CUtensorMap q, dout, out;
    DenseCall call;  // tiles: of queries
    AttentionCall<T> sparse;
    QuerySlots slots;
    Queries* rows;           // of slot 0; delta: -dlse at first, and only then read
    std::int64_t rows_step;  // bytes to those of the next slot
    LandmarkSums landmarks;
    LandmarkSegments segments;
    int job_count;
    int* next;  // how many were taken beyond the first of each block, 0 at first
    float inverse_scale;
  };

  unsigned char* shared;
  const Parameters& p;
  Barriers& barriers;

  __device__ LandmarkBackward(const Parameters& parameters, unsigned char* memory)
      : shared(memory), p(parameters), barriers(*reinterpret_cast<Barriers*>(memory + barriers_at)) {}

  __device__ unsigned char* k_tile() const { return shared; }
  __device__ unsigned char* v_tile() const { return shared + key_bytes; }
  __device__ unsigned char* q_tile(int stage) const { return shared + q_at + stage * query_bytes; }
  __device__ unsigned char* do_tile(int stage) const { return shared + do_at + stage * query_bytes; }
  __device__ unsigned char* out_tile(int stage) const { return shared + out_at + stage * query_bytes; }
  __device__ unsigned char* ds_tile(int warpgroup) const { return shared + ds_at + warpgroup * ds_bytes; }
  __device__ float* delta(int place) const { return reinterpret_cast<float*>(shared + delta_at) + place * kQueries; }
  __device__ Queries& query_rows(int stage) const {
    return *reinterpret_cast<Queries*>(shared + rows_at + stage * rows_bytes);
  }
  __device__ Step& step_of(int n) const { return reinterpret_cast<Step*>(shared + steps_at)[n % stages]; }
  __device__ Job& job(int n) const { return reinterpret_cast<Job*>(shared + jobs_at)[n % jobs_at_once]; }
  __device__ LandmarkCursor& cursor() const { return *reinterpret_cast<LandmarkCursor*>(shared + cursor_at); }
  __device__ int* names() const { return reinterpret_cast<int*>(shared + names_at); }
  __device__ float* biases() const { return reinterpret_cast<float*>(shared + bias_at); }
  __device__ Queries* rows_of_slot(std::int64_t slot) const {
    return reinterpret_cast<Queries*>(reinterpret_cast<unsigned char*>(p.rows) + slot * p.rows_step);
  }
  __device__ std::int64_t slot(const Job& job, int tile) const {
    return p.slots.slot(p.call, kQueries, job.sequence, job.head, tile);
  }

  __device__ void init_barriers() const {
    for (int stage = 0; stage < stages; ++stage) {
      barrier_init(&barriers.q_full[stage], 1);
      barrier_init(&barriers.do_full[stage], 1);
      barrier_init(&barriers.empty[stage], consumers / 32 * arrivals_of_warp());
    }
  }

  /// The copying thread. The last segment comes first: the windows' kernel begins with the first one's queries, which
  /// are in L2 then.
  __device__ void produce() const {
    LandmarkCursor& at = cursor();
    int n = 0, jobs = 0;
    for (int number = static_cast<int>(blockIdx.x); number < p.job_count;
         number = static_cast<int>(gridDim.x) + atomicAdd(p.next, 1)) {
      at.start_segment(p.call, p.segments, p.job_count - 1 - number);
      while (at.template next_run<kQueries>(p.call, p.sparse))
        for (; at.list <= at.last_list; ++at.list) {
          at.start_list(p.sparse);
          do {
            Job& job = this->job(jobs);
            at.template start_job<kQueries>(p.sparse, job);
            const int first_step = n;
            for (int tile = job.first_tile; tile < job.end_tile; ++tile)
              if (job.meets(tile * kQueries) || (tile + 1) * kQueries > job.seeing) send(job, n++, tile);
            if (n != first_step) {
              send_end(n++, -1);
              ++jobs;
            }
            at.block += keys;
          } while (at.block < at.count);
        }
    }
    send_end(n, -2);
  }
  __device__ void wait_until_empty(int n) const { barrier_wait(&barriers.empty[n % stages], n / stages % 2 ^ 1); }
  __device__ void send(const Job& job, int n, int tile) const {
    const int stage = n % stages, row = job.extent.q_start + tile * kQueries,
              sequence = p.call.cu_q.present() ? 0 : job.sequence;
    const bool first = job.meets(tile * kQueries);
    const auto load = [&](unsigned char* to, const CUtensorMap& from, Barrier* full) {
      for (int box = 0; box < boxes; ++box)
        tma_load(to + box * kQueries * 128, &from, full, 64 * box, row, job.head, sequence);
    };
    wait_until_empty(n);
    step_of(n) = {tile, job.first_place + tile, first};
    barrier_expect(&barriers.q_full[stage], query_bytes + rows_bytes);
    load(q_tile(stage), p.q, &barriers.q_full[stage]);
    bulk_load(&query_rows(stage), rows_of_slot(slot(job, tile)), rows_bytes, &barriers.q_full[stage]);
    barrier_expect(&barriers.do_full[stage], query_bytes * (first ? 2 : 1));
    load(do_tile(stage), p.dout, &barriers.do_full[stage]);
    if (first) load(out_tile(stage), p.out, &barriers.do_full[stage]);
  }
  /// Step n is no tile but a mark, -1 or -2: Step.
  __device__ void send_end(int n, int tile) const {
    wait_until_empty(n);
    step_of(n) = {tile, 0, false};
    barrier_arrive(&barriers.q_full[n % stages]);
    barrier_arrive(&barriers.do_full[n % stages]);
  }

  __device__ __forceinline__ void run(int thread) {
    if (thread >= consumers) {
      fewer_registers<24>();
      if (thread == consumers) produce();
    } else {
      more_registers<240>();
      LandmarkBackwardConsumer<LandmarkBackward>(*this, thread).run();
    }
  }
};

}  // namespace dsalt::cuda::hopper
