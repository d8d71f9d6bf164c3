// The ends of a pass: rows whose logits are wanted, rows that are left for a drafter, and per logits row its largest
// value's id and lead.
#include <limits>

#include "simd.h"
#include "tandem.h"

namespace {

using namespace tdm;

struct GatherArgs {
  const int32_t* count;
  const float* x;
  int64_t x_stride;
  const int32_t* row;
  float* y;
  int64_t y_stride;
  int64_t width;
};

struct ScatterArgs {
  const int32_t* count;
  const float* x;
  int64_t x_stride;
  float* ring;
  const int32_t* tap_out;
  int64_t width;
};

struct SumArgs {
  const int32_t* count;
  const float* x;
  int64_t x_stride;
  const float* delta;
  int64_t delta_stride;
  float* ring;
  int64_t ring_stride;
  const int32_t* tap_out;
  int64_t width;
};

struct ArgmaxArgs {
  const int32_t* count;
  const float* logits;
  int64_t logits_stride;
  int32_t* argmax;
  float* gap;
  int64_t width;
};

float largest(const float* x, int64_t begin, int64_t end) {
  float best = -std::numeric_limits<float>::infinity();
  f32x16 m = set1(best);
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) m = max(load(x + i), m);
  best = hmax(m);
  for (; i < end; ++i) best = x[i] > best ? x[i] : best;
  return best;
}

}  // namespace

TDM_KERNEL(gather_rows, GatherArgs, "<count <x =x_stride <row >y =y_stride =width") {
  const Range tasks = share(*a.count, part);
  for (int64_t i = tasks.begin; i < tasks.end; ++i)
    std::memcpy(a.y + i * a.y_stride, a.x + a.row[i] * a.x_stride, static_cast<size_t>(a.width) * sizeof(float));
}

TDM_KERNEL(scatter_rows, ScatterArgs, "<count <x =x_stride !ring <tap_out =width") {
  const Range tasks = share(*a.count, part);
  for (int64_t i = tasks.begin; i < tasks.end; ++i)
    if (a.tap_out[i] >= 0)
      std::memcpy(a.ring + a.tap_out[i] * a.width, a.x + i * a.x_stride, static_cast<size_t>(a.width) * sizeof(float));
}

TDM_KERNEL(scatter_sum, SumArgs, "<count <x =x_stride <delta =delta_stride !ring =ring_stride <tap_out =width") {
  const Range tasks = share(*a.count, part);
  for (int64_t i = tasks.begin; i < tasks.end; ++i) {
    if (a.tap_out[i] < 0) continue;
    const float *x = a.x + i * a.x_stride, *delta = a.delta + i * a.delta_stride;
    float* y = a.ring + a.tap_out[i] * a.ring_stride;
    for (int64_t j = 0; j < a.width; j += kLanes)
      store_n(y + j, load_n(x + j, a.width - j) + load_n(delta + j, a.width - j), a.width - j);
  }
}

// The lowest id wins a tie, and then the gap is zero.
TDM_KERNEL(argmax_gap, ArgmaxArgs, "<count <logits =logits_stride >argmax >gap =width") {
  const Range tasks = share(*a.count, part);
  for (int64_t i = tasks.begin; i < tasks.end; ++i) {
    const float* x = a.logits + i * a.logits_stride;
    const float best = largest(x, 0, a.width);
    int64_t id = 0;
    while (id + 1 < a.width && x[id] != best) ++id;
    const float before = largest(x, 0, id), behind = largest(x, id + 1, a.width);
    a.argmax[i] = static_cast<int32_t>(id);
    a.gap[i] = best - (before > behind ? before : behind);
  }
}
