// The likeliest tokens of a row of logits, and what their exponentials are a share of.
#include <limits>

#include "gates.h"
#include "simd.h"
#include "tandem.h"

namespace {

using namespace tdm;

constexpr int kVectors = 4;
constexpr int64_t kBlock = kVectors * kLanes;
constexpr float kNegInf = -std::numeric_limits<float>::infinity();

struct TopArgs {
  const int32_t* count;
  const float* logits;
  int64_t logits_stride;
  int32_t* draft_token;
  float* draft_logit;
  float* draft_lse;
  int64_t width;
  int64_t top;
};

// The best so far, falling; ids come in order, so what is no larger than an equal stands behind it.
struct Best {
  float* value;
  int32_t* id;
  int64_t most, held = 0;

  float least() const { return held < most ? kNegInf : value[most - 1]; }
  void meet(float x, int64_t at) {
    if (held == most && !(x > value[most - 1])) return;
    int64_t place = held < most ? held++ : most - 1;
    for (; place > 0 && x > value[place - 1]; --place) value[place] = value[place - 1], id[place] = id[place - 1];
    value[place] = x, id[place] = static_cast<int32_t>(at);
  }
};

void find(const float* x, int64_t width, Best best) {
  int64_t i = 0;
  for (; i < best.most; ++i) best.meet(x[i], i);
  for (; i + kBlock <= width; i += kBlock) {
    f32x16 m = load(x + i);
    for (int v = 1; v < kVectors; ++v) m = max(load(x + i + v * kLanes), m);
    if (hmax(m) > best.least())
      for (int64_t j = i; j < i + kBlock; ++j) best.meet(x[j], j);
  }
  for (; i < width; ++i) best.meet(x[i], i);
}

// log of x, at least 1: the exponent's share and that of a mantissa in [1, 2).
float log_of(float x) {
  int exponent;
  const float mantissa = 2 * std::frexp(x, &exponent);
  const f32x16 rest = log1p_unit(set1(mantissa - 1));
  return hmax(fma(set1(static_cast<float>(exponent - 1)), set1(0.693147180559945309f), rest));
}

// Sums of one place in every block, then those folded: the order is the width's.
float log_sum_exp(const float* x, int64_t width, float peak) {
  if (peak == kNegInf) return peak;
  f32x16 sums[kVectors] = {zero(), zero(), zero(), zero()};
  for (int64_t i = 0; i < width; i += kLanes) {
    float tail[kLanes];
    const float* from = x + i;
    if (width - i < kLanes) {
      for (int j = 0; j < kLanes; ++j) tail[j] = i + j < width ? x[i + j] : kNegInf;
      from = tail;
    }
    f32x16& sum = sums[i / kLanes % kVectors];
    sum = sum + exp(load(from) - set1(peak));
  }
  return peak + log_of(hsum((sums[0] + sums[1]) + (sums[2] + sums[3])));
}

}  // namespace

TDM_KERNEL(top_k, TopArgs,
           "<count <logits =logits_stride >draft_token >draft_logit >draft_lse =width =top") {
  const Range tasks = share(*a.count, part);
  for (int64_t i = tasks.begin; i < tasks.end; ++i) {
    const float* x = a.logits + i * a.logits_stride;
    float* value = a.draft_logit + i * a.top;
    find(x, a.width, {value, a.draft_token + i * a.top, a.top});
    a.draft_lse[i] = log_sum_exp(x, a.width, value[0]);
  }
}
