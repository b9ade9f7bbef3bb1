// The sparse backward kernel. A block has up to 128 keys of a kv head, a tile of consecutive keys or landmarks of one
// list, and walks the query tiles that admit some of them, for every query head that reads them.
//
//   S^T = K Q^T, P^T = exp2(scale_log2 (S^T + bias) - lse_log2), dP^T = V dO^T, dS^T = P^T (dP^T - delta)
//   dV += P^T dO,  dK += dS^T Q          sums in registers, operand A straight from registers
//   dQ += dS K                           dS through shared memory; added to float32 sums in global memory
//
// One warp copies, two warpgroups compute 64 keys each. A key that is somebody's landmark gets its gradient from
// several blocks: these add to float32 sums that a last kernel rounds. Additions come in any order.
#pragma once

#include "../attention_call.cuh"
#include "../mma.cuh"
#include "backward_fragments.cuh"
#include "dense_call.cuh"
#include "sparse_masks.cuh"
#include "tma.cuh"

namespace dsalt::cuda::hopper {

/// What the kernels know of a query tile (a slot, QuerySlots) of `rows` rows: rows that do not exist have lse_log2 =
/// inf (their weights are 0).
template <int rows, bool soft>
struct QueryRows {
  float lse[rows], delta[rows];   // lse * log2(e), delta - dlse
  int begin[rows], length[rows];  // keys of the window
};
template <int rows>
struct QueryRows<rows, true> : QueryRows<rows, false> {
  RowEdge edge[rows];
};

/// Float32 sums of the gradients of keys that are landmarks. A place is that of a key among those of all kv heads:
/// [B,Hkv,Nk] or, packed, [Hkv,R].
struct LandmarkSums {
  std::int32_t* row = nullptr;    // [places]: 1 + its row of dk_dv; 0: not a landmark; null: there are no lists
  std::int32_t* place = nullptr;  // [rows]: the inverse
  std::int32_t* rows = nullptr;   // how many
  float* dk_dv = nullptr;         // [rows, 2 D], dk not yet scaled
  float* dlambda = nullptr;       // [B, row heads, T, K], in the order of clean lists; null: not wanted
};
template <class T>
__device__ inline std::int64_t key_place(const AttentionCall<T>& call, std::int64_t b, int kv_head,
                                         std::int64_t k_start, int key) {
  return call.packed ? kv_head * call.nk + k_start + key : (b * call.kv_heads + kv_head) * call.nk + key;
}

template <class T, int kHead, int kQueries, bool kSoft>
struct SparseBackward {
  using Queries = QueryRows<kQueries, kSoft>;
  static constexpr int keys = 128, stages = 2, boxes = kHead / 64, query_boxes = kQueries / 64;
  static constexpr int consumers = 256, threads = consumers + 128, blocks_per_multiprocessor = 1;
  static constexpr std::uint32_t key_bytes = keys * kHead * 2, query_bytes = kQueries * kHead * 2,
                                 ds_bytes = keys * kQueries * 2, rows_bytes = sizeof(Queries);
  static constexpr bool soft = kSoft;
  static_assert(query_boxes * boxes == 2, "dQ is cut into two 64 x 64 products");

  struct Barriers {
    Barrier keys_full, q_full[stages], do_full[stages], empty[stages];
  };
  /// A query tile of the walk.
  struct Step {
    int head, tile;              // tile -1: the end
    int whole_begin, whole_end;  // keys that every row of it admits as window, without an edge
  };
  // Shared memory: K, V, then per stage Q and dO, two dS, rows, steps, landmarks, barriers.
  static constexpr std::uint32_t q_at = 2 * key_bytes, do_at = q_at + stages * query_bytes,
                                 ds_at = do_at + stages * query_bytes, rows_at = ds_at + 2 * ds_bytes,
                                 steps_at = rows_at + stages * rows_bytes, names_at = steps_at + stages * sizeof(Step),
                                 bias_at = names_at + keys * sizeof(int), barriers_at = bias_at + keys * sizeof(float);
  static constexpr std::uint32_t shared_bytes = 1024 + barriers_at + sizeof(Barriers);
  static_assert(shared_bytes <= 227 * 1024);

