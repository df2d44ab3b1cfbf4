#include "attention_int8_products.h"
#include "attention_plan.h"
#include "int8.h"

namespace enginebay {
namespace {

constexpr int64_t kMost = kSegment / kLanes;
constexpr int64_t kQueries = 16;      // rows that are multiplied at a time
constexpr int64_t kUnits = 4;         // groups whose values are put together for many rows: full tiles
constexpr float kQueryMost = 16256;   // 127 * 128: digits from -127 to 127 and from -64 to 63
constexpr float kWeightMost = 65535;  // both digits from 0 to 255

inline i16 nearest(v16 x) {
  const v16 shifted = x + 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  return bits_of<i16>(&shifted) - 0x4b400000;
}
inline void put(void* to, i16 numbers) {
#if defined(__AVX512F__)
  _mm_storeu_si128((__m128i*)to, _mm512_cvtepi32_epi8((__m512i)numbers));
#else
  using b16 = int8_t __attribute__((vector_size(16)));
  const b16 narrow = __builtin_convertvector(numbers, b16);
  std::memcpy(to, &narrow, sizeof narrow);
#endif
}

// The digits of 32 numbers from 0 to 65535, once rounded.
inline void digits(v16 a, v16 b, uint8_t* high, uint8_t* low) {
#if defined(__AVX512BW__)
  const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi32_epi16((__m512i)nearest(a))),
                                          _mm512_cvtepi32_epi16((__m512i)nearest(b)), 1);
  _mm256_storeu_si256((__m256i*)high, _mm512_cvtepi16_epi8(_mm512_srli_epi16(both, 8)));
  _mm256_storeu_si256((__m256i*)low, _mm512_cvtepi16_epi8(both));
#else
  const i16 first = nearest(a), second = nearest(b);
  put(high, first >> 8);
  put(high + kLanes, second >> 8);
  put(low, first & 255);
  put(low + kLanes, second & 255);
#endif
}

// The digits of one row of weights [`groups` (even) of 16], zeros up to `all`, and what the sum of a unit is worth.
float weight_digits(const float* weights, float most, int64_t groups, int64_t all, uint8_t* high, uint8_t* low) {
  const Int8Scale scale = int8_scale(most, kWeightMost);
  const int64_t count = scale.by == 0 ? 0 : groups * kLanes;
  for (int64_t i = 0; i < count; i += 2 * kLanes)
    digits(load(weights + i) * scale.by, load(weights + i + kLanes) * scale.by, high + i, low + i);
  if (const int64_t rest = all * kLanes - count; rest > 0) {
    std::memset(high + count, 0, rest);
    std::memset(low + count, 0, rest);
  }
  return scale.back;
}

// Values of a stretch in units of 64 tokens, [size / 16][16][16 dimensions][4 tokens]; any numbers behind the last.
void put_together(const int8_t* const* groups, int64_t count, int64_t stored, int8_t* to, const int8_t** units) {
  for (int64_t g = 0; g < count; ++g) {
    int8_t* const unit = to + g / kUnits * kUnits * kLanes * stored;
    if (g % kUnits == 0) units[g / kUnits] = unit;
    for (int64_t i = 0; i < stored / kLanes; ++i)
      std::memcpy(unit + (i * kUnits + g % kUnits) * 256, groups[g] + i * 256, 256);
  }
}

}  // namespace

template <class T, class C>
void Plan<T, C>::gather_digits(const Tile& t, int8_t* queries, float* scales) const {
  const int64_t stored = deep / 2;
  for (int64_t head = t.head; head < t.head + t.heads; ++head)
    for (int64_t token = t.first; token < t.end; ++token)
      for (int64_t h = 0; h < group; ++h, queries += deep) {
        const T* const x = q + (token * a.heads + head * group + h) * a.key_size;
        const Int8Scale scale = int8_scale(reach(x, a.key_size), kQueryMost);
        *scales++ = scale.back;
        for (int64_t i = 0; i < stored; i += kLanes) {
          const bool some = scale.by != 0 && i < a.key_size;
          const i16 n = some ? nearest(load_upto(x + i, a.key_size - i) * scale.by) : i16{};
          const i16 high = (n + 64) >> 7;
          put(queries + i, high);
          put(queries + stored + i, n - high * 128);
        }
      }
}

template <class T, class C>
int64_t Plan<T, C>::int8_scratch_bytes() const {
  return (3 * kRowScores + 2 * kQueries * std::max(kRowScores, wide)) * 4 + 2 * kQueries * kRowScores +
         kSegment * (deep / 2 + 2 * wide);
}

