// The work of attention: tiles of queries, segments of their contexts, and how one is computed.
#pragma once
#include <algorithm>
#include <vector>

#include "attention_int8.h"
#include "attention_softmax.h"

namespace enginebay {

constexpr int64_t kSegment = 256;
constexpr int64_t kTileRows = 192;  // queries times heads of a group that share keys and values
constexpr int64_t kRowScores = kSegment + 32;  // from row to row: rows a power of two apart crowd the nearest cache
constexpr int64_t kRows = 32;       // of these, as many as packed blocks are multiplied with at a time
constexpr int64_t kTile = kRows / 2;  // and as many as an AMX tile has: two such parts are in work at a time

// Queries [first, end) of a request, at positions from `position` on, with `heads` key heads from `head` on.
struct Tile {
  int64_t request, first, end, position, head, heads, segments_from, segments_end;
};

// Rows of a tile from `first` on, and the tokens [begin, end) of a stretch that some of them see: `scored` groups of 16,
// `steps` units. None: they see nothing.
struct Chunk {
  int64_t first, rows, begin, end, scored, steps;
};

// Of each row: its largest score, the sums of its weights [16, to be added up at the end], the weighted values [width].
struct Part {
  float* peak;
  float* total;
  float* values;
};

// Queries are as they are, or, for a cache of int8, digits: see attention_int8_products.h.
template <class T, class C>
struct Plan {
  using Query = std::conditional_t<int8<C>, int8_t, T>;
  const Attention<T, C>& a;
  const T* q;
  bool direct;                // blocks are packed
  int64_t group, deep, wide;  // queries of a key head; numbers of a query and of a value as the products take them

  Plan(const Attention<T, C>& a, const T* q)
      : a(a), q(q), direct(packed(a)), group(a.heads / a.kv_heads),
        deep(int8<C> ? 2 * stored_key(a.key_size) : padded<T>(a.key_size)),
        wide(direct ? (a.value_size + kLanes - 1) / kLanes * kLanes : (a.value_size + kBlock - 1) / kBlock * kBlock) {}
  int64_t head_rows(const Tile& t) const { return (t.end - t.first) * group; }  // those of a head lie together
  int64_t rows(const Tile& t) const { return head_rows(t) * t.heads; }
  int64_t part_floats(int64_t rows) const { return rows * (wide + 16) + (rows + 15) / 16 * 16; }
  Part part(float* at, int64_t rows) const {
    float* const total = at + (rows + 15) / 16 * 16;
    return {at, total, total + rows * 16};
  }
  std::vector<Tile> tiles() const;
  int64_t query_bytes(int64_t rows) const;
  int64_t scales_at(const Tile& t) const { return rows(t) * deep; }  // of int8: where queries' scales follow digits
  void gather(const Tile& t, Query* queries) const;
  void gather_digits(const Tile& t, int8_t* queries, float* scales) const;
  int64_t scratch_bytes(int64_t rows) const;
  int64_t int8_scratch_bytes() const;
  void nothing(int64_t count, Part into) const;
  Stretch stretch(const Tile& t, int64_t head, int64_t number) const;
  void segment(const Tile& t, int64_t number, const Query* queries, Part into, char* scratch, const Tile* after) const;
  void read_packed(const Tile& t, const Stretch& now, const T* queries, Part into, char* scratch,
                   const Stretch& next) const;
  void read_int8(const Tile& t, const Stretch& now, const int8_t* queries, const float* scales, Part into,
                 char* scratch, const Stretch& next) const;
  void read_plain(const Tile& t, const Stretch& now, const T* queries, Part into, char* scratch) const;
  void finish(const Tile& t, Part part, T* out) const;
};

template <class T, class C>
void Plan<T, C>::nothing(int64_t count, Part into) const {
  std::fill(into.peak, into.peak + count, kNone);
  std::fill(into.total, into.total + count * 16, 0.0f);
  std::fill(into.values, into.values + count * wide, 0.0f);
}

}  // namespace enginebay
