// Which landmarks and which query tiles a block of the landmark backward kernel (landmark_backward.cuh) takes next.
#pragma once

#include "backward_fragments.cuh"
#include "sparse_masks.cuh"

namespace dsalt::cuda::hopper {

/// Query tiles of one head that a block takes one after the other: jobs are segments of at most `tiles` tiles.
struct LandmarkSegments {
  static constexpr int most_rows = 1024;
  int tiles = 0, per_head = 0;  // packed: of the whole pack, where a segment may have the ends of several sequences
  int heads = 0;                // of all sequences; packed: of the pack

  /// They are numbered head by head within each stretch of queries: jobs that end together add to different keys.
  std::int64_t count() const { return static_cast<std::int64_t>(per_head) * heads; }
};

/// Up to 64 landmarks of one list, for tiles of one sequence and head.
struct LandmarkJob {
  static constexpr int keys = landmarks_of_block;

  int sequence, head, row_head, list;
  int valid;                              // landmarks, perhaps none
  int first_query, last_query;            // that read the list
  const std::int32_t *index, *list_slot;  // of the first of them
  std::int64_t first_entry;               // of dlambda
  Extent extent;
  int first_tile, end_tile;
  int first_place;  // tile t is tile `first_place` + t of the segment
  int seeing;       // queries before that one see none of the landmarks
  bool starts;      // the list's first landmarks

  /// Whether the tile from query `row0` on was not met before. Each is met, also where it admits no landmark.
  __device__ bool meets(int row0) const { return starts && row0 >= first_query; }
};

/// Where a block is in its segment: in a run of tiles of one sequence, which is the whole segment unless the call is
/// packed, and there at a list and a block of its landmarks. It lies in shared memory: the thread that uses it has few
/// registers, and what it spilled would come back late, behind all that the block writes.
struct LandmarkCursor {
  int head, first_place, place, end_place;  // places of the segment's tiles, `place` the first one of the run's
  int sequence, begin, end;                 // the run: tiles [begin, end) of a sequence
  int list, last_list, block, count;
  Extent extent;

  __device__ void start_segment(const DenseCall& queries, const LandmarkSegments& segments, int n) {
    const int outer = n % segments.heads;
    place = first_place = n / segments.heads * segments.tiles;
    end_place = min(place + segments.tiles, queries.tiles);
    head = queries.packed_tiles == nullptr ? outer % queries.hq : outer;
    sequence = queries.packed_tiles == nullptr ? outer / queries.hq : 0;
    begin = end = place;
  }
  /// Whether there is one.
  template <int kQueries, class T>
  __device__ bool next_run(const DenseCall& queries, const AttentionCall<T>& call) {
    place += end - begin;
    if (place >= end_place) return false;
    if (queries.packed_tiles == nullptr) {
      end = end_place;
    } else {
      const int2 first = queries.packed_tiles[place];
      if (first.x < 0) return false;
      sequence = first.x;
      begin = first.y;
      int after = place + 1;
      while (after < end_place && queries.packed_tiles[after].x == first.x) ++after;
      end = begin + after - place;
    }
    extent = extent_of(queries, sequence);
    list = list_of(call, begin * kQueries);
    last_list = list_of(call, min(end * kQueries, extent.nq) - 1);
    return true;
  }
  template <class T>
  __device__ static int list_of(const AttentionCall<T>& call, int query) {
    return static_cast<int>(min(call.list_of(query), call.lists - 1));
  }
  /// The first query that reads the list, of those that exist.
  template <class T>
  __device__ int first_query(const AttentionCall<T>& call) const {
    const std::int64_t query = list * call.chunk - call.chunk_offset;
    return static_cast<int>(min(max(query, std::int64_t{0}), static_cast<std::int64_t>(extent.nq)));
  }
  /// One past the last query that reads the list.
  template <class T>
  __device__ int last_query(const AttentionCall<T>& call) const {
    const std::int64_t start = list * call.chunk - call.chunk_offset;
    return call.chunk == 0 || extent.nq - start <= call.chunk ? extent.nq : static_cast<int>(start + call.chunk);
  }
  template <class T>
  __device__ std::int64_t clean_list(const AttentionCall<T>& call) const {
    return (static_cast<std::int64_t>(sequence) * call.list_heads + call.list_head(head / call.heads_per_row_head)) *
               call.lists +
           list;
  }
  template <class T>
  __device__ void start_list(const AttentionCall<T>& call) {
    block = 0;
    count = call.clean.count[clean_list(call)];
  }
  template <int kQueries, class T>
  __device__ void start_job(const AttentionCall<T>& call, LandmarkJob& job) const {
    const std::int64_t entry = clean_list(call) * call.slots + block;
    job.index = call.clean.index + entry;
    job.list_slot = call.clean.slot + entry;
    job.valid = min(LandmarkJob::keys, count - block);
    job.seeing = INT32_MAX;
    if (job.valid > 0) job.seeing = call.bidirectional ? 0 : job.index[0] - (extent.nk - extent.nq);
    job.sequence = sequence;
    job.head = head;
    job.row_head = head / call.heads_per_row_head;
    job.list = list;
    job.first_entry =
        ((static_cast<std::int64_t>(sequence) * call.row_heads + job.row_head) * call.lists + list) * call.slots +
        block;
    job.extent = extent;
    job.first_query = first_query(call);
    job.last_query = last_query(call);
    job.starts = block == 0;
    job.first_place = place - first_place - begin;
    job.first_tile = max(begin, job.first_query / kQueries);
    job.end_tile = list + 1 == call.lists ? end : min(end, (job.last_query + kQueries - 1) / kQueries);
  }
};

}  // namespace dsalt::cuda::hopper
