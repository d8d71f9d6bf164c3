// Rotary position embedding, halves rotated: dimension i turns with dimension i + half, the rest passes through.
#include "simd.h"
#include "tandem.h"

namespace {

using namespace tdm;

struct Args {
  const int32_t* count;
  const float* x;
  int64_t x_stride;
  const float* cos;  // [context, half]
  const float* sin;
  const int32_t* position;
  float* y;
  int64_t y_stride;
  int64_t heads;
  int64_t head_dim;
  int64_t half;
};

}  // namespace

TDM_KERNEL(rotary, Args, "<count <x =x_stride <cos <sin <position >y =y_stride =heads =head_dim =half") {
  const Range tasks = share(*a.count * a.heads, part);
  for (int64_t t = tasks.begin; t < tasks.end; ++t) {
    const int64_t row = t / a.heads, at = t % a.heads * a.head_dim;
    const float* x = a.x + row * a.x_stride + at;
    float* y = a.y + row * a.y_stride + at;
    const float* cos = a.cos + a.position[row] * a.half;
    const float* sin = a.sin + a.position[row] * a.half;
    for (int64_t i = 0; i < a.half; i += kLanes) {
      const int64_t n = a.half - i;
      const f32x16 first = load_n(x + i, n), second = load_n(x + a.half + i, n);
      const f32x16 c = load_n(cos + i, n), s = load_n(sin + i, n);
      store_n(y + i, first * c - second * s, n);
      store_n(y + a.half + i, second * c + first * s, n);
    }
    for (int64_t i = 2 * a.half; i < a.head_dim; ++i) y[i] = x[i];
  }
}
