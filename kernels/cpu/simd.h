// Sixteen float lanes with one meaning on every instruction set: the same operations in the same order,
// so the same bits from AVX-512, AVX2 and the portable form. Fused multiply-adds are always explicit.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) || (defined(__AVX2__) && defined(__FMA__))
#include <immintrin.h>
#endif

namespace tdm {

constexpr int kLanes = 16;

// How many f32x16 the machine holds at once: tiles are sized by it, bits are not.
#if defined(__AVX512F__)
constexpr int kRegisters = 32;
#else
constexpr int kRegisters = 8;
#endif

// Round to nearest, ties to even; NaN stays NaN.
inline uint16_t to_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
// The same with subnormal numbers taken as zero.
inline uint16_t to_normal_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits & 0x7f800000u ? to_bf16(x) : static_cast<uint16_t>(bits >> 16 & 0x8000u);
}
inline float from_bf16(uint16_t bits) {
  const uint32_t word = static_cast<uint32_t>(bits) << 16;
  float out;
  std::memcpy(&out, &word, sizeof out);
  return out;
}

#if defined(__AVX512F__)

struct f32x16 {
  __m512 v;
};
inline f32x16 set1(float x) { return {_mm512_set1_ps(x)}; }
inline f32x16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, f32x16 a) { _mm512_storeu_ps(p, a.v); }
inline f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline f32x16 operator+(f32x16 a, f32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline f32x16 operator-(f32x16 a, f32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline f32x16 operator*(f32x16 a, f32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline f32x16 operator/(f32x16 a, f32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
inline f32x16 max(f32x16 a, f32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline f32x16 min(f32x16 a, f32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }
inline f32x16 round(f32x16 a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
// 2^n for whole n in [-126, 127].
inline f32x16 pow2(f32x16 n) {
  const __m512i e = _mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(e, 23))};
}
inline f32x16 load_bf16(const uint16_t* p) {
  const __m512i w = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(w, 16))};
}

#elif defined(__AVX2__) && defined(__FMA__)

struct f32x16 {
  __m256 a, b;
};
inline f32x16 set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline f32x16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, f32x16 x) { _mm256_storeu_ps(p, x.a), _mm256_storeu_ps(p + 8, x.b); }
inline f32x16 fma(f32x16 x, f32x16 y, f32x16 z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
inline f32x16 operator+(f32x16 x, f32x16 y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline f32x16 operator-(f32x16 x, f32x16 y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline f32x16 operator*(f32x16 x, f32x16 y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline f32x16 operator/(f32x16 x, f32x16 y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline f32x16 max(f32x16 x, f32x16 y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline f32x16 min(f32x16 x, f32x16 y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
inline f32x16 round(f32x16 x) {
  constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.a, mode), _mm256_round_ps(x.b, mode)};
}
inline __m256 pow2_half(__m256 n) {
  const __m256i e = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(e, 23));
}
inline f32x16 pow2(f32x16 n) { return {pow2_half(n.a), pow2_half(n.b)}; }
inline __m256 widen_half(const uint16_t* p) {
  const __m256i w = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(w, 16));
}
inline f32x16 load_bf16(const uint16_t* p) { return {widen_half(p), widen_half(p + 8)}; }

#else

struct f32x16 {
  float v[kLanes];
};
template <class F>
inline f32x16 lanes(F f) {
  f32x16 out;
  for (int i = 0; i < kLanes; ++i) out.v[i] = f(i);
  return out;
}
inline f32x16 set1(float x) {
  return lanes([&](int) { return x; });
}
inline f32x16 load(const float* p) {
  return lanes([&](int i) { return p[i]; });
}
inline void store(float* p, f32x16 a) { std::memcpy(p, a.v, sizeof a.v); }
inline f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
  return lanes([&](int i) { return std::fma(a.v[i], b.v[i], c.v[i]); });
}
inline f32x16 operator+(f32x16 a, f32x16 b) {
  return lanes([&](int i) { return a.v[i] + b.v[i]; });
}
inline f32x16 operator-(f32x16 a, f32x16 b) {
  return lanes([&](int i) { return a.v[i] - b.v[i]; });
}
inline f32x16 operator*(f32x16 a, f32x16 b) {
  return lanes([&](int i) { return a.v[i] * b.v[i]; });
}
inline f32x16 operator/(f32x16 a, f32x16 b) {
  return lanes([&](int i) { return a.v[i] / b.v[i]; });
}
inline f32x16 max(f32x16 a, f32x16 b) {
  return lanes([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline f32x16 min(f32x16 a, f32x16 b) {
  return lanes([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline f32x16 round(f32x16 a) {
  return lanes([&](int i) { return std::nearbyint(a.v[i]); });
}
inline f32x16 pow2(f32x16 n) {
  return lanes([&](int i) { return std::ldexp(1.0f, static_cast<int>(n.v[i])); });
}
inline f32x16 load_bf16(const uint16_t* p) {
  return lanes([&](int i) { return from_bf16(p[i]); });
}

#endif

inline f32x16 zero() { return set1(0.0f); }

// The first n lanes from memory, zeros behind them.
inline f32x16 load_n(const float* p, int64_t n) {
  if (n >= kLanes) return load(p);
  float tail[kLanes] = {};
  std::memcpy(tail, p, static_cast<size_t>(n) * sizeof(float));
  return load(tail);
}
inline void store_n(float* p, f32x16 a, int64_t n) {
  if (n >= kLanes) return store(p, a);
  float tail[kLanes];
  store(tail, a);
  std::memcpy(p, tail, static_cast<size_t>(n) * sizeof(float));
}

// Halves folded onto each other: 16, 8, 4, 2, 1.
#if defined(__AVX2__) && defined(__FMA__)
#if defined(__AVX512F__)
inline __m256 low_half(f32x16 a) { return _mm512_castps512_ps256(a.v); }
inline __m256 high_half(f32x16 a) {
  return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a.v), 1));
}
#else
inline __m256 low_half(f32x16 a) { return a.a; }
inline __m256 high_half(f32x16 a) { return a.b; }
#endif
inline float hsum(f32x16 a) {
  const __m256 eight = _mm256_add_ps(low_half(a), high_half(a));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float hmax(f32x16 a) {
  const __m256 eight = _mm256_max_ps(low_half(a), high_half(a));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
#else
template <class F>
inline float folded(f32x16 a, F f) {
  float s[kLanes];
  store(s, a);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) s[i] = f(s[i], s[i + half]);
  return s[0];
}
inline float hsum(f32x16 a) {
  return folded(a, [](float x, float y) { return x + y; });
}
inline float hmax(f32x16 a) {
  return folded(a, [](float x, float y) { return x > y ? x : y; });
}
#endif

// e^x for x <= 88, below -87 the smallest normal result's neighbourhood; about 1 ulp.
// Cody and Waite's reduction by ln 2 in two parts, then a polynomial of degree 6 for e^r on |r| <= ln(2)/2.
inline f32x16 exp(f32x16 x) {
  x = max(min(x, set1(88.0f)), set1(-87.0f));
  const f32x16 n = round(x * set1(1.44269504088896341f));
  f32x16 r = fma(n, set1(-0.693359375f), x);
  r = fma(n, set1(2.12194440e-4f), r);
  f32x16 p = set1(1.9875691500e-4f);
  p = fma(p, r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  p = fma(p, r * r, r) + set1(1.0f);
  return p * pow2(n);
}

}  // namespace tdm
