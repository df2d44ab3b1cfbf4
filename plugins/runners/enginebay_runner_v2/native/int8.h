// Products with weights in int8: each output's weights and each row of inputs have one scale, the sums are exact.
//
// Sums are whole numbers, so that every kind of product gives the same bits, and what follows them is written once.
#pragma once
#include <cstdint>

#include "simd.h"

namespace enginebay {

constexpr int kInt8Depth = 64;  // inputs of a tile; four neighbouring ones lie together
// After a block's tiles: 32 scales (float32), and 32 sums of its weights times 128 (int32).
constexpr int64_t kInt8Tail = 256;
constexpr int64_t kInt8Inputs = 1 << 17;  // as many as an int32 can sum up
inline int64_t int8_padded(int64_t inputs) { return (inputs + kInt8Depth - 1) / kInt8Depth * kInt8Depth; }
inline int64_t int8_block(int64_t inputs) { return int8_padded(inputs) * 32 + kInt8Tail; }  // bytes

// The largest absolute value, or one that is not finite where there is any.
template <class T>
inline float reach(const T* x, int64_t count) {
  i16 most{};
  for (int64_t i = 0; i < count; i += 16) most = larger_bits(most, load_upto(x + i, count - i));
  return largest_of(most);
}

constexpr float kInt8Least = 1e-30f;  // numbers that are all smaller are zeros: `most` / them would not be finite

// What numbers are multiplied with to become whole ones up to `most`, and the scale that undoes it. NaN for a row that is
// not finite: all its outputs are.
struct Int8Scale {
  float by, back;
};
inline Int8Scale int8_scale(float reach, float most) {
  if (!(reach <= std::numeric_limits<float>::max())) return {0, std::numeric_limits<float>::quiet_NaN()};
  if (reach < kInt8Least) return {0, 0};
  return {most / reach, reach / most};
}

// x [count] → whole numbers [count] by its own largest absolute value; the scale, NaN where a number is not finite.
template <class T>
float int8_row(const T* x, int8_t* whole, int64_t count);

// x [rows, inputs] → quantised [rows, padded inputs], and each row's scale.
template <class T>
void int8_quantise(const T* x, int8_t* quantised, float* scales, int64_t rows, int64_t inputs, int threads);

// weight [outputs, inputs] → packed
template <class T>
void int8_pack(const T* weight, int8_t* packed, int64_t outputs, int64_t inputs, int threads);

// x, scales as int8_quantise gives them, bias [outputs] or null, out [rows, outputs]
template <class T, class Out>
void int8_linear(const int8_t* x, const float* scales, const int8_t* packed, const T* bias, Out* out, int64_t rows,
                 int64_t inputs, int64_t outputs, int threads);

// sums [rows, blocks * 32] of up to 32 rows; with `true` the sums of x + 128 instead. `stream`: b comes from memory.
bool int8_panel(const int8_t* x, int64_t step, int64_t rows, const int8_t* b, int64_t b_step, int64_t blocks,
                int64_t tiles, int32_t* sums, bool stream);

}  // namespace enginebay
