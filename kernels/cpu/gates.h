// Gates of sixteen lanes. What is not a number stays none, which the exponential alone would hide.
#pragma once
#include "simd.h"

namespace tdm {

inline f32x16 sigmoid(f32x16 x) { return fma(x, zero(), set1(1.0f) / (set1(1.0f) + exp(zero() - x))); }

// log(1 + t) for t in [0, 1]: 2 artanh(t / (2 + t)) by its series, whose argument is a third at most.
inline f32x16 log1p_unit(f32x16 t) {
  const f32x16 s = t / (set1(2.0f) + t), square = s * s;
  f32x16 sum = set1(1.0f / 15.0f);
  sum = fma(sum, square, set1(1.0f / 13.0f));
  sum = fma(sum, square, set1(1.0f / 11.0f));
  sum = fma(sum, square, set1(1.0f / 9.0f));
  sum = fma(sum, square, set1(1.0f / 7.0f));
  sum = fma(sum, square, set1(1.0f / 5.0f));
  sum = fma(sum, square, set1(1.0f / 3.0f));
  return fma(sum * square, s + s, s + s);
}

// log(1 + e^x)
inline f32x16 softplus(f32x16 x) { return max(x, zero()) + log1p_unit(exp(min(x, zero() - x))); }

// exp(-exp(a_log) softplus(x)): what a state keeps of itself.
inline f32x16 decay(f32x16 x, f32x16 a_log) { return fma(x, zero(), exp(zero() - exp(a_log) * softplus(x))); }

}  // namespace tdm
