// RMS norm over the last axis: alone, after the residual add, or with a gate behind it.
#include "norm.h"

#include "tandem.h"

namespace {

using namespace tdm;

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

struct GatedNormArgs {
  const int32_t* count;
  const float* x;
  int64_t x_stride;
  const float* gate;
  int64_t gate_stride;
  const float* weight;
  float* y;
  int64_t y_stride;
  int64_t groups;
  int64_t width;
  double eps;
  int64_t rounded;  // to bf16, before the gate
};

void round_to_bf16(float* x, int64_t width) {
  for (int64_t i = 0; i < width; ++i) x[i] = from_bf16(to_bf16(x[i]));
}

}  // namespace

TDM_KERNEL(rms_norm, NormArgs, "<count <x =x_stride <weight >y =y_stride =groups =width ~eps") {
  const Range tasks = share(*a.count * a.groups, part);
  for (int64_t t = tasks.begin; t < tasks.end; ++t) {
    const int64_t row = t / a.groups, at = t % a.groups * a.width;
    rms_norm(a.x + row * a.x_stride + at, a.weight, a.y + row * a.y_stride + at, a.width, static_cast<float>(a.eps));
  }
}

TDM_KERNEL(add_rms_norm, AddNormArgs,
           "<count <x =x_stride <delta =delta_stride <weight >sum =sum_stride >y =y_stride =width ~eps") {
  const Range tasks = share(*a.count, part);
  for (int64_t row = tasks.begin; row < tasks.end; ++row) {
    float* sum = a.sum + row * a.sum_stride;
    add_rows(a.x + row * a.x_stride, a.delta + row * a.delta_stride, sum, a.width);
    rms_norm(sum, a.weight, a.y + row * a.y_stride, a.width, static_cast<float>(a.eps));
  }
}

TDM_KERNEL(gated_rms_norm, GatedNormArgs,
           "<count <x =x_stride <gate =gate_stride <weight >y =y_stride =groups =width ~eps =rounded") {
  const Range tasks = share(*a.count * a.groups, part);
  for (int64_t t = tasks.begin; t < tasks.end; ++t) {
    const int64_t row = t / a.groups, at = t % a.groups * a.width;
    const float* gate = a.gate + row * a.gate_stride + at;
    float* y = a.y + row * a.y_stride + at;
    rms_norm(a.x + row * a.x_stride + at, a.weight, y, a.width, static_cast<float>(a.eps));
    if (a.rounded) round_to_bf16(y, a.width);
    for (int64_t i = 0; i < a.width; i += kLanes) {
      const int64_t n = a.width - i;
      store_n(y + i, load_n(y + i, n) * silu(load_n(gate + i, n)), n);
    }
  }
}
