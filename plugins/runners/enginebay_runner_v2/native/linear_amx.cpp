#include "linear_amx.h"

#include "amx.h"

#if defined(__AMX_BF16__) && defined(__AMX_TILE__) && defined(__linux__)
#include <immintrin.h>

#include <initializer_list>
#include <memory>

#include "activation.h"

namespace enginebay {
namespace {

// Tiles 0 to 3 hold sums, 4 and 5 rows of x, 6 and 7 halves of a block of weights.
struct alignas(64) Config {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {};
};

class Tiles {
 public:
  ~Tiles() {
    if (rows_) _tile_release();
  }
  void take(int64_t rows) {  // 1 to 32
    if (rows == rows_) return;
    rows_ = rows;
    Config config;
    for (int tile : {0, 1, 4}) config.rows[tile] = uint8_t(rows < 16 ? rows : 16);
    for (int tile : {2, 3, 5}) config.rows[tile] = uint8_t(rows > 16 ? rows - 16 : 16);
    for (int tile : {6, 7}) config.rows[tile] = 16;
    __asm__ volatile("" : : "r"(&config) : "memory");  // the intrinsic tells the compiler of 8 bytes alone
    _tile_loadconfig(&config);
  }

 private:
  int64_t rows_ = 0;
};

// Weights that come next, asked for a few lines at a time.
struct Next {
  const char* at;
  int64_t lines, each;
  void bring() {
    const int64_t now = each < lines ? each : lines;
    for (int64_t i = 0; i < now; ++i) __builtin_prefetch(at + i * 64, 0, 2);
    at += now * 64;
    lines -= now;
  }
};

// Sums [rows, 32] that wait to become outputs, a few rows at a time.
template <class Out, Activation activation>
struct Waiting {
  enum Stage { plain, gate, gated } stage;
  const float* sums;
  const bf16* bias;
  float* gates;  // [rows, 32]: written by a gate, read by what it gates
  Out* out;
  int64_t step, rows, width, each;

  void write(int64_t count) {
    for (; count > 0 && rows > 0; --count, --rows, sums += kBlock, gates += kBlock, out += step) {
      v16 low = load(sums), high = load(sums + 16);
      if (bias) {
        low += load_upto(bias, width);
        if (width > 16) high += load_upto(bias + 16, width - 16);
      }
      if (stage == gate) {  // rounded as in memory, so that this gives the bits of two operators
        store(gates, activated<bf16, activation>(rounded<bf16>(low)));
        store(gates + 16, activated<bf16, activation>(rounded<bf16>(high)));
      } else if (stage == gated) {
        store_pair(out, load(gates) * rounded<bf16>(low), load(gates + 16) * rounded<bf16>(high));
      } else if (width == kBlock) {
        store_pair(out, low, high);
      } else {
        store_upto(out, low, width);
        if (width > 16) store_upto(out + 16, high, width - 16);
      }
    }
  }
};

template <bool both, class Waiting>
void product(const bf16* x, int64_t step, const bf16* w, int64_t tiles, float* sums, Next& next, Waiting& waiting) {
  _tile_zero(0);
  _tile_zero(1);
  if (both) _tile_zero(2);
  if (both) _tile_zero(3);
  for (int64_t tile = 0; tile < tiles; ++tile, x += 32, w += 1024) {
    _tile_loadd(6, w, 64);
    _tile_stream_loadd(4, x, step * 2);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, w + 512, 64);
    _tile_dpbf16ps(1, 4, 7);
    next.bring();
    if (both) {
      _tile_stream_loadd(5, x + 16 * step, step * 2);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    waiting.write(waiting.each);
  }
  waiting.write(waiting.rows);
  _tile_stored(0, sums, 128);
  _tile_stored(1, sums + 16, 128);
  if (both) _tile_stored(2, sums + 512, 128);
  if (both) _tile_stored(3, sums + 528, 128);
}

// All rows times one block of weights after another; the outputs of the last rows are written when it goes.
template <class Waiting>
class Layer {
 public:
  Layer(const bf16* x, int64_t step, int64_t rows, int64_t inputs)
      : x_(x), step_(step), rows_(rows), tiles_((inputs + 31) / 32) {}
  ~Layer() { waiting_.write(waiting_.rows); }
  int64_t size() const { return tiles_ * 1024; }