  struct Parameters {
    CUtensorMap q, k, v, dout;
    DenseCall call;  // tiles: of keys
    AttentionCall<T> sparse;
    QuerySlots slots;
    const Queries* rows;       // [slots]
    const RowExtent* extents;  // [slots]
    const int* first_tiles;    // [heads, key tiles]: the query tiles [first, end) that may admit keys of it
    const int* end_tiles;
    LandmarkSums landmarks;
    int landmark_jobs, blocks_per_list, segments;  // jobs: the first blocks of the grid
    Rows<T> dk, dv;
    float* dwindow;  // [slots, rows]; null: not wanted
    float scale, inverse_scale;
  };

  unsigned char* shared;
  const Parameters& p;
  Barriers& barriers;

  // This block's keys, and who may read them.
  bool idle = false, is_list = false;
  int sequence = 0, kv_head = 0, first_head = 0, heads = 1;
  int first_key = 0;                                                   // of a tile; of landmarks: the place in the list
  int valid = 0;                                                       // keys that exist, at most 128
  int first_tile = 0, last_tile = 0, first_query = 0, last_query = 0;  // landmarks: of the list and this block
  std::int64_t first_entry = 0, key_slots = 0;
  const std::int32_t *index = nullptr, *list_slot = nullptr;
  std::int64_t list = 0;
  Extent extent{};

  __device__ SparseBackward(const Parameters& parameters, unsigned char* memory)
      : shared(memory), p(parameters), barriers(*reinterpret_cast<Barriers*>(memory + barriers_at)) {}

  /// Reads lengths from global memory, so it may not be called before run().
  __device__ void locate() {
    int n = static_cast<int>(blockIdx.x);
    is_list = n < p.landmark_jobs;
    is_list ? locate_list(n) : locate_tile(n - p.landmark_jobs);
  }
  __device__ void locate_tile(int n) {
    const DenseCall& call = p.call;
    heads = call.hq / call.hkv;
    int tile;
    if (call.packed_tiles != nullptr) {
      const int2 place = call.packed_tiles[n % call.tiles];
      kv_head = n / call.tiles;
      sequence = place.x;
      tile = place.y;
      idle = sequence < 0;
    } else {
      tile = n % call.tiles;
      kv_head = n / call.tiles % call.hkv;
      sequence = n / call.tiles / call.hkv;
    }
    if (idle) return;
    first_head = kv_head * heads;
    extent = extent_of(call, sequence);
    first_key = tile * keys;
    valid = min(keys, extent.nk - first_key);
    key_slots = key_tile_slot(call, sequence, tile);
  }
  /// first_tiles and end_tiles of head h are at h key_tiles_per_head + this.
  __device__ static std::int64_t key_tile_slot(const DenseCall& call, int b, int tile) {
    if (!call.cu_k.present()) return static_cast<std::int64_t>(b) * call.hq * call.tiles + tile;
    return (call.cu_k[b] + static_cast<std::int64_t>(b) * keys) / keys + tile;
  }
  __device__ static std::int64_t key_tile_slots_per_head(const DenseCall& call) {
    return call.cu_k.present() ? call.nk / keys + call.batch + 1 : call.tiles;
  }
  __device__ void locate_list(int n) {
    const AttentionCall<T>& sparse = p.sparse;
    const int segment = n % p.segments, block = n / p.segments % p.blocks_per_list;
    const int bzt = n / p.segments / p.blocks_per_list, z = bzt / static_cast<int>(sparse.lists) % sparse.row_heads;
    list = bzt % sparse.lists;
    sequence = bzt / static_cast<int>(sparse.lists) / sparse.row_heads;
    heads = sparse.heads_per_row_head;
    first_head = z * heads;
    kv_head = sparse.kv_head_of_row_head(z);
    const std::int64_t clean =
        (static_cast<std::int64_t>(sequence) * sparse.list_heads + sparse.list_head(z)) * sparse.lists + list;
    first_key = block * keys;
    valid = min(keys, sparse.clean.count[clean] - first_key);
    index = sparse.clean.index + clean * sparse.slots;
    list_slot = sparse.clean.slot + clean * sparse.slots;
    first_entry = bzt * sparse.slots + first_key;
    extent = extent_of(p.call, sequence);
    idle = valid <= 0;
    if (idle) return;
    first_query = 0;
    last_query = extent.nq;
    if (sparse.chunk != 0) {  // somebody reads the list, so it starts before the last query
      const std::int64_t start = list * sparse.chunk - sparse.chunk_offset;
      first_query = static_cast<int>(max(start, std::int64_t{0}));
      last_query = static_cast<int>(min(start + sparse.chunk, static_cast<std::int64_t>(extent.nq)));
    }
    int first = first_query;  // the first that can see a landmark of the block
    if (!sparse.bidirectional) first = max(first, index[first_key] - (extent.nk - extent.nq));
    first_tile = first_query / kQueries + segment * tiles_of_segment;
    last_tile = min(first_tile + tiles_of_segment, (last_query + kQueries - 1) / kQueries);
    first_tile = max(first_tile, first / kQueries);
    idle = first_tile >= last_tile;
  }
  static constexpr int tiles_of_segment = 1024 / kQueries;

