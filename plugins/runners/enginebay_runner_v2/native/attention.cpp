// Attention over paged keys and values: softmax over segments of 256 tokens, which are merged in order.
//
// Segments begin at fixed positions of the request, so a query's result depends neither on the queries beside it, nor
// on how its prompt was cut, nor on the number of threads. A violating change begins them at the window's edge, or cuts
// a context into as many segments as there are threads.
#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "attention_layout.h"
#include "attention_products.h"
#include "attention_softmax.h"
#include "kernels.h"
#include "parallel.h"
#include "transpose.h"

namespace enginebay {
namespace {

constexpr int64_t kSegment = 256;
constexpr int64_t kTileRows = 192;  // queries times heads of a group that share keys and values
constexpr int64_t kRowScores = kSegment + 32;  // from row to row: rows a power of two apart crowd the nearest cache
constexpr int64_t kNear = 4;
constexpr int64_t kRows = 32;       // of these, as many as packed blocks are multiplied with at a time

constexpr int64_t kTile = kRows / 2;  // and as many as an AMX tile has: two such parts are in work at a time

// Queries [first, end) of a request, at positions from `position` on, with `heads` key heads from `head` on.
struct Tile {
  int64_t request, first, end, position, head, heads, segments_from, segments_end;
};

// `seen` tokens from `from` on of a request's key head; 0: none.
struct Stretch {
  int64_t request, head, from, seen;
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

// Blocks of float are never packed.
inline void packed_scores(const float*, int64_t, const KeyParts&, float*, int64_t) {}
inline void packed_values(const float*, int64_t, int64_t, const ValueParts&, float*) {}

template <class T>
struct Plan {
  const Attention<T>& a;
  const T* q;
  bool direct;                // blocks are packed
  int64_t group, deep, wide;  // queries of a key head; key size and value size as the products take them