  void block(const bf16* w, const bf16* then, Waiting what) {
    const int64_t panels = (rows_ + 31) / 32;
    Next next{reinterpret_cast<const char*>(then), then ? size() / 32 : 0, (32 + panels - 1) / panels};
    for (int64_t r = 0; r < rows_; r += 32, which_ ^= 1) {
      const int64_t now = rows_ - r < 32 ? rows_ - r : 32;
      config_.take(now);
      waiting_.each = (waiting_.rows + tiles_ - 1) / tiles_;
      if (now > 16)
        product<true>(x_ + r * step_, step_, w, tiles_, sums_[which_], next, waiting_);
      else
        product<false>(x_ + r * step_, step_, w, tiles_, sums_[which_], next, waiting_);
      waiting_ = what;
      waiting_.sums = sums_[which_];
      waiting_.rows = now;
      what.out += now * what.step;
      what.gates += now * kBlock;
    }
  }

 private:
  alignas(64) float sums_[2][kBlock * kBlock];
  Tiles config_;
  Waiting waiting_{};
  int which_ = 0;
  const bf16* x_;
  int64_t step_, rows_, tiles_;
};

template <Activation activation>
void gated(const bf16* x, int64_t step, const bf16* packed, const bf16* bias, bf16* out, int64_t rows, int64_t inputs,
           int64_t width, int64_t first, int64_t end) {
  using Wait = Waiting<bf16, activation>;
  const std::unique_ptr<float[]> gates(new float[rows * kBlock]);
  Layer<Wait> layer(x, step, rows, inputs);
  const int64_t size = layer.size(), half = width / kBlock * size;
  for (int64_t block = first; block < end; ++block) {
    const bf16* const w = packed + block * size;
    const int64_t at = block * kBlock;
    layer.block(w, w + half, {Wait::gate, nullptr, bias ? bias + at : nullptr, gates.get(), out, 0, 0, kBlock, 0});
    layer.block(w + half, block + 1 < end ? w + size : nullptr,
                {Wait::gated, nullptr, bias ? bias + width + at : nullptr, gates.get(), out + at, width, 0, kBlock, 0});
  }
}

}  // namespace

template <class Out>
void amx_linear(const bf16* x, int64_t step, const bf16* packed, const bf16* bias, Out* out, int64_t rows,
                int64_t inputs, int64_t outputs, int64_t first, int64_t end) {
  using Wait = Waiting<Out, Activation::silu>;
  Layer<Wait> layer(x, step, rows, inputs);
  for (int64_t block = first; block < end; ++block) {
    const int64_t at = block * kBlock, width = outputs - at < kBlock ? outputs - at : kBlock;
    const bf16* const w = packed + block * layer.size();
    layer.block(w, block + 1 < end ? w + layer.size() : nullptr,
                {Wait::plain, nullptr, bias ? bias + at : nullptr, nullptr, out + at, outputs, 0, width, 0});
  }
}

void amx_gated_linear(const bf16* x, int64_t step, const bf16* packed, const bf16* bias, bf16* out, int64_t rows,
                      int64_t inputs, int64_t width, Activation activation, int64_t first, int64_t end) {
  const auto one = activation == Activation::silu        ? gated<Activation::silu>
                   : activation == Activation::gelu_tanh ? gated<Activation::gelu_tanh>
                                                         : gated<Activation::gelu>;
  one(x, step, packed, bias, out, rows, inputs, width, first, end);
}

}  // namespace enginebay
#else
namespace enginebay {
template <class Out>
void amx_linear(const bf16*, int64_t, const bf16*, const bf16*, Out*, int64_t, int64_t, int64_t, int64_t, int64_t) {}
void amx_gated_linear(const bf16*, int64_t, const bf16*, const bf16*, bf16*, int64_t, int64_t, int64_t, Activation,
                      int64_t, int64_t) {}
}  // namespace enginebay
#endif

namespace enginebay {
template void amx_linear(const bf16*, int64_t, const bf16*, const bf16*, bf16*, int64_t, int64_t, int64_t, int64_t,
                         int64_t);
template void amx_linear(const bf16*, int64_t, const bf16*, const bf16*, float*, int64_t, int64_t, int64_t, int64_t,
                         int64_t);
}  // namespace enginebay
