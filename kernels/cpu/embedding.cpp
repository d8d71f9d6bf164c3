// Rows of the embedding table, read from the panels that the head multiplies with: a tied table is stored once.
#include "simd.h"
#include "tandem.h"

namespace {

using namespace tdm;

constexpr int64_t kPanel = 32;

struct Args {
  const int32_t* count;
  const int32_t* token;
  const void* weight;
  float* y;
  int64_t y_stride;
  int64_t k;
};

inline float at(const float* panel, int64_t k, int64_t lane) { return panel[k * kPanel + lane]; }
// bf16 panels hold lanes j and 16 + j as neighbours.
inline float at(const uint16_t* panel, int64_t k, int64_t lane) {
  return from_bf16(panel[k * kPanel + lane % 16 * 2 + lane / 16]);
}

template <class W>
void embed(const Args& a, Part part) {
  const Range tasks = share(*a.count, part);
  for (int64_t row = tasks.begin; row < tasks.end; ++row) {
    const int64_t token = a.token[row];
    const W* panel = static_cast<const W*>(a.weight) + token / kPanel * kPanel * a.k;
    for (int64_t k = 0; k < a.k; ++k) a.y[row * a.y_stride + k] = at(panel, k, token % kPanel);
  }
}

}  // namespace

TDM_KERNEL(embedding_fp32, Args, "<count <token <weight >y =y_stride =k") { embed<float>(a, part); }
TDM_KERNEL(embedding_bf16, Args, "<count <token <weight >y =y_stride =k") { embed<uint16_t>(a, part); }
