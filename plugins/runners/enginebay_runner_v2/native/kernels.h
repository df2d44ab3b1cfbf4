// The kernels, on plain memory: who calls them has checked every shape and index. T is float or bf16.
#pragma once
#include <cstdint>

#include "greedy.h"
#include "panel.h"

namespace enginebay {

enum class Style { llama = 0, gemma = 1, wide = 2 };         // see references.py
enum class Activation { silu = 0, gelu_tanh = 1, gelu = 2 };

// x, out [rows, width]; with `residual`: total = x + residual is kept, and its norm taken.
template <class T>
void rms_norm(const T* x, const T* residual, const T* weight, T* total, T* out, int64_t rows, int64_t width, float eps,
              Style style, int threads);

// gate_up [rows, 2 width], out [rows, width]
template <class T>
void gated(const T* gate_up, T* out, int64_t rows, int64_t width, Activation activation, int threads);

// logits [rows, width] → ids and values [rows]
template <class T>
void greedy(const T* logits, int64_t* ids, float* values, int64_t rows, int64_t width, int threads);

// weight [outputs, inputs] → packed
template <class T>
void pack(const T* weight, T* packed, int64_t outputs, int64_t inputs, int threads);

// The rows `ids` [count] of the weight that was packed → out [count, inputs]
template <class T>
void packed_rows(const T* packed, const int64_t* ids, T* out, int64_t count, int64_t inputs, int threads);

// x [rows, padded inputs] with `step` elements from row to row, bias [outputs] or null, out [rows, outputs]; where
// `largest` is there, it sees the outputs while they are near
template <class T, class Out>
void linear(const T* x, int64_t step, const T* packed, const T* bias, Out* out, int64_t rows, int64_t inputs,
            int64_t outputs, int threads, Largest* largest = nullptr);

// The same, gated: out [rows, width], from 2 width outputs, gates first. False: nothing was done; no gain over two calls.
bool gated_linear(const bf16* x, int64_t step, const bf16* packed, const bf16* bias, bf16* out, int64_t rows,
                  int64_t inputs, int64_t width, Activation activation, int threads);

// One tensor of the cache: `block`, `token`, `head` elements from one to the next.
template <class T>
struct Pages {
  T* at;
  int64_t block, token, head;
};

// Over a cache of C: of T, or int8_t with a scale to each token of a head (attention_int8.h).
template <class T, class C = T>
struct Attention {
  Pages<C> keys, values;
  const int64_t* slots;         // [tokens]
  const int32_t* tables;        // [requests, columns]
  const int32_t* query_starts;  // [requests + 1]
  const int32_t* context_lens;  // [requests]
  const float* sinks;           // [heads] or null
  int64_t tokens, requests, columns, block_size, heads, kv_heads, key_size, value_size, window;
  float scale, softcap;
  int threads;
};

// Turn queries and keys of qkv [tokens, heads + 2 kv_heads, size]: queries into `turned` [tokens, heads, size], keys and
// values into the cache. table [positions, dims]: cos half | sin half.
template <class T, class C>
void turn_and_write(const Attention<T, C>& a, const T* qkv, const int64_t* positions, const float* table,
                    int64_t dims, T* turned);
// k [tokens, kv_heads, key_size] and v [tokens, kv_heads, value_size] into the cache.
template <class T, class C>
void write(const Attention<T, C>& a, const T* k, const T* v);
// q [tokens, heads, key_size] → out [tokens, heads, value_size]
template <class T, class C>
void attend(const Attention<T, C>& a, const T* q, T* out);

}  // namespace enginebay
