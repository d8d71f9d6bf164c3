// Sixteen int32 lanes and the exact products that low-bit weights need: four unsigned bytes times four signed ones,
// summed into a lane. Whole numbers have no rounding, so every form gives the same bits.
#pragma once
#include "simd.h"

namespace tdm {

#if defined(__AVX512BW__)

struct i32x16 {
  __m512i v;
};
// Lane j holds four unsigned bytes.
struct u8x64 {
  __m512i v;
};
inline i32x16 set1_int(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline i32x16 operator-(i32x16 a, i32x16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
inline f32x16 to_f32(i32x16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
inline u8x64 load_bytes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
inline u8x64 low_nibbles(u8x64 a) { return {_mm512_and_si512(a.v, _mm512_set1_epi8(15))}; }
inline u8x64 high_nibbles(u8x64 a) { return {_mm512_and_si512(_mm512_srli_epi16(a.v, 4), _mm512_set1_epi8(15))}; }
inline f32x16 load_fp16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
// Whole numbers in [-128, 127] as bytes.
inline void store_bytes(int8_t* p, f32x16 a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a.v)));
}
// Four signed bytes, the same in every lane.
struct i8x4 {
  __m512i v;
};
inline i8x4 four(const int8_t* a) {
  int32_t word;
  std::memcpy(&word, a, sizeof word);
  return {_mm512_set1_epi32(word)};
}
#if defined(__AVX512VNNI__)
// Written out, since g++ 12 copies every sum that the intrinsic adds to, and runs out of registers.
inline i32x16 dot4(i32x16 sum, u8x64 w, i8x4 a) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum.v) : "v"(w.v), "v"(a.v));
  return sum;
}
inline i32x16 dot4_nibbles(i32x16 sum, u8x64 w, i8x4 a) { return dot4(sum, w, a); }
#else
inline i32x16 dot4(i32x16 sum, u8x64 w, i8x4 a) {
  const __m512i x = a.v;
  const __m512i even = _mm512_and_si512(w.v, _mm512_set1_epi16(255)), odd = _mm512_srli_epi16(w.v, 8);
  const __m512i x_even = _mm512_srai_epi16(_mm512_slli_epi16(x, 8), 8), x_odd = _mm512_srai_epi16(x, 8);
  const __m512i pair = _mm512_add_epi32(_mm512_madd_epi16(even, x_even), _mm512_madd_epi16(odd, x_odd));
  return {_mm512_add_epi32(sum.v, pair)};
}
// Two products of a nibble fit sixteen bits.
inline i32x16 dot4_nibbles(i32x16 sum, u8x64 w, i8x4 a) {
  const __m512i pairs = _mm512_maddubs_epi16(w.v, a.v);
  return {_mm512_add_epi32(sum.v, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))};
}
#endif

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

