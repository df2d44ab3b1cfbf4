#include "attention_plan.h"
#include "transpose.h"

namespace enginebay {
namespace {

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

// Keys and values of up to 64 tokens as panels read them.
template <class T>
void bring_keys(const Attention<T>& a, const Stretch& s, const T* zeros, T* keys) {
  const T* rows[kChunk];
  find_rows(a.keys, a.tables + s.request * a.columns, a.block_size, s.head, s.from, s.seen, zeros, rows);
  pack_keys(rows, s.seen, a.key_size, keys);
}
template <class T>
void bring_values(const Attention<T>& a, const Stretch& s, const T* zeros, T* values) {
  const T* rows[kChunk];
  find_rows(a.values, a.tables + s.request * a.columns, a.block_size, s.head, s.from, s.seen, zeros, rows);
  pack_values(rows, s.seen, a.value_size, values);
}

}  // namespace

template <class T, class C>
void Plan<T, C>::read_plain(const Tile& t, const Stretch& now, const T* queries, Part into, char* scratch) const {
  const int64_t count = head_rows(t), from = now.from, seen = now.seen;
  float* const scores = reinterpret_cast<float*>(scratch);
  T* const weights = reinterpret_cast<T*>(scores + count * kRowScores);
  T* const zeros = weights + count * kRowScores;
  T* const keys = zeros + std::max(deep, wide);
  T* const values = keys + kChunk * deep;
  std::memset(zeros, 0, std::max(deep, wide) * sizeof(T));
  const int64_t first = a.window ? std::max<int64_t>(t.position - a.window + 1 - from, 0) / kChunk * kChunk : 0;
  if (first >= seen) return nothing(count, into);
  for (int64_t at = first; at < seen; at += kChunk) {
    const int64_t here = std::min<int64_t>(seen - at, kChunk);
    bring_keys(a, {t.request, now.head, from + at, here}, zeros, keys);
    panel(queries, deep, count, keys, kBlock * deep, (here + kBlock - 1) / kBlock, a.key_size, scores + at, kRowScores,
          false, false);
  }
  const int64_t groups = (seen - first + kBlock - 1) / kBlock * 2;
  for (int64_t r = 0; r < count; ++r) {
    const int64_t high = t.position + r / group + 1 - from - first;
    softmax<T>(scores + r * kRowScores + first, groups, a.window ? high - a.window : 0, high, a.scale, a.softcap,
            into.peak + r, into.total + r * 16, weights + r * kRowScores + first);
  }
  for (int64_t at = first; at < seen; at += kChunk) {
    const int64_t here = std::min<int64_t>(seen - at, kChunk);
    bring_values(a, {t.request, now.head, from + at, here}, zeros, values);
    panel(weights + at, kRowScores, count, values, kChunk * kBlock, wide / kBlock,
          (here + kBlock - 1) / kBlock * kBlock, into.values, wide, at > first, false);
  }
}

template void Plan<float, float>::read_plain(const Tile&, const Stretch&, const float*, Part, char*) const;
template void Plan<bf16, bf16>::read_plain(const Tile&, const Stretch&, const bf16*, Part, char*) const;

}  // namespace enginebay
