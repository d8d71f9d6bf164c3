// Rows of the embedding table, read from the panels that the head multiplies with: a tied table is stored once.
#include "panel.h"
#include "tandem.h"

namespace {

using namespace tdm;

struct Args {
  const int32_t* count;
  const int32_t* token;
  const void* weight;
  float* y;
  int64_t y_stride;
  int64_t k;
};

inline float at(Fp32Panels w, int64_t panel, int64_t k, int64_t lane) { return w.at(panel)[k * kPanel + lane]; }
inline float at(Bf16Panels w, int64_t panel, int64_t k, int64_t lane) {
  return from_bf16(w.at(panel)[k / 2 * 2 * kPanel + lane * 2 + k % 2]);
}
inline float at(Int8Panels w, int64_t panel, int64_t k, int64_t lane) {
  const int weight = w.at(panel)[k / 4 * 4 * kPanel + lane * 4 + k % 4] - 128;
  return static_cast<float>(weight) * w.scales(panel)[lane];
}

template <class Panels>
void embed(const Args& a, Part part) {
  const Panels panels(a.weight, a.k);
  const Range tasks = share(*a.count, part);
  for (int64_t row = tasks.begin; row < tasks.end; ++row) {
    const int64_t token = a.token[row];
    for (int64_t k = 0; k < a.k; ++k)
      a.y[row * a.y_stride + k] = at(panels, token / kPanel, k, token % kPanel);
  }
}

}  // namespace

#define EMBEDDING_SIGNATURE "<count <token <weight >y =y_stride =k"

TDM_KERNEL(embedding_fp32, Args, EMBEDDING_SIGNATURE) { embed<Fp32Panels>(a, part); }
TDM_KERNEL(embedding_bf16, Args, EMBEDDING_SIGNATURE) { embed<Bf16Panels>(a, part); }
TDM_KERNEL(embedding_int8, Args, EMBEDDING_SIGNATURE) { embed<Int8Panels>(a, part); }