  __device__ unsigned char* k_tile() const { return shared; }
  __device__ unsigned char* v_tile() const { return shared + key_bytes; }
  __device__ unsigned char* q_tile(int stage) const { return shared + q_at + stage * query_bytes; }
  __device__ unsigned char* do_tile(int stage) const { return shared + do_at + stage * query_bytes; }
  __device__ unsigned char* ds_tile(int n) const { return shared + ds_at + n % 2 * ds_bytes; }
  __device__ Queries& query_rows(int stage) const {
    return *reinterpret_cast<Queries*>(shared + rows_at + stage * rows_bytes);
  }
  __device__ Step& step_of(int stage) const { return reinterpret_cast<Step*>(shared + steps_at)[stage]; }
  __device__ int* names() const { return reinterpret_cast<int*>(shared + names_at); }
  __device__ float* biases() const { return reinterpret_cast<float*>(shared + bias_at); }

  __device__ void init_barriers() const {
    barrier_init(&barriers.keys_full, 1);
    for (int stage = 0; stage < stages; ++stage) {
      barrier_init(&barriers.q_full[stage], 1);
      barrier_init(&barriers.do_full[stage], 1);
      barrier_init(&barriers.empty[stage], consumers / 32 * arrivals_of_warp());
    }
  }

  /// The copying warp.
  __device__ void produce(int lane) {
    const int entry = p.call.cu_q.present() ? 0 : sequence;
    bool keys_sent = is_list;
    int n = 0;
    for (int head = first_head; head < first_head + heads; ++head) {
      int first = first_tile, last = last_tile;
      if (!is_list) {
        const std::int64_t at = key_slots + head * key_tile_slots_per_head(p.call);
        first = p.first_tiles[at];
        last = p.end_tiles[at];
      }
      for (int base = first; base < last; base += 32) {
        const int mine = base + lane;
        RowExtent rows;
        bool wanted = mine < last;
        if (wanted) {
          rows = p.extents[p.slots.slot(p.call, kQueries, sequence, head, mine)];
          if (!is_list) wanted = rows.begin < first_key + keys && rows.end > first_key;
        }
        for (unsigned left = __ballot_sync(0xffffffffu, wanted); left != 0; left &= left - 1) {
          const int from = __ffs(left) - 1;
          const Step step{head, base + from, __shfl_sync(0xffffffffu, rows.whole_begin, from),
                          __shfl_sync(0xffffffffu, rows.whole_end, from)};
          if (lane == 0) {
            if (!keys_sent) send_keys(entry);
            send(n, step, entry);
          }
          keys_sent = true;
          ++n;
        }
      }
    }
    if (lane != 0) return;
    const int stage = n % stages;
    barrier_wait(&barriers.empty[stage], n / stages % 2 ^ 1);
    step_of(stage).tile = -1;
    barrier_arrive(&barriers.q_full[stage]);
  }
  __device__ void send_keys(int entry) const {
    barrier_expect(&barriers.keys_full, 2 * key_bytes);
    for (int box = 0; box < boxes; ++box) {
      tma_load(k_tile() + box * keys * 128, &p.k, &barriers.keys_full, 64 * box, extent.k_start + first_key, kv_head,
               entry);
      tma_load(v_tile() + box * keys * 128, &p.v, &barriers.keys_full, 64 * box, extent.k_start + first_key, kv_head,
               entry);
    }
  }
  __device__ void send(int n, const Step& step, int entry) const {
    const int stage = n % stages, row = extent.q_start + step.tile * kQueries;
    barrier_wait(&barriers.empty[stage], n / stages % 2 ^ 1);
    step_of(stage) = step;
    barrier_expect(&barriers.q_full[stage], query_bytes + rows_bytes);
    for (int box = 0; box < boxes; ++box)
      tma_load(q_tile(stage) + box * kQueries * 128, &p.q, &barriers.q_full[stage], 64 * box, row, step.head, entry);
    bulk_load(&query_rows(stage), p.rows + p.slots.slot(p.call, kQueries, sequence, step.head, step.tile), rows_bytes,
              &barriers.q_full[stage]);
    barrier_expect(&barriers.do_full[stage], query_bytes);
    for (int box = 0; box < boxes; ++box)
      tma_load(do_tile(stage) + box * kQueries * 128, &p.dout, &barriers.do_full[stage], 64 * box, row, step.head,
               entry);
  }

