// Attention over paged keys and values: softmax over segments of 256 tokens, which are merged in order.
//
// Segments begin at fixed positions of the request, so a query's result depends neither on the queries beside it, nor
// on how its prompt was cut, nor on the number of threads. A violating change begins them at the window's edge, or cuts
// a context into as many segments as there are threads.
#include <atomic>
#include <memory>

#include "attention_int8_products.h"
#include "attention_plan.h"
#include "parallel.h"
#include "transpose.h"

namespace enginebay {

template <class T, class C>
std::vector<Tile> Plan<T, C>::tiles() const {
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

template <class T, class C>
int64_t Plan<T, C>::query_bytes(int64_t rows) const {
  return (rows * (deep * int64_t(sizeof(Query)) + (int8<C> ? kScale : 0)) + 63) / 64 * 64;
}

template <class T, class C>
void Plan<T, C>::gather(const Tile& t, Query* queries) const {
  if constexpr (int8<C>)
    gather_digits(t, queries, reinterpret_cast<float*>(queries + scales_at(t)));
  else
    for (int64_t head = t.head; head < t.head + t.heads; ++head)
      for (int64_t token = t.first; token < t.end; ++token)
        for (int64_t h = 0; h < group; ++h, queries += deep) {
          std::memcpy(queries, q + (token * a.heads + head * group + h) * a.key_size, a.key_size * sizeof(T));
          std::memset(queries + a.key_size, 0, (deep - a.key_size) * sizeof(T));
        }
}

// What sums under the peak `old` are worth under the peak `now`.
static float worth(float old, float now) { return old == now ? 1.0f : exp(splat(old - now))[0]; }

template <class T, class C>
int64_t Plan<T, C>::scratch_bytes(int64_t rows) const {
  constexpr int64_t each = sizeof(T);
  if (int8<C>) return int8_scratch_bytes();
  if (direct) return kRows * kRowScores * (4 + each) + kUnit * wide * each;
  return rows * kRowScores * (4 + each) + (std::max(deep, wide) + kChunk * (deep + wide)) * each;
}

template <class T, class C>
Stretch Plan<T, C>::stretch(const Tile& t, int64_t head, int64_t number) const {
  const int64_t from = number * kSegment;
  return {t.request, head, from, std::min(t.position + (t.end - t.first) - from, kSegment)};
}

template <class T, class C>
void Plan<T, C>::segment(const Tile& t, int64_t number, const Query* queries, Part into, char* scratch,
                         const Tile* after) const {
  const int64_t each = head_rows(t);
  for (int64_t h = 0; h < t.heads; ++h) {
    const Part part{into.peak + h * each, into.total + h * each * 16, into.values + h * each * wide};
    const Query* const own = queries + h * each * deep;
    const Stretch now = stretch(t, t.head + h, number);
    Stretch next{};
    if (h + 1 < t.heads)
      next = stretch(t, t.head + h + 1, number);
    else if (number + 1 < t.segments_end)
      next = stretch(t, t.head, number + 1);
    else if (after)
      next = stretch(*after, after->head, after->segments_from);
    if constexpr (int8<C>)
      read_int8(t, now, own, reinterpret_cast<const float*>(queries + scales_at(t)) + h * each, part, scratch, next);
    else if constexpr (sizeof(T) == 2)
      direct ? read_packed(t, now, own, part, scratch, next) : read_plain(t, now, own, part, scratch);
    else
      read_plain(t, now, own, part, scratch);
  }
}

// `into` becomes both together.
template <class T, class C>
static void merge(const Plan<T, C>& plan, int64_t rows, Part into, Part more) {
  for (int64_t r = 0; r < rows; ++r) {
    const float top = std::max(into.peak[r], more.peak[r]);
    const float old = worth(into.peak[r], top), fresh = worth(more.peak[r], top);
    into.peak[r] = top;
    store(into.total + r * 16, load(into.total + r * 16) * old + load(more.total + r * 16) * fresh);
    for (int64_t i = r * plan.wide; i < (r + 1) * plan.wide; i += 16)
      store(into.values + i, load(into.values + i) * old + load(more.values + i) * fresh);
  }
}

template <class T, class C>
void Plan<T, C>::finish(const Tile& t, Part part, T* out) const {
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

static char* mine(int64_t bytes) {  // this thread's scratch memory, which only grows
  static thread_local std::unique_ptr<char[]> memory;
  static thread_local int64_t size = 0;
  if (size < bytes + 64) memory.reset(new char[size = bytes + 64]);
  return reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(memory.get()) + 63) / 64 * 64);
}

template <class T, class C>
void attend(const Attention<T, C>& a, const T* q, T* out) {
  const Plan<T, C> plan(a, q);
  const std::vector<Tile> tiles = plan.tiles();
  int64_t longest = 0, rows = 0;
  for (const Tile& t : tiles) {
    longest = std::max(longest, t.segments_end - t.segments_from);
    rows = std::max(rows, plan.rows(t));
  }
  const int64_t part = plan.part_floats(rows), query = plan.query_bytes(rows);
  const int64_t bytes = part * 8 + query + plan.scratch_bytes(rows);
  const bool split = int64_t(tiles.size()) < 2 * a.threads && longest > 1;
  std::unique_ptr<float[]> parts(split ? new float[tiles.size() * longest * part] : nullptr);
  const auto whole = [&](int64_t number) {
    const Tile& t = tiles[number];
    char* memory = mine(bytes);
    float* sums = reinterpret_cast<float*>(memory);
    auto* queries = reinterpret_cast<typename Plan<T, C>::Query*>(memory + part * 8);
    char* scratch = memory + part * 8 + query;
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
    auto* queries = reinterpret_cast<typename Plan<T, C>::Query*>(memory);
    plan.gather(t, queries);
    plan.segment(t, s, queries, plan.part(parts.get() + item * part, plan.rows(t)),
                 memory + query, nullptr);
  };
  const int64_t items = split ? int64_t(tiles.size()) * longest : int64_t(tiles.size());
  std::atomic<int64_t> next{0};
  parallel(std::min<int64_t>(items, a.threads), a.threads, [&](int64_t, int64_t) {
    PanelScope scope;
    ProductScope direct;
    Int8Scope digits;
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
template void attend(const Attention<float, int8_t>&, const float*, float*);
template void attend(const Attention<bf16, int8_t>&, const bf16*, bf16*);

}  // namespace enginebay
