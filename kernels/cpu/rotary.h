// Rotary position embedding of one head, halves rotated: dimension i turns with dimension i + half, the rest passes
// through.
#pragma once
#include "simd.h"

namespace tdm {

// `cos` and `sin` are those of the row's position, [half] each.
inline void rotate(const float* x, const float* cos, const float* sin, float* y, int64_t half, int64_t head_dim) {
  for (int64_t i = 0; i < half; i += kLanes) {
    const int64_t n = half - i;
    const f32x16 first = load_n(x + i, n), second = load_n(x + half + i, n);
    const f32x16 c = load_n(cos + i, n), s = load_n(sin + i, n);
    store_n(y + i, first * c - second * s, n);
    store_n(y + half + i, second * c + first * s, n);
  }
  for (int64_t i = 2 * half; i < head_dim; ++i) y[i] = x[i];
}

}  // namespace tdm
