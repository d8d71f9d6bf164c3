// Products with fp32 and bf16 weights. Each output is a chain of fused multiply-adds over k, cut every kBlock steps
// and the pieces added in order, so an element's bits depend on K alone: not on the rows beside it, the tile that
// holds it or the thread.
#include "linear.h"

namespace {

using namespace tdm;

constexpr int64_t kBlock = 128;
// Rows from which on a tile computes for so long that the hardware no longer fetches ahead of it.
constexpr int kAhead = 4;

inline void panel_row(const float* w, f32x16& lo, f32x16& hi) { lo = load(w), hi = load(w + kLanes); }
inline void panel_row(const uint16_t* w, f32x16& lo, f32x16& hi) { load_pair(w, lo, hi); }

template <class W>
struct FloatProduct {
  static constexpr int kMost = kRegisters >= 32 ? 12 : 2, kPairs = kRegisters >= 32 ? 4 : 1;
  FloatPanels<W> panels;
  const float* rows;  // per tile of R rows [k][R]

  FloatProduct(const LinearArgs& a, Part part) : panels(a.weight, a.k), rows(a.x) {
    const int64_t count = *a.count;
    if (count == 1 && !a.norm) return;
    auto* tiles = static_cast<float*>(workspace(Use::kTiles, static_cast<size_t>(count * a.k) * sizeof(float)));
    rows = tiles;
    int64_t first = 0, size = 0;
    each_input(a, part, [&](int64_t row, const float* x) {
      if (row == first + size) first = row, size = tile_at<kMost>(count, row);
      float* to = tiles + first * a.k + (row - first);
      for (int64_t k = 0; k < a.k; ++k) to[k * size] = x[k];
    });
  }

  template <int R, int P>
  void tile(int64_t row, const int64_t (&panel)[P], float* out) const {
    const float* x = rows + row * panels.k;
    const W* w[P];
    f32x16 total[R][2 * P];
    for (int p = 0; p < P; ++p) w[p] = panels.at(panel[p]);
    for (auto& line : total)
      for (auto& t : line) t = zero();
    for (int64_t begin = 0; begin < panels.k; begin += kBlock) {
      const int64_t end = begin + kBlock < panels.k ? begin + kBlock : panels.k;
      f32x16 acc[R][2 * P];
      for (auto& line : acc)
        for (auto& c : line) c = zero();
      for (int64_t k = begin; k < end; ++k) {
        if constexpr (R >= kAhead)
          for (int p = 0; p < P; ++p) __builtin_prefetch(w[p] + (k + 32) * kPanel);
        f32x16 b[2 * P];
        for (int p = 0; p < P; ++p) panel_row(w[p] + k * kPanel, b[2 * p], b[2 * p + 1]);
        for (int r = 0; r < R; ++r) {
          const f32x16 s = set1(x[k * R + r]);
          for (int c = 0; c < 2 * P; ++c) acc[r][c] = fma(s, b[c], acc[r][c]);
        }
      }
      for (int r = 0; r < R; ++r)
        for (int c = 0; c < 2 * P; ++c) total[r][c] = total[r][c] + acc[r][c];
    }
    for (int r = 0; r < R; ++r)
      for (int c = 0; c < 2 * P; ++c) store(out + (r * 2 * P + c) * kLanes, total[r][c]);
  }
};

}  // namespace

TDM_KERNEL(linear_fp32, LinearArgs, LINEAR_SIGNATURE) { cover(FloatProduct<float>(a, part), a, part); }
TDM_KERNEL(linear_bf16, LinearArgs, LINEAR_SIGNATURE) { cover(FloatProduct<uint16_t>(a, part), a, part); }