  struct Consumer {
    SparseBackward& f;
    int thread, half, warp, lane, key_row;  // half: which 64 keys; key_row: of the tile, of this thread (and 8 below)
    float dk[kHead / 2], dv[kHead / 2];
    float dlambda[2] = {0, 0};
    int key[2];  // no_key: there is none
    float bias[2] = {0, 0};

    __device__ Consumer(SparseBackward& backward, int number)
        : f(backward),
          thread(number),
          half(number / 128),
          warp(number / 32 % 4),
          lane(number % 32),
          key_row(64 * (number / 128) + 16 * (number / 32 % 4) + number % 32 / 4) {}

    __device__ void release(Barrier* barrier) const { release_by_warp(barrier, lane); }

    __device__ void issue_key_query(float (&d)[kQueries / 2], const unsigned char* key_tile,
                                    const unsigned char* query_tile) const {
      issue_k_major<T, kHead, kQueries, keys, kQueries>(d, key_tile + half * 64 * 128, query_tile);
    }

    __device__ void run() {
#pragma unroll
      for (int n = 0; n < kHead / 2; ++n) dk[n] = dv[n] = 0;
      if (f.is_list) gather();
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int n = key_row + 8 * r;
        key[r] = n >= f.valid ? no_key : f.is_list ? f.names()[n] : f.first_key + n;
        if (f.is_list) bias[r] = f.biases()[n];
      }
      bool has_keys = f.is_list;
      for (int n = 0;; ++n) {
        barrier_wait(&f.barriers.q_full[n % stages], n / stages % 2);
        const Step now = f.step_of(n % stages);
        if (now.tile < 0) break;
        if (!has_keys) wait_for_keys();
        has_keys = true;
        const int first = f.first_key + 64 * half;
        const bool whole = !f.is_list && first >= now.whole_begin && first + 64 <= now.whole_end &&
                           first + 64 <= f.extent.nk && (now.tile + 1) * kQueries <= f.extent.nq;
        if (f.is_list && f.valid <= 64)
          half == 0 ? step<Kind::few_landmarks>(n, now) : step_without_keys(n, now);
        else if (f.is_list)
          step<Kind::landmarks>(n, now);
        else if (whole)
          step<Kind::whole>(n, now);
        else
          step<Kind::window>(n, now);
      }
      store();
    }

    __device__ void wait_for_keys() const {
      barrier_wait(&f.barriers.keys_full, 0);
      if (f.valid >= keys || !f.p.call.shares_tails()) return;  // keys past the last are somebody else's
      clear_rows(f.k_tile(), f.valid, keys, boxes, thread, consumers);
      clear_rows(f.v_tile(), f.valid, keys, boxes, thread, consumers);
      named_sync(1, consumers);
    }

    /// Brings the block's landmarks: names, keys and values, as tiles like those that TMA writes.
    __device__ void gather() const {
      const AttentionCall<T>& call = f.p.sparse;
      if (thread < keys) {
        const bool exists = thread < f.valid;
        f.names()[thread] = exists ? f.index[f.first_key + thread] : no_key;
        const float weight =
            exists ? call.log_weight(f.sequence, f.first_head, f.list, f.list_slot[f.first_key + thread]) : 0.0f;
        f.biases()[thread] = landmark_bias(weight, f.p.inverse_scale);
      }
      const T* k = call.k.at(call.packed ? 0 : f.sequence, f.kv_head, f.extent.k_start);
      const T* v = call.v.at(call.packed ? 0 : f.sequence, f.kv_head, f.extent.k_start);
      constexpr int pieces = kHead / 8;  // of 16 bytes
      const int piece = thread % pieces, box = piece / 8, inside = piece % 8;
      for (int n = thread / pieces; n < keys; n += consumers / pieces) {
        const int key_ = n < f.valid ? f.index[f.first_key + n] : 0, bytes = n < f.valid ? 16 : 0;
        const int at = (box * keys + n) * 128 + (inside ^ n % 8) * 16;
        copy_async_16(f.k_tile() + at, k + key_ * call.k.row + piece * 8, bytes);
        copy_async_16(f.v_tile() + at, v + key_ * call.v.row + piece * 8, bytes);
      }
      copy_async_commit();
      copy_async_wait<0>();
      async_proxy_fence();
      named_sync(1, consumers);
    }

