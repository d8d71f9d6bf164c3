// Paged keys and values. A page holds, for each layer, K as [kv head][head_dim][64 tokens] and V as
// [kv head][64 tokens][padded head_dim]: scores are taken over 64 tokens at once, sums over the head's width.
#pragma once
#include "simd.h"

namespace tdm {

constexpr int64_t kPage = 64;
constexpr int64_t kMaxHeadDim = 256;

inline int64_t padded(int64_t head_dim) { return (head_dim + kLanes - 1) / kLanes * kLanes; }

inline f32x16 load_cache(const float* p) { return load(p); }
inline f32x16 load_cache(const uint16_t* p) { return load_bf16(p); }
inline void put(float* p, float x) { *p = x; }
inline void put(uint16_t* p, float x) { *p = to_bf16(x); }

// One layer's pages. `base` points at the layer's K (or V) in page 0, pages lie `page_bytes` apart.
template <class C>
struct Pages {
  char* base;
  int64_t page_bytes;
  const int32_t* block_table;  // one lane's row

  C* page(int64_t slot) const { return reinterpret_cast<C*>(base + block_table[slot / kPage] * page_bytes); }
  C* k(int64_t slot, int64_t head, int64_t head_dim) const {
    return page(slot) + head * head_dim * kPage + slot % kPage;
  }
  C* v(int64_t slot, int64_t head, int64_t head_dim) const {
    return page(slot) + (head * kPage + slot % kPage) * padded(head_dim);
  }
};

}  // namespace tdm
