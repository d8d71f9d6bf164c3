// Rotary position embedding of all heads of a row.
#include "rotary.h"

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
    const int64_t row = t / a.heads, at = t % a.heads * a.head_dim, turn = a.position[row] * a.half;
    rotate(a.x + row * a.x_stride + at, a.cos + turn, a.sin + turn, a.y + row * a.y_stride + at, a.half, a.head_dim);
  }
}