  Plan(const Attention<T>& a, const T* q)
      : a(a), q(q), direct(packed(a)), group(a.heads / a.kv_heads), deep(padded<T>(a.key_size)),
        wide(direct ? a.value_size : (a.value_size + kBlock - 1) / kBlock * kBlock) {}
  int64_t head_rows(const Tile& t) const { return (t.end - t.first) * group; }  // those of a head lie together
  int64_t rows(const Tile& t) const { return head_rows(t) * t.heads; }
  int64_t part_floats(int64_t rows) const { return rows * (wide + 16) + (rows + 15) / 16 * 16; }
  Part part(float* at, int64_t rows) const {
    float* const total = at + (rows + 15) / 16 * 16;
    return {at, total, total + rows * 16};
  }
  std::vector<Tile> tiles() const;
  void gather(const Tile& t, T* queries) const;
  int64_t scratch_bytes(int64_t rows) const;
  void nothing(int64_t count, Part into) const;
  Stretch stretch(const Tile& t, int64_t head, int64_t number) const;
  void segment(const Tile& t, int64_t number, const T* queries, Part into, char* scratch, const Tile* after) const;
  void read_packed(const Tile& t, const Stretch& now, const T* queries, Part into, char* scratch,
                   const Stretch& next) const;
  void read_plain(const Tile& t, const Stretch& now, const T* queries, Part into, char* scratch) const;
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
      const bool all_heads = a.requests >= 4 * a.threads && (end - first) * a.heads <= kTileRows;
      const int64_t heads = all_heads ? a.kv_heads : 1;
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

// What sums under the peak `old` are worth under the peak `now`.
float worth(float old, float now) { return old == now ? 1.0f : exp(splat(old - now))[0]; }

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

// Where the groups of 16 tokens of a stretch lie, in packed keys or values of `size`; how many they are.
template <class T>
int64_t find_groups(const Attention<T>& a, const Pages<T>& pages, int64_t size, const Stretch& s, const T** groups) {
  const int32_t* table = a.tables + s.request * a.columns;
  int64_t block = s.from / a.block_size, at = s.from % a.block_size, count = 0;
  for (; count * kLanes < s.seen; ++block, at = 0) {
    const T* const begin = pages.at + table[block] * pages.block + s.head * a.block_size * size;
    for (; at < a.block_size && count * kLanes < s.seen; at += kLanes) groups[count++] = begin + at * size;
  }
  return count;
}

inline const bf16* const* cast(const bf16* const* parts) { return parts; }
inline const bf16* const* cast(const float* const*) { return nullptr; }

// The packed values of a unit of tokens, of which the first `seen` are: zeros for the others.
template <class T>
void copy_unit(const T* values, int64_t unit, int64_t size, int64_t seen, T* to) {
  constexpr int64_t line = 2 * kLanes;  // a pair of tokens in a slice
  const int64_t piece = unit * kLanes, whole = (seen + 1) / 2 * line;
  for (int64_t i = 0; i < size; i += kLanes, to += piece, values += piece) {
    std::memcpy(to, values, whole * sizeof(T));
    std::memset(to + whole, 0, (piece - whole) * sizeof(T));
    if (seen % 2)
      for (int64_t lane = 0; lane < kLanes; ++lane) to[whole - line + 1 + 2 * lane] = T{};
  }
}

template <class T>
int64_t Plan<T>::scratch_bytes(int64_t rows) const {
  if (direct) return kRows * kRowScores * (4 + int64_t(sizeof(T))) + kUnit * wide * int64_t(sizeof(T));
  return rows * kRowScores * (4 + int64_t(sizeof(T))) +
         (std::max(deep, wide) + kChunk * (deep + wide)) * int64_t(sizeof(T));
}

template <class T>
void Plan<T>::nothing(int64_t count, Part into) const {
  std::fill(into.peak, into.peak + count, kNone);
  std::fill(into.total, into.total + count * 16, 0.0f);
  std::fill(into.values, into.values + count * wide, 0.0f);
}

template <class T>
Stretch Plan<T>::stretch(const Tile& t, int64_t head, int64_t number) const {
  const int64_t from = number * kSegment;
  return {t.request, head, from, std::min(t.position + (t.end - t.first) - from, kSegment)};
}

template <class T>
void Plan<T>::segment(const Tile& t, int64_t number, const T* queries, Part into, char* scratch,
                      const Tile* after) const {
  const int64_t each = head_rows(t);
  for (int64_t h = 0; h < t.heads; ++h) {
    const Part part{into.peak + h * each, into.total + h * each * 16, into.values + h * each * wide};
    const T* const own = queries + h * each * deep;
    const Stretch now = stretch(t, t.head + h, number);
    Stretch next{};
    if (h + 1 < t.heads)
      next = stretch(t, t.head + h + 1, number);
    else if (number + 1 < t.segments_end)
      next = stretch(t, t.head, number + 1);
    else if (after)
      next = stretch(*after, after->head, after->segments_from);
    direct ? read_packed(t, now, own, part, scratch, next) : read_plain(t, now, own, part, scratch);
  }
}

template <class T>
void Plan<T>::read_packed(const Tile& t, const Stretch& now, const T* queries, Part into, char* scratch,
                          const Stretch& next) const {
  constexpr int64_t most = kSegment / kLanes;
  float* const scores = reinterpret_cast<float*>(scratch);
  T* const weights = reinterpret_cast<T*>(scores + kRows * kRowScores);
  T* const copies = weights + kRows * kRowScores;
  const int64_t from = now.from, seen = now.seen, count = head_rows(t);
  const T* lines[3 * most];  // where groups of keys, of values and of the next keys lie, in the order of reading
  const int64_t groups = find_groups(a, a.keys, a.key_size, now, lines);
  find_groups(a, a.values, a.value_size, now, lines + groups);
  Ahead values_ahead, keys_ahead;
  if (count < kRows) {  // reading takes longer than the products
    const int64_t all = 2 * groups + find_groups(a, a.keys, a.key_size, next, lines + 2 * groups);
    const int64_t slices = a.value_size / kLanes;
    values_ahead = {cast(lines + kNear), all - kNear, 16};
    keys_ahead = {cast(lines + groups + kNear), all - groups - kNear, (a.key_size / 2 + slices - 1) / slices};
  }
  const int64_t unit = together(a);
  const T* units[most];
  for (int64_t u = 0; u * unit < seen; ++u) units[u] = lines[groups + u * (unit / kLanes)];
  if (seen % unit) {  // what lies behind the last token is not a number, perhaps
    copy_unit(units[seen / unit], unit, wide, seen % unit, copies);
    units[seen / unit] = copies;
  }
  const auto chunk = [&](int64_t r, int64_t most) {
    Chunk c{r, std::min(count - r, most), 0, 0, 0, 0};
    const int64_t position = t.position + r / group, last = t.position + (r + c.rows - 1) / group;
    c.begin = a.window ? std::max<int64_t>(position - a.window + 1 - from, 0) / kUnit * kUnit : 0;
    c.end = std::min(last + 1 - from, seen);
    if (c.begin >= c.end) return c;
    c.scored = (c.end - c.begin + kLanes - 1) / kLanes;
    c.steps = (c.end - c.begin + unit - 1) / unit;
    return c;
  };
  const auto keys = [&](const Chunk& c) -> KeyParts {
    return {cast(lines + c.begin / kLanes), c.scored, a.key_size / 32, values_ahead};
  };
  const auto values = [&](const Chunk& c) -> ValueParts {
    return {cast(units + c.begin / unit), wide / kLanes, c.steps, unit / 2, keys_ahead};
  };
  const auto row = [&](const Chunk& c, int64_t i, float* scores, T* weights) {
    const int64_t high = t.position + (c.first + i) / group + 1 - from - c.begin;
    softmax(scores + i * kRowScores, (c.scored + 1) / 2 * 2, a.window ? high - a.window : 0, high, a.scale, a.softcap,
            into.peak + c.first + i, into.total + (c.first + i) * 16, weights + i * kRowScores);
  };
  const auto part = [&](const Chunk& c) -> Part {
    return {into.peak + c.first, into.total + c.first * 16, into.values + c.first * wide};
  };
  if constexpr (sizeof(T) == 2)
    if (count > kTile && kind() == Kind::amx) {
      // While the softmax of some rows is computed, tiles multiply their neighbours: the last weights, the next keys.
      amx_pairs(unit / 2);
      AmxProduct<ValueParts> last;
      AmxProduct<KeyParts> next;
      int which = 0;
      Chunk now = chunk(0, kTile);
      const auto half = [&](auto* memory) { return memory + which * kTile * kRowScores; };
      if (now.scored) AmxProduct<KeyParts>(queries, deep, now.rows, keys(now), scores, kRowScores).rest();
      for (;; which ^= 1) {
        const int64_t following = now.first + now.rows;
        const Chunk then = following < count ? chunk(following, kTile) : Chunk{};
        if (then.scored)
          next = {queries + then.first * deep, deep, then.rows, keys(then), scores + (which ^ 1) * kTile * kRowScores,
                  kRowScores};
        if (!now.scored) nothing(now.rows, part(now));
        for (int64_t i = 0; now.scored && i < now.rows; ++i) {
          if (!last.some()) next.some();
          row(now, i, half(scores), half(weights));
        }
        last.rest();
        next.rest();
        last = {};
        if (now.scored) last = {half(weights), kRowScores, now.rows, values(now), part(now).values, wide};
        if (!then.rows) break;
        now = then;
      }
      last.rest();
      return;
    }
  for (int64_t r = 0; r < count; r += kRows) {
    const Chunk c = chunk(r, kRows);
    if (!c.scored) {
      nothing(c.rows, part(c));
      continue;
    }
    packed_scores(queries + r * deep, c.rows, keys(c), scores, kRowScores);
    for (int64_t i = 0; i < c.rows; ++i) row(c, i, scores, weights);
    packed_values(weights, kRowScores, c.rows, values(c), part(c).values);
  }
}

template <class T>
void Plan<T>::read_plain(const Tile& t, const Stretch& now, const T* queries, Part into, char* scratch) const {
  const int64_t count = head_rows(t), from = now.from, seen = now.seen;
  float* const scores = reinterpret_cast<float*>(scratch);
  T* const weights = reinterpret_cast<T*>(scores + count * kRowScores);
  T* const zeros = weights + count * kRowScores;
  T* const keys = zeros + std::max(deep, wide);
  T* const values = keys + kChunk * deep;
  std::memset(zeros, 0, std::max(deep, wide) * sizeof(T));
  const int32_t* const table = a.tables + t.request * a.columns;
  const int64_t first = a.window ? std::max<int64_t>(t.position - a.window + 1 - from, 0) / kChunk * kChunk : 0;
  if (first >= seen) return nothing(count, into);
  const T* rows[kChunk];
  for (int64_t at = first; at < seen; at += kChunk) {
    const int64_t here = std::min<int64_t>(seen - at, kChunk);
    find_rows(a.keys, table, a.block_size, now.head, from + at, here, zeros, rows);
    pack_keys(rows, here, a.key_size, keys);
    panel(queries, deep, count, keys, kBlock * deep, (here + kBlock - 1) / kBlock, a.key_size, scores + at, kRowScores,
          false, false);
  }
  const int64_t groups = (seen - first + kBlock - 1) / kBlock * 2;
  for (int64_t r = 0; r < count; ++r) {
    const int64_t high = t.position + r / group + 1 - from - first;
    softmax(scores + r * kRowScores + first, groups, a.window ? high - a.window : 0, high, a.scale, a.softcap,
            into.peak + r, into.total + r * 16, weights + r * kRowScores + first);
  }
  for (int64_t at = first; at < seen; at += kChunk) {
    const int64_t here = std::min<int64_t>(seen - at, kChunk);
    find_rows(a.values, table, a.block_size, now.head, from + at, here, zeros, rows);
    pack_values(rows, here, a.value_size, values);
    panel(weights + at, kRowScores, count, values, kChunk * kBlock, wide / kBlock,
          (here + kBlock - 1) / kBlock * kBlock, into.values, wide, at > first, false);
  }
}

// `into` becomes both together.
template <class T>
void merge(const Plan<T>& plan, int64_t rows, Part into, Part more) {
  for (int64_t r = 0; r < rows; ++r) {
    const float top = std::max(into.peak[r], more.peak[r]);
    const float old = worth(into.peak[r], top), fresh = worth(more.peak[r], top);
    into.peak[r] = top;
    store(into.total + r * 16, load(into.total + r * 16) * old + load(more.total + r * 16) * fresh);
    for (int64_t i = r * plan.wide; i < (r + 1) * plan.wide; i += 16)
      store(into.values + i, load(into.values + i) * old + load(more.values + i) * fresh);
  }
}

template <class T>
void Plan<T>::finish(const Tile& t, Part part, T* out) const {
  int64_t r = 0;
  for (int64_t key_head = t.head; key_head < t.head + t.heads; ++key_head)
    for (int64_t token = t.first; token < t.end; ++token)
      for (int64_t head = key_head * group; head < (key_head + 1) * group; ++head, ++r) {
        float share = 1.0f, total = sum(load(part.total + r * 16));
        if (a.sinks) {
          const float top = std::max(part.peak[r], a.sinks[head]);
          share = worth(part.peak[r], top);
          total = total * share + worth(a.sinks[head], top);
        }
        T* const to = out + (token * a.heads + head) * a.value_size;
        const float* const values = part.values + r * wide;
        const v16 inverse = splat(share / total);
        int64_t i = 0;
        for (; i + 32 <= a.value_size; i += 32)
          store_pair(to + i, load(values + i) * inverse, load(values + i + 16) * inverse);
        for (; i + 16 <= a.value_size; i += 16) store(to + i, load(values + i) * inverse);
        if (i < a.value_size) store_some(to + i, load(values + i) * inverse, int(a.value_size - i));
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
  const int64_t bytes = part * 8 + (query * int64_t(sizeof(T)) + 63) / 64 * 64 + plan.scratch_bytes(rows);
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
    const Tile* const after = number + a.threads < int64_t(tiles.size()) ? &tiles[number + a.threads] : nullptr;
    for (int64_t s = t.segments_from; s < t.segments_end; ++s) {
      plan.segment(t, s, queries, s == t.segments_from ? first : more, scratch, after);
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
                 memory + (query * int64_t(sizeof(T)) + 63) / 64 * 64, nullptr);
  };
  const int64_t items = split ? int64_t(tiles.size()) * longest : int64_t(tiles.size());
  std::atomic<int64_t> next{0};
  parallel(std::min<int64_t>(items, a.threads), a.threads, [&](int64_t, int64_t) {
    PanelScope scope;
    ProductScope direct;
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
