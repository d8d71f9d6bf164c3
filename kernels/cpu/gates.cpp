// Gates of the delta rule, one pair per value head of a row: what the state keeps of itself, and how much is corrected.
#include "gates.h"

#include "tandem.h"

namespace {

using namespace tdm;

struct Args {
  const int32_t* count;
  const float* a;
  int64_t a_stride;
  const float* b;
  int64_t b_stride;
  const float* a_log;
  const float* dt_bias;
  float* decay;
  int64_t decay_stride;
  float* beta;
  int64_t beta_stride;
  int64_t heads;
};

}  // namespace

TDM_KERNEL(delta_gates, Args,
           "<count <a =a_stride <b =b_stride <a_log <dt_bias >decay =decay_stride >beta =beta_stride =heads") {
  const Range rows = share(*a.count, part);
  for (int64_t row = rows.begin; row < rows.end; ++row)
    for (int64_t i = 0; i < a.heads; i += kLanes) {
      const int64_t n = a.heads - i;
      const f32x16 x = load_n(a.a + row * a.a_stride + i, n) + load_n(a.dt_bias + i, n);
      store_n(a.decay + row * a.decay_stride + i, decay(x, load_n(a.a_log + i, n)), n);
      store_n(a.beta + row * a.beta_stride + i, sigmoid(load_n(a.b + row * a.b_stride + i, n)), n);
    }
}
