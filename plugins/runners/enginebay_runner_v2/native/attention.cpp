// Attention over paged keys and values: online softmax over chunks of 64 tokens, and segments of 256 that are merged.
//
// Chunks and segments begin at fixed positions of the request, so a query's result depends neither on the queries
// beside it, nor on how its prompt was cut, nor on the number of threads. A violating change begins them at the
// window's edge, or cuts a context into as many segments as there are threads.
#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "kernels.h"
#include "parallel.h"
#include "transpose.h"

namespace enginebay {
namespace {

constexpr int64_t kSegment = 256;
constexpr int64_t kTileRows = 96;  // queries times heads of a group that share packed keys and values
constexpr float kNone = -std::numeric_limits<float>::infinity();

// Queries [first, end) of a request, at positions from `position` on, with `heads` key heads from `head` on.
struct Tile {
  int64_t request, first, end, position, head, heads, segments_from, segments_end;
};

// Of each row: its largest score, the sums of its weights [16, to be added up at the end], the weighted values [width].
struct Part {
  float* peak;
  float* total;
  float* values;
};

template <class T>
struct Plan {
  const Attention<T>& a;
  const T* q;
  int64_t group, deep, wide;  // queries of a key head; key size and value size as panels take them

  Plan(const Attention<T>& a, const T* q)
      : a(a), q(q), group(a.heads / a.kv_heads), deep(padded<T>(a.key_size)),
        wide((a.value_size + kBlock - 1) / kBlock * kBlock) {}
  int64_t head_rows(const Tile& t) const { return (t.end - t.first) * group; }  // those of a head lie together
  int64_t rows(const Tile& t) const { return head_rows(t) * t.heads; }
  int64_t part_floats(int64_t rows) const { return rows * (wide + 16) + (rows + 15) / 16 * 16; }
  Part part(float* at, int64_t rows) const {
    float* const total = at + (rows + 15) / 16 * 16;
    return {at, total, total + rows * 16};
  }
  std::vector<Tile> tiles() const;
  void gather(const Tile& t, T* queries) const;
  void segment(const Tile& t, int64_t number, const T* queries, Part into, char* scratch) const;
  void chunk(const Tile& t, int64_t head, int64_t from, int64_t until, const T* queries, Part into, char* scratch) const;
  void finish(const Tile& t, Part part, T* out) const;
};

template <class T>
std::vector<Tile> Plan<T>::tiles() const {
  const int64_t step = kTileRows / group > 0 ? kTileRows / group : 1;
  std::vector<Tile> found;
  for (int64_t r = 0; r < a.requests; ++r) {
    const int64_t from = a.query_starts[r], until = a.query_starts[r + 1];
    for (int64_t first = from; first < until; first += step) {
      const int64_t end = first + step < until ? first + step : until;
      const int64_t position = a.context_lens[r] - (until - first);
      const int64_t seen = a.window && position >= a.window ? position - a.window + 1 : 0;
      // Many requests, each with few queries: all heads of one together, as their keys and values lie together.
      const bool together = a.requests >= 4 * a.threads && (end - first) * a.heads <= kTileRows;
      const int64_t heads = together ? a.kv_heads : 1;
      for (int64_t head = 0; head < a.kv_heads; head += heads)
        found.push_back({r, first, end, position, head, heads, seen / kSegment,
                         (position + (end - first) + kSegment - 1) / kSegment});
    }
  }
  return found;
}

template <class T>
void Plan<T>::gather(const Tile& t, T* queries) const {
  for (int64_t head = t.head; head < t.head + t.heads; ++head)
    for (int64_t token = t.first; token < t.end; ++token)
      for (int64_t h = 0; h < group; ++h, queries += deep) {
        std::memcpy(queries, q + (token * a.heads + head * group + h) * a.key_size, a.key_size * sizeof(T));
        std::memset(queries + a.key_size, 0, (deep - a.key_size) * sizeof(T));
      }
}

const v16 kLanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// What sums under the peak `old` are worth under the peak `now`.
v16 worth(v16 old, v16 now) { return choose(old == now, splat(1.0f), exp(old - now)); }
float worth(float old, float now) { return old == now ? 1.0f : exp(splat(old - now))[0]; }

// Scores [16 n] of one row scaled, capped and masked in place: tokens [low, high) of the chunk are seen. The largest.
float prepare(float* scores, int64_t n, int64_t low, int64_t high, float scale, float softcap) {
  v16 best = splat(kNone);
  for (int64_t i = 0; i < n; ++i) {
    v16 s = load(scores + i * 16) * scale;
    if (softcap != 0.0f) s = tanh(s / softcap) * softcap;
    if (low > i * 16 || high < i * 16 + 16) {
      const v16 at = kLanes + float(i * 16);
      s = choose((at >= splat(float(low))) & (at < splat(float(high))), s, splat(kNone));
    }
    store(scores + i * 16, s);
    best = choose((s > best) | (s != s), s, best);
  }
  return largest(best);
}

// Begin to read `width` elements from `head` on of the tokens [from, until): in the order in which they lie.
template <class T>
void fetch(const Pages<T>& pages, const int32_t* table, int64_t block_size, int64_t head, int64_t width, int64_t from,
           int64_t until) {
  int64_t block = from / block_size, token = from % block_size;
  for (; from < until; ++block, token = 0) {
    const T* row = pages.at + table[block] * pages.block + token * pages.token + head * pages.head;
    for (; token < block_size && from < until; ++token, ++from, row += pages.token)
      for (int64_t i = 0; i < width; i += 64 / int64_t(sizeof(T))) __builtin_prefetch(row + i, 0, 2);
  }
}

// Where the tokens [from, from + seen) of a request lie, and zeros for the rest of the chunk.
template <class T>
void find_rows(const Pages<T>& pages, const int32_t* table, int64_t block_size, int64_t head, int64_t from, int64_t seen,
               const T* zeros, const T** rows) {
  int64_t block = from / block_size, token = from % block_size;
  const T* at = pages.at + head * pages.head;
  for (int64_t i = 0; i < seen; ++block, token = 0) {
    const T* row = at + table[block] * pages.block + token * pages.token;
    for (; token < block_size && i < seen; ++token, row += pages.token) rows[i++] = row;
  }
  for (int64_t i = seen; i < kChunk; ++i) rows[i] = zeros;
}

template <class T>
void Plan<T>::segment(const Tile& t, int64_t number, const T* queries, Part into, char* scratch) const {
  const int64_t count = rows(t), each = head_rows(t), last = t.position + (t.end - t.first);
  std::fill(into.peak, into.peak + count, kNone);
  std::fill(into.total, into.total + count * (16 + wide), 0.0f);  // and the values, which follow
  const int64_t until = (number + 1) * kSegment < last ? (number + 1) * kSegment : last;
  for (int64_t from = number * kSegment; from < until; from += kChunk) {
    if (a.window && from + kChunk <= t.position - a.window + 1) continue;
    for (int64_t h = 0; h < t.heads; ++h)
      chunk(t, t.head + h, from, until, queries + h * each * deep,
            {into.peak + h * each, into.total + h * each * 16, into.values + h * each * wide}, scratch);
  }
}

template <class T>
void Plan<T>::chunk(const Tile& t, int64_t head, int64_t from, int64_t until, const T* queries, Part into,
                    char* scratch) const {
  const int64_t count = head_rows(t), aligned = (count + 15) / 16 * 16;
  float* scores = reinterpret_cast<float*>(scratch);
  float* tops = scores + count * kChunk;
  float* shares = tops + aligned;
  T* weights = reinterpret_cast<T*>(shares + aligned);
  T* zeros = weights + count * kChunk;
  T* keys = zeros + std::max(deep, wide);
  T* values = keys + kChunk * deep;
  std::memset(zeros, 0, std::max(deep, wide) * sizeof(T));
  const int32_t* table = a.tables + t.request * a.columns;
  const int64_t seen = until - from < kChunk ? until - from : kChunk, blocks = (seen + kBlock - 1) / kBlock;
  const int64_t ldc = blocks * kBlock;
  const T *key_rows[kChunk], *value_rows[kChunk];
  find_rows(a.keys, table, a.block_size, head, from, seen, zeros, key_rows);
  find_rows(a.values, table, a.block_size, head, from, seen, zeros, value_rows);
  // Each head brings its part of the next chunk's tokens, for all heads of the tile: they lie together.
  const int64_t next = from + kChunk, turn = head - t.head;
  const int64_t ahead = std::min(until, next + turn * kChunk / t.heads);
  const int64_t behind = std::min(until, next + (turn + 1) * kChunk / t.heads);
  fetch(a.keys, table, a.block_size, t.head, t.heads * a.key_size, ahead, behind);
  pack_keys(key_rows, seen, a.key_size, keys);
  panel(queries, deep, count, keys, kBlock * deep, blocks, a.key_size, scores, ldc, false, false);
  fetch(a.values, table, a.block_size, t.head, t.heads * a.value_size, ahead, behind);
  pack_values(value_rows, seen, a.value_size, values);
  for (int64_t r = 0; r < count; ++r) {
    const int64_t position = t.position + r / group;
    const int64_t low = a.window ? position - a.window + 1 - from : 0, high = position + 1 - from;
    const float top = prepare(scores + r * ldc, blocks * 2, low, high, a.scale, a.softcap);
    tops[r] = top > into.peak[r] || top != top ? top : into.peak[r];
  }
  for (int64_t r = 0; r < count; r += 16)
    store(shares + r, worth(load_upto(into.peak + r, count - r), load_upto(tops + r, count - r)));
  for (int64_t r = 0; r < count; ++r) {
    v16 total = load(into.total + r * 16) * shares[r];
    const v16 top = splat(tops[r] == kNone ? 0.0f : tops[r]);  // where nothing is seen, every weight is e^-inf
    for (int64_t i = 0; i < blocks * 2; ++i) {
      const v16 w = exp(load(scores + r * ldc + i * 16) - top);
      total += w;
      store(weights + r * kChunk + i * 16, w);
    }
    store(into.total + r * 16, total);
    into.peak[r] = tops[r];
    if (shares[r] != 1.0f)
      for (int64_t i = r * wide; i < (r + 1) * wide; i += 16) store(into.values + i, load(into.values + i) * shares[r]);
  }
  panel(weights, kChunk, count, values, kChunk * kBlock, wide / kBlock, ldc, into.values, wide, true, false);
}

// `into` becomes both together.
template <class T>
void merge(const Plan<T>& plan, int64_t rows, Part into, Part more) {
  for (int64_t r = 0; r < rows; ++r) {
    const float top = into.peak[r] > more.peak[r] || into.peak[r] != into.peak[r] ? into.peak[r] : more.peak[r];
    const float old = worth(into.peak[r], top), fresh = worth(more.peak[r], top);
    into.peak[r] = top;
    store(into.total + r * 16, load(into.total + r * 16) * old + load(more.total + r * 16) * fresh);
    for (int64_t i = r * plan.wide; i < (r + 1) * plan.wide; i += 16)
      store(into.values + i, load(into.values + i) * old + load(more.values + i) * fresh);
  }
}

template <class T>
void Plan<T>::finish(const Tile& t, Part part, T* out) const {
  for (int64_t r = 0; r < rows(t); ++r) {
    const int64_t each = head_rows(t), head = (t.head + r / each) * group + r % group;
    float share = 1.0f, total = sum(load(part.total + r * 16));
    if (a.sinks) {
      const float top = part.peak[r] > a.sinks[head] || part.peak[r] != part.peak[r] ? part.peak[r] : a.sinks[head];
      share = worth(part.peak[r], top);
      total = total * share + worth(a.sinks[head], top);
    }
    T* to = out + ((t.first + r % each / group) * a.heads + head) * a.value_size;
    const v16 inverse = splat(share / total);
    for (int64_t i = 0; i < a.value_size; i += 16)
      store_upto(to + i, load(part.values + r * wide + i) * inverse, a.value_size - i);
  }
}

char* mine(int64_t bytes) {  // this thread's scratch memory, which only grows
  static thread_local std::unique_ptr<char[]> memory;
  static thread_local int64_t size = 0;
  if (size < bytes + 64) memory.reset(new char[size = bytes + 64]);
  return reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(memory.get()) + 63) / 64 * 64);
}

}  // namespace