template <class T, class C>
void Plan<T, C>::read_int8(const Tile& t, const Stretch& now, const int8_t* queries, const float* scales, Part into,
                           char* scratch, const Stretch& next) const {
  const int64_t from = now.from, seen = now.seen, count = head_rows(t), stored = deep / 2;
  const Int8Side of_keys = keys_of(a), of_values = values_of(a);
  const int32_t* const table = a.tables + t.request * a.columns;
  const int8_t *lines[2 * kMost], *next_lines[2 * kMost];  // groups of keys, then of values; and those read next
  float* const row_scores = reinterpret_cast<float*>(scratch);
  float* const key_scales = row_scores + kRowScores;
  float* const value_scales = key_scales + kRowScores;
  int32_t* const sums = reinterpret_cast<int32_t*>(value_scales + kRowScores);
  uint8_t* const weights = reinterpret_cast<uint8_t*>(sums + 2 * kQueries * std::max(kRowScores, wide));
  int8_t* const copies = reinterpret_cast<int8_t*>(weights + 2 * kQueries * kRowScores);
  const int64_t groups = int8_groups(of_keys, table, now, copies, lines);
  int8_groups(of_values, table, now, copies + kSegment * stored, lines + groups);
  const int64_t quads = stored % 64 ? 8 : 16, steps = stored / (4 * quads), slices = wide / kLanes;
  Feeder feeder;
  const int8_t* units[kMost / kUnits];
  int64_t together = 1;  // groups of a unit of values
  if (count > kQueries) {
    together = kUnits;
    put_together(lines + groups, groups, wide, copies + kSegment * (stored + wide), units);
  } else if (a.block_size % kLanes == 0) {
    const int32_t* const other = a.tables + next.request * a.columns;
    int64_t more = int8_groups(of_keys, other, next, nullptr, next_lines);
    more += int8_groups(of_values, other, next, nullptr, next_lines + more);
    feeder = {next_lines, more, (std::max(of_keys.size(), of_values.size()) + 63) / 64};
  }
  // A quarter of the lines between the products of keys, half between what is done with rows, the rest after these.
  const int64_t all = feeder.left(), at_keys = (all / 4 + groups * steps - 1) / (groups * steps);
  const int64_t at_row = all / 2 / (3 * std::min(count, kQueries));
  int8_quads(quads, 4 * together);
  bool scaled = false;
  for (int64_t r = 0; r < count; r += kQueries) {
    const int64_t rows = std::min(count - r, kQueries), last = t.position + (r + rows - 1) / group;
    const int64_t hidden = a.window ? std::max<int64_t>(t.position + r / group - a.window + 1 - from, 0) : 0;
    const int64_t begin = hidden / (kUnits * kLanes) * (kUnits * kLanes);
    const int64_t end = std::min(last + 1 - from, seen), scored = (end - begin + kLanes - 1) / kLanes;
    const Part part{into.peak + r, into.total + r * 16, into.values + r * wide};
    if (begin >= end) {
      nothing(rows, part);
      continue;
    }
    const int8_t* const* const first = lines + begin / kLanes;
    int8_scores(queries + r * deep, stored, 2 * rows, {first, scored, steps, quads, &feeder, at_keys}, sums, kRowScores);
    if (!scaled) {  // after keys were read
      int8_scales(of_keys, table, now, key_scales);
      int8_scales(of_values, table, now, value_scales);
      scaled = true;
    }
    float worth[kQueries];
    Weighing weighing{value_scales + begin, 0};
    const int64_t even = (scored + 1) / 2 * 2, added = (scored + together - 1) / together;
    for (int64_t i = 0; i < rows; ++i) {
      const int32_t* const high = sums + 2 * i * kRowScores;
      for (int64_t n = 0; n < scored * kLanes; n += kLanes) {
        const i16 sum = bits_of<i16>(high + n) * 128 + bits_of<i16>(high + kRowScores + n);
        store(row_scores + n, __builtin_convertvector(sum, v16) * load(key_scales + begin + n));
      }
      feeder.some(at_row);
      const int64_t seen_from = t.position + (r + i) / group + 1 - from - begin;
      softmax<T>(row_scores, even, a.window ? seen_from - a.window : 0, seen_from, a.scale * scales[r + i], a.softcap,
                 part.peak + i, part.total + i * 16, row_scores, &weighing);
      feeder.some(at_row);
      worth[i] = weight_digits(row_scores, weighing.most, even, added * together, weights + 2 * i * kRowScores,
                               weights + (2 * i + 1) * kRowScores);
      feeder.some(at_row);
    }
    const int8_t* const* const read = together == 1 ? first + groups : units + begin / (kUnits * kLanes);
    const int64_t at_values = (feeder.left() + slices * added - 1) / (slices * added);
    int8_values(weights, kRowScores, 2 * rows, {read, slices, added, 4 * together, &feeder, at_values}, sums, wide);
    for (int64_t i = 0; i < rows; ++i) {
      const int32_t* const high = sums + 2 * i * wide;
      for (int64_t n = 0; n < wide; n += kLanes) {
        const i16 sum = bits_of<i16>(high + n) * 256 + bits_of<i16>(high + wide + n);
        store(part.values + i * wide + n, __builtin_convertvector(sum, v16) * worth[i]);
      }
    }
  }
}

#define FOR(T)                                                                                              \
  template int64_t Plan<T, int8_t>::int8_scratch_bytes() const;                                             \
  template void Plan<T, int8_t>::gather_digits(const Tile&, int8_t*, float*) const;                         \
  template void Plan<T, int8_t>::read_int8(const Tile&, const Stretch&, const int8_t*, const float*, Part, \
                                           char*, const Stretch&) const;
FOR(float)
FOR(bf16)
#undef FOR

}  // namespace enginebay
