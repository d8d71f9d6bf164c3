// RMS norm over the last axis, alone or after the residual add. A group's sum of squares is sixteen chains
// over its width, folded in halves: the bits depend on the width alone.
#include "simd.h"
#include "tandem.h"

namespace {

using namespace tdm;

void normalise(const float* x, const float* weight, float* y, int64_t width, float eps) {
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

// `groups` norms of `width` each per row: 1 for the hidden state, the head count for head norms.
struct NormArgs {
  const int32_t* count;
  const float* x;
  int64_t x_stride;
  const float* weight;
  float* y;
  int64_t y_stride;
  int64_t groups;
  int64_t width;
  double eps;
};

struct AddNormArgs {
  const int32_t* count;
  const float* x;
  int64_t x_stride;
  const float* delta;
  int64_t delta_stride;
  const float* weight;
  float* sum;
  int64_t sum_stride;
  float* y;
  int64_t y_stride;
  int64_t width;
  double eps;
};

}  // namespace

TDM_KERNEL(rms_norm, NormArgs, "<count <x =x_stride <weight >y =y_stride =groups =width ~eps") {
  const Range tasks = share(*a.count * a.groups, part);
  for (int64_t t = tasks.begin; t < tasks.end; ++t) {
    const int64_t row = t / a.groups, at = t % a.groups * a.width;
    normalise(a.x + row * a.x_stride + at, a.weight, a.y + row * a.y_stride + at, a.width, static_cast<float>(a.eps));
  }
}

TDM_KERNEL(add_rms_norm, AddNormArgs,
           "<count <x =x_stride <delta =delta_stride <weight >sum =sum_stride >y =y_stride =width ~eps") {
  const Range tasks = share(*a.count, part);
  for (int64_t row = tasks.begin; row < tasks.end; ++row) {
    const float* x = a.x + row * a.x_stride;
    const float* delta = a.delta + row * a.delta_stride;
    float* sum = a.sum + row * a.sum_stride;
    for (int64_t i = 0; i < a.width; i += kLanes) {
      const int64_t n = a.width - i;
      store_n(sum + i, load_n(x + i, n) + load_n(delta + i, n), n);
    }
    normalise(sum, a.weight, a.y + row * a.y_stride, a.width, static_cast<float>(a.eps));
  }
}