struct i32x16 {
  __m256i a, b;
};
struct u8x64 {
  __m256i a, b;
};
inline i32x16 set1_int(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline i32x16 operator-(i32x16 x, i32x16 y) { return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)}; }
inline f32x16 to_f32(i32x16 x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
inline __m256i half_bytes(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline u8x64 load_bytes(const uint8_t* p) { return {half_bytes(p), half_bytes(p + 32)}; }
inline u8x64 low_nibbles(u8x64 x) {
  const __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_and_si256(x.a, mask), _mm256_and_si256(x.b, mask)};
}
inline u8x64 high_nibbles(u8x64 x) { return low_nibbles({_mm256_srli_epi16(x.a, 4), _mm256_srli_epi16(x.b, 4)}); }
inline __m256 half_fp16(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline f32x16 load_fp16(const uint16_t* p) { return {half_fp16(p), half_fp16(p + 8)}; }
inline void store_bytes(int8_t* p, f32x16 x) {
  int32_t whole[kLanes];
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(whole), _mm256_cvtps_epi32(x.a));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(whole + 8), _mm256_cvtps_epi32(x.b));
  for (int i = 0; i < kLanes; ++i) p[i] = static_cast<int8_t>(whole[i]);
}
struct i8x4 {
  __m256i v;
};
inline i8x4 four(const int8_t* a) {
  int32_t word;
  std::memcpy(&word, a, sizeof word);
  return {_mm256_set1_epi32(word)};
}
inline __m256i dot4_half(__m256i sum, __m256i w, __m256i even, __m256i odd) {
  const __m256i low = _mm256_and_si256(w, _mm256_set1_epi16(255)), high = _mm256_srli_epi16(w, 8);
  return _mm256_add_epi32(sum, _mm256_add_epi32(_mm256_madd_epi16(low, even), _mm256_madd_epi16(high, odd)));
}
inline i32x16 dot4(i32x16 sum, u8x64 w, i8x4 a) {
  const __m256i x = a.v;
  const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8), odd = _mm256_srai_epi16(x, 8);
  return {dot4_half(sum.a, w.a, even, odd), dot4_half(sum.b, w.b, even, odd)};
}
// Two products of a nibble fit sixteen bits.
inline __m256i nibbles_half(__m256i sum, __m256i w, __m256i x) {
  return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), _mm256_set1_epi16(1)));
}
inline i32x16 dot4_nibbles(i32x16 sum, u8x64 w, i8x4 a) {
  return {nibbles_half(sum.a, w.a, a.v), nibbles_half(sum.b, w.b, a.v)};
}

#else

struct i32x16 {
  int32_t v[kLanes];
};
struct u8x64 {
  uint8_t v[4 * kLanes];
};
template <class F>
inline i32x16 whole(F f) {
  i32x16 out;
  for (int i = 0; i < kLanes; ++i) out.v[i] = f(i);
  return out;
}
inline i32x16 set1_int(int32_t x) {
  return whole([&](int) { return x; });
}
inline i32x16 operator-(i32x16 a, i32x16 b) {
  return whole([&](int i) { return a.v[i] - b.v[i]; });
}
inline f32x16 to_f32(i32x16 a) {
  float out[kLanes];
  for (int i = 0; i < kLanes; ++i) out[i] = static_cast<float>(a.v[i]);
  return load(out);
}
inline u8x64 load_bytes(const uint8_t* p) {
  u8x64 out;
  std::memcpy(out.v, p, sizeof out.v);
  return out;
}
inline u8x64 low_nibbles(u8x64 a) {
  for (auto& byte : a.v) byte &= 15;
  return a;
}
inline u8x64 high_nibbles(u8x64 a) {
  for (auto& byte : a.v) byte >>= 4;
  return a;
}
inline float from_fp16(uint16_t bits) {
  const float magnitude = (bits & 0x7c00) ? std::ldexp(static_cast<float>((bits & 0x3ff) | 0x400), (bits >> 10 & 31) - 25)
                                          : std::ldexp(static_cast<float>(bits & 0x3ff), -24);
  return bits & 0x8000 ? -magnitude : magnitude;
}
inline f32x16 load_fp16(const uint16_t* p) {
  float out[kLanes];
  for (int i = 0; i < kLanes; ++i) out[i] = from_fp16(p[i]);
  return load(out);
}
inline void store_bytes(int8_t* p, f32x16 a) {
  float out[kLanes];
  store(out, a);
  for (int i = 0; i < kLanes; ++i) p[i] = static_cast<int8_t>(out[i]);
}
struct i8x4 {
  int8_t v[4];
};
inline i8x4 four(const int8_t* a) {
  i8x4 out;
  std::memcpy(out.v, a, sizeof out.v);
  return out;
}
inline i32x16 dot4(i32x16 sum, u8x64 w, i8x4 a) {
  return whole([&](int i) {
    int32_t lane = sum.v[i];
    for (int b = 0; b < 4; ++b) lane += static_cast<int32_t>(w.v[4 * i + b]) * a.v[b];
    return lane;
  });
}
inline i32x16 dot4_nibbles(i32x16 sum, u8x64 w, i8x4 a) { return dot4(sum, w, a); }

#endif

}  // namespace tdm