template <class T>
void attend(const Attention<T>& a, const T* q, T* out) {
  const Plan<T> plan(a, q);
  const std::vector<Tile> tiles = plan.tiles();
  int64_t longest = 0, rows = 0;
  for (const Tile& t : tiles) {
    longest = std::max(longest, t.segments_end - t.segments_from);
    rows = std::max(rows, plan.rows(t));
  }
  const int64_t part = plan.part_floats(rows), query = rows * plan.deep;
  const int64_t inner = rows * kChunk * 8 + (rows + 16) * 8 + (kChunk + 1) * (plan.deep + plan.wide) * int64_t(sizeof(T));
  const int64_t bytes = part * 8 + (query * int64_t(sizeof(T)) + 63) / 64 * 64 + inner;
  const bool split = int64_t(tiles.size()) < 2 * a.threads && longest > 1;
  std::unique_ptr<float[]> parts(split ? new float[tiles.size() * longest * part] : nullptr);
  const auto whole = [&](int64_t number) {
    const Tile& t = tiles[number];
    char* memory = mine(bytes);
    float* sums = reinterpret_cast<float*>(memory);
    T* queries = reinterpret_cast<T*>(memory + part * 8);
    char* scratch = memory + part * 8 + (query * int64_t(sizeof(T)) + 63) / 64 * 64;
    const Part first = plan.part(sums, plan.rows(t)), more = plan.part(sums + part, plan.rows(t));
    plan.gather(t, queries);
    for (int64_t s = t.segments_from; s < t.segments_end; ++s) {
      plan.segment(t, s, queries, s == t.segments_from ? first : more, scratch);
      if (s != t.segments_from) merge(plan, plan.rows(t), first, more);
    }
    plan.finish(t, first, out);
  };
  const auto piece = [&](int64_t item) {
    const Tile& t = tiles[item / longest];
    const int64_t s = t.segments_from + item % longest;
    if (s >= t.segments_end) return;
    char* memory = mine(bytes);
    T* queries = reinterpret_cast<T*>(memory);
    plan.gather(t, queries);
    plan.segment(t, s, queries, plan.part(parts.get() + item * part, plan.rows(t)),
                 memory + (query * int64_t(sizeof(T)) + 63) / 64 * 64);
  };
  const int64_t items = split ? int64_t(tiles.size()) * longest : int64_t(tiles.size());
  std::atomic<int64_t> next{0};
  parallel(std::min<int64_t>(items, a.threads), a.threads, [&](int64_t, int64_t) {
    PanelScope scope;
    for (int64_t item; (item = next.fetch_add(1, std::memory_order_relaxed)) < items;) split ? piece(item) : whole(item);
  });
  if (!split) return;
  for (size_t number = 0; number < tiles.size(); ++number) {
    const Tile& t = tiles[number];
    const Part first = plan.part(parts.get() + number * longest * part, plan.rows(t));
    for (int64_t s = 1; s < t.segments_end - t.segments_from; ++s)
      merge(plan, plan.rows(t), first, plan.part(parts.get() + (number * longest + s) * part, plan.rows(t)));
    plan.finish(t, first, out);
  }
}

template void attend(const Attention<float>&, const float*, float*);
template void attend(const Attention<bf16>&, const bf16*, bf16*);

}  // namespace enginebay
