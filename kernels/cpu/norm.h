// RMS norm of one row. Its sum of squares is sixteen chains over the width, folded in halves: the bits depend on the
// width alone.
#pragma once
#include "simd.h"

namespace tdm {

inline void rms_norm(const float* x, const float* weight, float* y, int64_t width, float eps) {
  f32x16 sum = zero();
  for (int64_t i = 0; i < width; i += kLanes) {
    const f32x16 v = load_n(x + i, width - i);
    sum = fma(v, v, sum);
  }
  const f32x16 scale = set1(1.0f / std::sqrt(hsum(sum) / static_cast<float>(width) + eps));
  for (int64_t i = 0; i < width; i += kLanes) {
    const int64_t n = width - i;
    store_n(y + i, load_n(x + i, n) * scale * load_n(weight + i, n), n);
  }
}

inline void add_rows(const float* x, const float* delta, float* sum, int64_t width) {
  for (int64_t i = 0; i < width; i += kLanes) {
    const int64_t n = width - i;
    store_n(sum + i, load_n(x + i, n) + load_n(delta + i, n), n);
  }
}

inline f32x16 silu(f32x16 x) { return x / (set1(1.0f) + exp(zero() - x)); }

}  // namespace tdm
