// Products of bf16 pairs, added to fp32 lanes: first the odd element's product, then the even one's, each with one
// rounding, subnormal numbers taken as zero. That is what VDPBF16PS computes; the other forms compute the same bits.
#pragma once
#include "simd.h"

namespace tdm {

#if defined(__AVX512BF16__)

// Lane j holds two bf16.
struct Pairs {
  __m512i v;
};
// An input pair in memory, and the same in every lane.
using Pair = uint32_t;
using Spread = __m512i;

inline Pairs load_pairs(const uint16_t* p) { return {_mm512_loadu_si512(p)}; }
inline Pair make_pair(uint16_t even, uint16_t odd) { return even | static_cast<uint32_t>(odd) << 16; }
inline Spread spread(Pair x) { return _mm512_set1_epi32(static_cast<int>(x)); }
// Written out, since g++ 12 copies every sum that the intrinsic adds to.
inline f32x16 dot2(f32x16 sum, const Pairs& w, Spread x) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum.v) : "v"(w.v), "v"(x));
  return sum;
}

#else

struct Pairs {
  f32x16 even, odd;
};
struct Pair {
  float even, odd;
};
using Spread = Pairs;

#if defined(__AVX512F__)
inline Pairs load_pairs(const uint16_t* p) {
  const __m512i w = _mm512_loadu_si512(p), top = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  return {{_mm512_castsi512_ps(_mm512_slli_epi32(w, 16))}, {_mm512_castsi512_ps(_mm512_and_si512(w, top))}};
}
#elif defined(__AVX2__) && defined(__FMA__)
inline Pairs load_pairs(const uint16_t* p) {
  const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 16));
  const __m256i top = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  return {{_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(b, 16))},
          {_mm256_castsi256_ps(_mm256_and_si256(a, top)), _mm256_castsi256_ps(_mm256_and_si256(b, top))}};
}
#else
inline Pairs load_pairs(const uint16_t* p) {
  return {lanes([&](int i) { return from_bf16(p[2 * i]); }), lanes([&](int i) { return from_bf16(p[2 * i + 1]); })};
}
#endif
inline Pair make_pair(uint16_t even, uint16_t odd) { return {from_bf16(even), from_bf16(odd)}; }
inline Spread spread(Pair x) { return {set1(x.even), set1(x.odd)}; }
inline f32x16 dot2(f32x16 sum, const Pairs& w, const Spread& x) { return fma(x.even, w.even, fma(x.odd, w.odd, sum)); }

#endif

}  // namespace tdm
