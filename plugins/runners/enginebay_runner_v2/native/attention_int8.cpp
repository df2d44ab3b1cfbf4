#include "attention_int8.h"

#include <algorithm>
#include <vector>

#include "int8.h"

namespace enginebay {
namespace {

// f(group, in, i, n) for each group of a stretch: its tokens [in, in + n) are the i-th and following of the stretch.
template <class F>
void each_group(const Int8Side& side, const int32_t* table, const Stretch& s, F f) {
  const int64_t size = side.group();
  int64_t block = s.from / side.block_size, at = s.from % side.block_size;
  for (int64_t i = 0; i < s.seen; ++block, at = 0)
    while (at < side.block_size && i < s.seen) {
      const int64_t in = at % size, n = std::min(size - in, s.seen - i);
      f(side.at(table[block], s.head, at), in, i, n);
      i += n;
      at += n;
    }
}

// Of keys quads are 16 tokens times 4 dimensions, of values 16 dimensions times 4 tokens.
void place_key(const int8_t* row, int64_t stored, int64_t token, int8_t* group) {
  for (int64_t i = 0; i < stored; i += 4) std::memcpy(group + i * kLanes + token * 4, row + i, 4);
}
void place_value(const int8_t* row, int64_t stored, int64_t token, int8_t* group) {
  int8_t* to = group + token / 4 * 64 + token % 4;  // between these bytes another thread may write
  for (int64_t i = 0; i < stored; i += kLanes, to += 4 * 64)
    for (int64_t j = 0; j < kLanes; ++j) to[4 * j] = row[i + j];
}
void place(const Int8Side& side, const int8_t* row, int64_t token, int8_t* group) {
  side.keys ? place_key(row, side.stored, token, group) : place_value(row, side.stored, token, group);
}

template <class T>
void round_and_put(const Int8Side& side, int64_t slot, int64_t head, const T* x, int64_t size) {
  static thread_local std::vector<int8_t> memory;
  memory.assign(side.stored, 0);
  int8_t* const row = memory.data();
  const float scale = int8_row(x, row, size);
  const int64_t token = slot % side.block_size, in = token % side.group();
  int8_t* const group = side.at(slot / side.block_size, head, token);
  std::memcpy(group + side.group() * side.stored + in * kScale, &scale, kScale);
  if (side.block_size % kLanes)
    std::memcpy(group + in * side.stored, row, side.stored);
  else
    place(side, row, in, group);
}

}  // namespace

template <class T>
void put_key(const Attention<T, int8_t>& a, int64_t slot, int64_t head, const T* key, bool) {
  round_and_put(keys_of(a), slot, head, key, a.key_size);
}
template <class T>
void put_value(const Attention<T, int8_t>& a, int64_t slot, int64_t head, const T* value, bool) {
  round_and_put(values_of(a), slot, head, value, a.value_size);
}
template void put_key(const Attention<float, int8_t>&, int64_t, int64_t, const float*, bool);
template void put_key(const Attention<bf16, int8_t>&, int64_t, int64_t, const bf16*, bool);
template void put_value(const Attention<float, int8_t>&, int64_t, int64_t, const float*, bool);
template void put_value(const Attention<bf16, int8_t>&, int64_t, int64_t, const bf16*, bool);

int64_t int8_groups(const Int8Side& side, const int32_t* table, const Stretch& s, int8_t* copies, const int8_t** groups) {
  const int64_t count = (s.seen + kLanes - 1) / kLanes;
  if (side.block_size % kLanes == 0) {
    each_group(side, table, s, [&](const int8_t* group, int64_t, int64_t i, int64_t) { groups[i / kLanes] = group; });
    return count;
  }
  for (int64_t g = 0; g < count; ++g) groups[g] = copies + g * kLanes * side.stored;
  each_group(side, table, s, [&](const int8_t* group, int64_t in, int64_t i, int64_t n) {
    for (const int8_t* row = group + in * side.stored; n > 0; --n, ++i, row += side.stored)
      place(side, row, i % kLanes, copies + i / kLanes * kLanes * side.stored);
  });
  return count;
}

void int8_scales(const Int8Side& side, const int32_t* table, const Stretch& s, float* scales) {
  each_group(side, table, s, [&](const int8_t* group, int64_t in, int64_t i, int64_t n) {
    const int8_t* const at = group + side.group() * side.stored + in * kScale;
    n == kLanes ? std::memcpy(scales + i, at, kLanes * kScale) : std::memcpy(scales + i, at, n * kScale);
  });
  std::fill(scales + s.seen, scales + (s.seen + kUnit - 1) / kUnit * kUnit, 0.0f);
}

}  // namespace enginebay