    enum class Kind { whole, window, landmarks, few_landmarks };  // few: at most 64

    /// Whether the thread's key r is admitted by row `query` of the tile that starts at row0.
    template <Kind kind>
    __device__ bool admits(int r, int query, int begin, int length, int row0) const {
      const bool in_window = static_cast<unsigned>(key[r] - begin) < static_cast<unsigned>(length);
      if constexpr (kind == Kind::window) return in_window;
      const int i = row0 + query;
      return !in_window && key[r] != no_key && i >= f.first_query && i < f.last_query &&
             (f.p.sparse.bidirectional || key[r] <= i + f.extent.nk - f.extent.nq);
    }

    template <Kind kind>
    __device__ void step(int n, const Step& now) {
      constexpr bool masked = kind != Kind::whole, listed = kind == Kind::landmarks || kind == Kind::few_landmarks;
      const int stage = n % stages, parity = n / stages % 2, row0 = now.tile * kQueries;
      const int queries = f.extent.nq - row0;  // valid ones
      const std::int64_t slot = f.p.slots.slot(f.p.call, kQueries, f.sequence, now.head, now.tile);
      float s[kQueries / 2], dp[kQueries / 2];
      std::uint32_t weights[kQueries / 16][4], ds[kQueries / 16][4];

      clear_tail(stage, parity, queries);
      issue_key_query(s, f.k_tile(), f.q_tile(stage));
      barrier_wait(&f.barriers.do_full[stage], parity);
      issue_key_query(dp, f.v_tile(), f.do_tile(stage));

      const Queries& rows = f.query_rows(stage);
      wgmma_wait<1>();
      keep_in_registers(s);
      const float scale = f.p.call.scale_log2, inverse_tau = kSoft ? static_cast<float>(1 / f.p.sparse.tau) : 0;
#pragma unroll
      for (int c = 0; c < kQueries / 8; ++c) {
        const int column = 8 * c + lane % 4 * 2;
        const float2 l = *reinterpret_cast<const float2*>(rows.lse + column);
        int2 begin, length;
        if constexpr (masked) {
          begin = *reinterpret_cast<const int2*>(rows.begin + column);
          length = *reinterpret_cast<const int2*>(rows.length + column);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float& value = s[4 * c + i];
          float offset = i % 2 ? -l.y : -l.x;
          if constexpr (listed) value += bias[i / 2];  // as the forward pass does
          if constexpr (kSoft && kind == Kind::window) {
            const float z = rows.edge[column + i % 2].argument(key[i / 2], inverse_tau);
            if (z != INFINITY) offset += log2_sigmoid(z);
          }
          if constexpr (listed)
            value = landmark_weight(__fmul_rn(value, scale), -offset);
          else
            value = exp2_fast(fmaf(value, scale, offset));
          if constexpr (masked)
            if (!admits<kind>(i / 2, column + i % 2, i % 2 ? begin.y : begin.x, i % 2 ? length.y : length.x, row0))
              value = 0;
        }
      }
      wgmma_wait<0>();
      keep_in_registers(dp);
#pragma unroll
      for (int k = 0; k < kQueries / 16; ++k)
#pragma unroll
        for (int part = 0; part < 2; ++part) {  // eight queries
          const int c = 2 * k + part;
          const float2 d = *reinterpret_cast<const float2*>(rows.delta + 8 * c + lane % 4 * 2);
          float dwindow[2] = {0, 0};
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const float p0 = s[4 * c + 2 * r], p1 = s[4 * c + 2 * r + 1];
            float d0 = p0 * (dp[4 * c + 2 * r] - d.x), d1 = p1 * (dp[4 * c + 2 * r + 1] - d.y);
            if constexpr (masked) {  // what is not seen may be NaN
              d0 = p0 == 0 ? 0 : d0;
              d1 = p1 == 0 ? 0 : d1;
            }
            if constexpr (listed) dlambda[r] += d0 + d1;
            weights[k][2 * part + r] = narrow_pair<T>(p0, p1);
            ds[k][2 * part + r] = narrow_pair<T>(d0, d1);
            if constexpr (kSoft && kind == Kind::window) {
              const RowEdge* edge = rows.edge + 8 * c + lane % 4 * 2;
              dwindow[0] += d0 * edge[0].slope(key[r], inverse_tau);
              dwindow[1] += d1 * edge[1].slope(key[r], inverse_tau);
            }
          }
          if constexpr (kSoft && kind == Kind::window) add_dwindow(dwindow, slot * kQueries + 8 * c + lane % 4 * 2);
        }
      unsigned char* shared_ds = f.ds_tile(n);
      store_transposed<keys>(shared_ds, ds, half, warp, lane);
      async_proxy_fence();
      issue_weighted_rows<T, kQueries, kHead>(dv, weights, f.do_tile(stage));
      named_sync(1, consumers);  // both halves of dS are there; the one of two steps ago is no longer read
      float dq[32];
      issue_query_gradient<T, keys, query_boxes, boxes, kind == Kind::few_landmarks ? 64 : keys>(dq, shared_ds,
                                                                                                 f.k_tile(), half);
      issue_weighted_rows<T, kQueries, kHead>(dk, ds, f.q_tile(stage));
      wgmma_wait<1>();
      keep_in_registers(dv);
      keep_in_registers(dq);
      add_query_gradient(f.p.slots.dq + slot * (kQueries * kHead), dq, half, thread);
      wgmma_wait<0>();
      keep_in_registers(dk);
      release(&f.barriers.empty[stage]);
    }

