// How matrices are stored: panels of 32 outputs, k in sequence, so that a product streams through memory.
#pragma once
#include "bytes.h"

namespace tdm {

constexpr int kPanel = 32;
constexpr int64_t kGroup = 32;  // inputs that share an int4 scale; low-bit panels are padded to whole groups

inline int64_t padded_inputs(int64_t k) { return (k + kGroup - 1) / kGroup * kGroup; }

// fp32: [k][32].
struct Fp32Panels {
  const float* base;
  int64_t k;

  Fp32Panels(const void* weight, int64_t k) : base(static_cast<const float*>(weight)), k(k) {}
  const float* at(int64_t panel) const { return base + panel * kPanel * k; }
};

// bf16: [k / 2][32][2], none of them subnormal.
struct Bf16Panels {
  const uint16_t* base;
  int64_t k;

  Bf16Panels(const void* weight, int64_t k) : base(static_cast<const uint16_t*>(weight)), k((k + 1) / 2 * 2) {}
  const uint16_t* at(int64_t panel) const { return base + panel * kPanel * k; }
};

// int8: [k / 4][32][4] bytes of weight + 128, then 32 fp32 scales.
struct Int8Panels {
  const uint8_t* base;
  int64_t k;

  Int8Panels(const void* weight, int64_t k) : base(static_cast<const uint8_t*>(weight)), k(padded_inputs(k)) {}
  const uint8_t* at(int64_t panel) const { return base + panel * (k + 4) * kPanel; }
  const float* scales(int64_t panel) const { return reinterpret_cast<const float*>(at(panel) + k * kPanel); }
};

// int4: per group [4][32][4] bytes, then 32 fp16 scales and 32 fp16 minima; weight = scale * nibble + minimum.
// Byte [i][.][b] holds input 4 i + b in its low half and input 16 + 4 i + b in its high half.
struct Int4Panels {
  static constexpr int64_t kNibbles = kPanel * kGroup / 2;
  static constexpr int64_t kBytes = kNibbles + 4 * kPanel;
  const uint8_t* base;
  int64_t groups;

  Int4Panels(const void* weight, int64_t k)
      : base(static_cast<const uint8_t*>(weight)), groups(padded_inputs(k) / kGroup) {}
  const uint8_t* at(int64_t panel) const { return base + panel * groups * kBytes; }
};

}  // namespace tdm
