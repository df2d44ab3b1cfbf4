#include "kernels.h"
#include "linear_amx.h"
#include "parallel.h"

#include <algorithm>

namespace enginebay {
namespace {

constexpr int64_t kGroup = 256;      // rows that a thread takes through a block of weights: they stay in its L2 cache
constexpr int64_t kNear = 5 << 18;    // bytes of inputs that stay in a core's second-level cache, on AMX
constexpr int64_t kFewRows = 32;     // up to here the weights come from memory, and are fetched ahead
constexpr int64_t kSeen = 64;        // blocks after which their outputs are looked at: of 64 rows, half a megabyte
constexpr int64_t kWorth = 1 << 14;  // weights below which a fork costs more than it saves

template <class T, class Out>
void finish(const float* sums, const T* bias, Out* out, int64_t count) {
  for (int64_t i = 0; i < count; i += 16) {
    v16 v = load(sums + i);
    if (bias) v += load_upto(bias + i, count - i);
    store_upto(out + i, v, count - i);
  }
}

bool tiled(int64_t rows) { return rows > 16 && kind() == Kind::amx; }

// f(first row, rows, first block, end) over parts of all rows and blocks, whose inputs stay near.
template <class F>
void shared(int64_t rows, int64_t inputs, int64_t blocks, int threads, const F& f) {
  const int64_t most = std::max<int64_t>(kNear / (padded<bf16>(inputs) * 2) / 32 * 32, 32);
  const int64_t groups = (rows + most - 1) / most, each = (rows + 32 * groups - 1) / (32 * groups) * 32;
  parallel(blocks * groups, threads, [&](int64_t first, int64_t end) {
    while (first < end) {
      const int64_t from = first / blocks * each, block = first % blocks, some = std::min(end - first, blocks - block);
      f(from, std::min(rows - from, each), block, block + some);
      first += some;
    }
  });
}

}  // namespace

template <class T>
void pack(const T* weight, T* packed, int64_t outputs, int64_t inputs, int threads) {
  constexpr int depth = Packed<T>::depth, pair = depth == 1 ? 1 : 2;
  const int64_t tiles = padded<T>(inputs) / depth, blocks = (outputs + kBlock - 1) / kBlock;
  parallel(blocks, threads, [&](int64_t first, int64_t end) {
    for (int64_t block = first; block < end; ++block)
      for (int64_t tile = 0; tile < tiles; ++tile)
        for (int half = 0; half < 2; ++half)
          for (int row = 0; row < depth / pair; ++row)
            for (int n = 0; n < 16; ++n)
              for (int p = 0; p < pair; ++p) {
                const int64_t output = block * kBlock + half * 16 + n, input = tile * depth + row * pair + p;
                const bool there = output < outputs && input < inputs;
                packed[(((block * tiles + tile) * 2 + half) * (depth / pair) + row) * 16 * pair + n * pair + p] =
                    there ? weight[output * inputs + input] : T{};
              }
  });
}

template <class T>
void packed_rows(const T* packed, const int64_t* ids, T* out, int64_t count, int64_t inputs, int threads) {
  constexpr int depth = Packed<T>::depth, pair = depth == 1 ? 1 : 2;
  const int64_t size = padded<T>(inputs) * kBlock;
  parallel(count, count * inputs < kWorth ? 1 : threads, [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; ++i) {
      const T* at = packed + ids[i] / kBlock * size + ids[i] % kBlock / 16 * (depth / pair * 16 * pair) + ids[i] % 16 * pair;
      for (int64_t input = 0; input < inputs; ++input)
        out[i * inputs + input] = at[input / depth * depth * kBlock + input % depth / pair * 16 * pair + input % pair];
    }
  });
}

template <class T, class Out>
void linear(const T* x, int64_t step, const T* packed, const T* bias, Out* out, int64_t rows, int64_t inputs,
            int64_t outputs, int threads, Largest* largest) {
  const int64_t blocks = (outputs + kBlock - 1) / kBlock, size = padded<T>(inputs) * kBlock;
  if constexpr (sizeof(T) == 2)
    if (tiled(rows))
      return shared(rows, inputs, blocks, outputs * inputs < kWorth ? 1 : threads,
                    [&](int64_t from, int64_t count, int64_t first, int64_t end) {
                      const int64_t some = largest ? kSeen : end - first;
                      for (; first < end; first += some) {
                        const int64_t last = std::min(first + some, end);
                        amx_linear(x + from * step, step, packed, bias, out + from * outputs, count, inputs, outputs,
                                   first, last);
                        if (largest)
                          largest->look(out + from * outputs, outputs, from, count, first * kBlock,
                                        std::min(last * kBlock, outputs));
                      }
                    });
  const int64_t groups = (rows + kGroup - 1) / kGroup;
  parallel(blocks * groups, outputs * inputs < kWorth ? 1 : threads, [&](int64_t first, int64_t end) {
    PanelScope scope;
    alignas(64) float sums[kFewRows * kBlock * 4];
    for (int64_t item = first; item < end;) {
      const int64_t group = item / blocks, block = item % blocks, from = group * kGroup;
      const int64_t count = rows - from < kGroup ? rows - from : kGroup;
      int64_t some = end - item < blocks - block ? end - item : blocks - block;  // of this group
      some = count > kFewRows ? 1 : some < 4 ? some : 4;
      for (int64_t r = from; r < from + count; r += kFewRows) {
        const int64_t now = from + count - r < kFewRows ? from + count - r : kFewRows;
        panel(x + r * step, step, now, packed + block * size, size, some, inputs, sums, some * kBlock, false,
              r == from);
        const int64_t left = outputs - block * kBlock, width = left < some * kBlock ? left : some * kBlock;
        for (int64_t i = 0; i < now; ++i)
          finish(sums + i * some * kBlock, bias ? bias + block * kBlock : nullptr,
                 out + (r + i) * outputs + block * kBlock, width);
        if (largest) largest->look(out + r * outputs, outputs, r, now, block * kBlock, block * kBlock + width);
      }
      item += some;
    }
  });
}

bool gated_linear(const bf16* x, int64_t step, const bf16* packed, const bf16* bias, bf16* out, int64_t rows,
                  int64_t inputs, int64_t width, Activation activation, int threads) {
  if (!tiled(rows) || width % kBlock) return false;
  shared(rows, inputs, width / kBlock, 2 * width * inputs < kWorth ? 1 : threads,
         [&](int64_t from, int64_t count, int64_t first, int64_t end) {
           amx_gated_linear(x + from * step, step, packed, bias, out + from * width, count, inputs, width, activation,
                            first, end);
         });
  return true;
}

template void pack(const float*, float*, int64_t, int64_t, int);
template void pack(const bf16*, bf16*, int64_t, int64_t, int);
template void packed_rows(const float*, const int64_t*, float*, int64_t, int64_t, int);
template void packed_rows(const bf16*, const int64_t*, bf16*, int64_t, int64_t, int);
template void linear(const float*, int64_t, const float*, const float*, float*, int64_t, int64_t, int64_t, int, Largest*);
template void linear(const bf16*, int64_t, const bf16*, const bf16*, bf16*, int64_t, int64_t, int64_t, int, Largest*);
template void linear(const bf16*, int64_t, const bf16*, const bf16*, float*, int64_t, int64_t, int64_t, int, Largest*);

}  // namespace enginebay