    /// The other warpgroup has all keys: this one only multiplies its part of dQ.
    __device__ void step_without_keys(int n, const Step& now) {
      const int stage = n % stages, parity = n / stages % 2;
      clear_tail(stage, parity, f.extent.nq - now.tile * kQueries);
      barrier_wait(&f.barriers.do_full[stage], parity);
      named_sync(1, consumers);
      float dq[32];
      issue_query_gradient<T, keys, query_boxes, boxes, 64>(dq, f.ds_tile(n), f.k_tile(), half);
      wgmma_wait<0>();
      keep_in_registers(dq);
      const std::int64_t slot = f.p.slots.slot(f.p.call, kQueries, f.sequence, now.head, now.tile);
      add_query_gradient(f.p.slots.dq + slot * (kQueries * kHead), dq, half, thread);
      release(&f.barriers.empty[stage]);
    }
    /// Packed: the rows below the sequence's last are another one's.
    __device__ void clear_tail(int stage, int parity, int queries) const {
      if (queries >= kQueries || !f.p.call.cu_q.present()) return;
      barrier_wait(&f.barriers.do_full[stage], parity);
      clear_rows(f.q_tile(stage), queries, kQueries, boxes, thread, consumers);
      clear_rows(f.do_tile(stage), queries, kQueries, boxes, thread, consumers);
      named_sync(1, consumers);
    }

    /// dw_i += sum_j dS_ij (1 - sigma(z_ij)) / tau: what this thread has of two neighbouring rows.
    __device__ void add_dwindow(const float (&mine)[2], std::int64_t at) const {
      if (f.p.dwindow == nullptr || !__any_sync(0xffffffffu, mine[0] != 0 || mine[1] != 0)) return;
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        float sum = mine[side];
#pragma unroll
        for (int step = 4; step < 32; step *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
        if (lane < 4 && sum != 0) atomicAdd(f.p.dwindow + at + side, sum);
      }
    }

