// y = x W^T + b. Weights lie in panels of 32 outputs, k in sequence: [N/32][K][32].
// Each output is a chain of fused multiply-adds over k, cut every kBlock steps and the pieces added in order,
// so an element's bits depend on K alone: not on the rows beside it, the tile that holds it or the thread.
#include "simd.h"
#include "tandem.h"

namespace {

using namespace tdm;

constexpr int kPanel = 32;
constexpr int64_t kBlock = 128;

struct Args {
  const int32_t* count;
  const float* x;
  int64_t x_stride;
  const void* weight;
  const float* bias;
  float* y;
  int64_t y_stride;
  int64_t n;
  int64_t k;
};

inline void panel_row(const float* w, f32x16& lo, f32x16& hi) { lo = load(w), hi = load(w + kLanes); }
inline void panel_row(const uint16_t* w, f32x16& lo, f32x16& hi) { load_pair(w, lo, hi); }

// R rows times P panels.
template <int R, int P, class W>
void tile(const Args& a, const W* weight, int64_t row, int64_t panel) {
  const float* x = a.x + row * a.x_stride;
  const W* w = weight + panel * kPanel * a.k;
  f32x16 total[R][2 * P];
  for (auto& line : total)
    for (auto& t : line) t = zero();
  for (int64_t begin = 0; begin < a.k; begin += kBlock) {
    const int64_t end = begin + kBlock < a.k ? begin + kBlock : a.k;
    f32x16 acc[R][2 * P];
    for (auto& line : acc)
      for (auto& c : line) c = zero();
    for (int64_t k = begin; k < end; ++k) {
      f32x16 b[2 * P];
      for (int p = 0; p < P; ++p) panel_row(w + (p * a.k + k) * kPanel, b[2 * p], b[2 * p + 1]);
      for (int r = 0; r < R; ++r) {
        const f32x16 s = set1(x[r * a.x_stride + k]);
        for (int c = 0; c < 2 * P; ++c) acc[r][c] = fma(s, b[c], acc[r][c]);
      }
    }
    for (int r = 0; r < R; ++r)
      for (int c = 0; c < 2 * P; ++c) total[r][c] = total[r][c] + acc[r][c];
  }
  for (int c = 0; c < 2 * P; ++c) {
    const int64_t column = panel * kPanel + c * kLanes;
    const int64_t width = a.n - column;
    if (width <= 0) break;
    for (int r = 0; r < R; ++r) {
      f32x16 out = total[r][c];
      if (a.bias) out = out + load_n(a.bias + column, width);
      store_n(a.y + (row + r) * a.y_stride + column, out, width);
    }
  }
}

// All rows of `P` panels, the weights read from memory once and from the cache after that.
template <int P, class W>
void rows(const Args& a, const W* weight, int64_t count, int64_t panel) {
  int64_t row = 0;
  if constexpr (kRegisters >= 32 && P == 1) {
    for (; count - row >= 12; row += 12) tile<12, 1>(a, weight, row, panel);
    if (count - row >= 8) tile<8, 1>(a, weight, row, panel), row += 8;
    if (count - row >= 6) tile<6, 1>(a, weight, row, panel), row += 6;
  }
  if constexpr (kRegisters >= 32) {
    for (; count - row >= 4; row += 4) tile<4, P>(a, weight, row, panel);
    if (count - row == 3) tile<3, P>(a, weight, row, panel), row += 3;
  }
  for (; count - row >= 2; row += 2) tile<2, P>(a, weight, row, panel);
  if (count - row == 1) tile<1, P>(a, weight, row, panel);
}

template <class W>
void linear(const Args& a, Part part) {
  const auto* weight = static_cast<const W*>(a.weight);
  const int64_t count = *a.count;
  Range panels = share((a.n + kPanel - 1) / kPanel, part);
  // Few rows leave registers for several panels at once: more independent chains in flight.
  if (kRegisters >= 32 && count == 1)
    for (; panels.end - panels.begin >= 4; panels.begin += 4) rows<4>(a, weight, count, panels.begin);
  if (count <= (kRegisters >= 32 ? 4 : 1))
    for (; panels.end - panels.begin >= 2; panels.begin += 2) rows<2>(a, weight, count, panels.begin);
  for (; panels.begin < panels.end; ++panels.begin) rows<1>(a, weight, count, panels.begin);
}

}  // namespace

#define LINEAR_SIGNATURE "<count <x =x_stride <weight <bias >y =y_stride =n =k"

TDM_KERNEL(linear_fp32, Args, LINEAR_SIGNATURE) { linear<float>(a, part); }
TDM_KERNEL(linear_bf16, Args, LINEAR_SIGNATURE) { linear<uint16_t>(a, part); }
