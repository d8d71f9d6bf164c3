// Rows of a pass as signed bytes: the largest magnitude of a span becomes 127.
#pragma once
#include "bytes.h"
#include "panel.h"

namespace tdm {

// What turns a span's bytes back into reals: value = byte * scale; `sum` is that of the bytes.
struct Span {
  float scale;
  int32_t sum;
};

// Writes `width` bytes and zeros behind them up to whole groups. What is not finite makes the scale NaN, so that it
// shows in every output.
inline Span quantise(const float* x, int64_t width, int8_t* bytes) {
  f32x16 most = zero(), probe = zero(), total = zero();
  for (int64_t i = 0; i < width; i += kLanes) {
    const f32x16 v = load_n(x + i, width - i);
    most = max(most, max(v, zero() - v));
    probe = fma(v, zero(), probe);
  }
  const float peak = hmax(most);
  const f32x16 inverse = set1(peak > 0.0f ? 127.0f / peak : 0.0f);
  for (int64_t i = 0; i < padded_inputs(width); i += kLanes) {
    const f32x16 v = i < width ? round(load_n(x + i, width - i) * inverse) : zero();
    const f32x16 whole = max(min(v, set1(127.0f)), set1(-127.0f));
    store_bytes(bytes + i, whole);
    total = total + whole;  // exact: far below 2^24
  }
  return {peak / 127.0f + hsum(probe), static_cast<int32_t>(hsum(total))};
}

}  // namespace tdm
