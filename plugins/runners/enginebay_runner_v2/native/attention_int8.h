// Keys and values as whole numbers of 8 bits, with a scale for each token of a head: how they lie in a block.
//
// Whatever the dtype of the model, a block is, for each head, groups of G tokens, and a group is the tokens' whole
// numbers, then their G scales (float). G is 16 where that divides the block size, and numbers lie as instructions that
// add up four products read them:
// keys   [kv_heads][block size / 16] of [key size / 4][16 tokens][4 dimensions] and [16]
// values [kv_heads][block size / 16] of [value size / 16][4][16 dimensions][4 tokens] and [16]
// with key sizes filled up to a multiple of 32 and value sizes of 16, by zeros. Elsewhere G is the block size, and
// numbers are [G tokens][size]. int8_pages.py reads and writes the same.
#pragma once
#include <type_traits>

#include "attention_layout.h"

namespace enginebay {

template <class C>
constexpr bool int8 = std::is_same_v<C, int8_t>;

constexpr int64_t kScale = sizeof(float);
constexpr int64_t kStoredMost = 1024;  // as many products of queries' two digits as an int32 can sum up
inline int64_t stored_key(int64_t size) { return (size + 31) / 32 * 32; }
inline int64_t stored_value(int64_t size) { return (size + kLanes - 1) / kLanes * kLanes; }

template <class T>
bool packed(const Attention<T, int8_t>&) {
  return true;
}

// Round a key or value of a head by its own largest number, and write it.
template <class T>
void put_key(const Attention<T, int8_t>& a, int64_t slot, int64_t head, const T* key, bool pack);
template <class T>
void put_value(const Attention<T, int8_t>& a, int64_t slot, int64_t head, const T* value, bool pack);

// Keys or values of a cache in int8.
struct Int8Side {
  Pages<int8_t> pages;
  int64_t block_size, stored;  // `stored`: bytes of a token without its scale
  bool keys;
  int64_t group() const { return block_size % kLanes ? block_size : kLanes; }
  int64_t size() const { return group() * (stored + kScale); }
  int8_t* at(int64_t block, int64_t head, int64_t token) const {
    return pages.at + block * pages.block + head * block_size * (stored + kScale) + token / group() * size();
  }
};
template <class T>
Int8Side keys_of(const Attention<T, int8_t>& a) {
  return {a.keys, a.block_size, stored_key(a.key_size), true};
}
template <class T>
Int8Side values_of(const Attention<T, int8_t>& a) {
  return {a.values, a.block_size, stored_value(a.value_size), false};
}

// Where the groups of 16 tokens of a stretch lie; how many they are. Where G is not 16 they are put together in `copies`
// [seen, filled up to 16, stored]; what lies behind the last token is any whole numbers.
int64_t int8_groups(const Int8Side& side, const int32_t* table, const Stretch& s, int8_t* copies, const int8_t** groups);

// The scales of a stretch, and zeros up to 32 tokens.
void int8_scales(const Int8Side& side, const int32_t* table, const Stretch& s, float* scales);

}  // namespace enginebay
