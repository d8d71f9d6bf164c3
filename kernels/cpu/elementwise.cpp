// Glue between the reductions: each output element is a function of its own inputs.
#include "gates.h"
#include "norm.h"
#include "tandem.h"

namespace {

using namespace tdm;

struct BinaryArgs {
  const int32_t* count;
  const float* x;
  int64_t x_stride;
  const float* z;
  int64_t z_stride;
  float* y;
  int64_t y_stride;
  int64_t width;
};

struct SwigluArgs {
  const int32_t* count;
  const float* x;  // gate in the first half of a row, up in the second
  int64_t x_stride;
  float* y;
  int64_t y_stride;
  int64_t width;
};

// Calls f(row, column, lanes) for this part's share of count x width, in runs of 16 columns.
template <class F>
void each(int64_t count, int64_t width, Part part, F f) {
  const int64_t runs = (width + kLanes - 1) / kLanes;
  const Range tasks = share(count * runs, part);
  for (int64_t t = tasks.begin; t < tasks.end; ++t) f(t / runs, t % runs * kLanes, width - t % runs * kLanes);
}

template <class F>
void binary(const BinaryArgs& a, Part part, F f) {
  each(*a.count, a.width, part, [&](int64_t row, int64_t i, int64_t n) {
    const f32x16 x = load_n(a.x + row * a.x_stride + i, n), z = load_n(a.z + row * a.z_stride + i, n);
    store_n(a.y + row * a.y_stride + i, f(x, z), n);
  });
}

}  // namespace

#define BINARY_SIGNATURE "<count <x =x_stride <z =z_stride >y =y_stride =width"

TDM_KERNEL(add, BinaryArgs, BINARY_SIGNATURE) {
  binary(a, part, [](f32x16 x, f32x16 z) { return x + z; });
}

TDM_KERNEL(mul, BinaryArgs, BINARY_SIGNATURE) {
  binary(a, part, [](f32x16 x, f32x16 z) { return x * z; });
}

// z is the gate.
TDM_KERNEL(sigmoid_gate, BinaryArgs, BINARY_SIGNATURE) {
  binary(a, part, [](f32x16 x, f32x16 z) { return x * sigmoid(z); });
}

TDM_KERNEL(swiglu, SwigluArgs, "<count <x =x_stride >y =y_stride =width") {
  each(*a.count, a.width, part, [&](int64_t row, int64_t i, int64_t n) {
    const float* x = a.x + row * a.x_stride + i;
    store_n(a.y + row * a.y_stride + i, silu(load_n(x, n)) * load_n(x + a.width, n), n);
  });
}