    /// Padded: keys past k_lengths get zeros. Packed: rows of other sequences are left alone.
    __device__ void store() {
      const LandmarkSums& sums = f.p.landmarks;
      const int end = f.p.call.cu_q.present() ? f.extent.nk : f.p.call.nk;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = f.is_list ? key[r] : f.first_key + key_row + 8 * r;
        const bool exists = f.is_list ? row != no_key : row < end;
        int sum_row = -1;
        if (sums.row != nullptr && exists)
          sum_row = sums.row[key_place(f.p.sparse, f.sequence, f.kv_head, f.extent.k_start, row)] - 1;
        if (sum_row >= 0) {
          float* to = sums.dk_dv + static_cast<std::int64_t>(sum_row) * 2 * kHead + lane % 4 * 2;
#pragma unroll
          for (int c = 0; c < kHead / 8; ++c) {
            reduce_add(to + 8 * c, dk[4 * c + 2 * r], dk[4 * c + 2 * r + 1]);
            reduce_add(to + kHead + 8 * c, dv[4 * c + 2 * r], dv[4 * c + 2 * r + 1]);
          }
        }
        if (f.is_list) {
          if (sums.dlambda == nullptr) continue;
          float sum = dlambda[r];
          sum += __shfl_xor_sync(0xffffffffu, sum, 1);
          sum += __shfl_xor_sync(0xffffffffu, sum, 2);
          if (exists && lane % 4 == 0) atomicAdd(sums.dlambda + f.first_entry + key_row + 8 * r, sum);
          continue;
        }
        const bool mine = exists && sum_row < 0;
        const std::int64_t at = f.extent.k_start + row;
        store_row(f.p.dk.at(f.sequence, f.kv_head, at), mine, dk, r, f.p.scale, lane);
        store_row(f.p.dv.at(f.sequence, f.kv_head, at), mine, dv, r, 1.0f, lane);
      }
    }
  };

  __device__ void run(int thread) {
    locate();
    if (thread >= consumers) {
      fewer_registers<24>();
      if (thread < consumers + 32 && !idle) produce(thread - consumers);
    } else {
      more_registers<240>();
      if (!idle) Consumer(*this, thread).run();
    }
  }
};

/// Before: what the main kernel reads of a query tile, zeros in its sums, and the news to the key tiles that it admits.
/// One block of 128 threads per slot of a head.
template <class F, class T, int kHead, int kRows>
__global__ void __launch_bounds__(128)
    sparse_backward_prepare_kernel(DenseCall call, typename F::Parameters p, Rows<const T> out, Rows<const T> dout,
                                   Rows<const float> lse, Rows<const float> dlse, typename F::Queries* rows,
                                   RowExtent* extents, int* first_tiles, int* end_tiles) {
  const auto [b, h, m] = query_tile(call, static_cast<int>(blockIdx.x));
  if (b < 0) return;
  const Extent extent = extent_of(call, b);
  const std::int64_t slot = p.slots.slot(call, kRows, b, h, m);
  float4* dq = reinterpret_cast<float4*>(p.slots.dq + slot * kRows * kHead);
  for (int at = static_cast<int>(threadIdx.x); at < kRows * kHead / 4; at += 128) dq[at] = float4{};
  row_statistics<kHead, kRows>(b, h, m * kRows, extent, out, dout, lse, dlse, rows[slot].lse, rows[slot].delta);

  __shared__ RowExtent parts[kRows / 32];
  const int n = static_cast<int>(threadIdx.x), lane = n % 32;
  if (n < kRows) {
    AttentionRow<T> row;
    RowExtent part;
    if (m * kRows + n < extent.nq) {
      row.query = m * kRows + n;
      row.head = h;
      row.fill(p.sparse, p.sparse.sequence(b));
      part.include(row);
    }
    rows[slot].begin[n] = row.begin;
    rows[slot].length[n] = row.end - row.begin;
    if constexpr (F::soft) rows[slot].edge[n] = RowEdge::of(row);
    if (p.dwindow != nullptr) p.dwindow[slot * kRows + n] = 0;
    part.reduce();
    if (lane == 0) parts[n / 32] = part;
  }
  __syncthreads();
  if (n >= 32) return;
  RowExtent all = parts[lane % (kRows / 32)];
  all.reduce();
  if (lane == 0) extents[slot] = all;
  if (all.begin >= all.end) return;
  const std::int64_t tiles = F::key_tile_slot(p.call, b, 0) + h * F::key_tile_slots_per_head(p.call);
  for (int tile = all.begin / F::keys + lane; tile * F::keys < all.end; tile += 32) {
    atomicMin(first_tiles + tiles + tile, m);
    atomicMax(end_tiles + tiles + tile, m + 1);
  }
}

}  // namespace dsalt::cuda::hopper
