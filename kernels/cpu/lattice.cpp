// The lattice of a draft block: how well each candidate of a slot follows each of the slot before, and the greedy walk.
// A block's slots stand together, the one behind the anchor first.
#include "simd.h"
#include "tandem.h"

namespace {

using namespace tdm;

// Which outputs begin a block, and whose anchor is where.
struct Slots {
  const int32_t* output_row;
  const int32_t* position;  // of each row of the pass
  const int32_t* prefix;    // the anchor's position, of each row

  bool first(int64_t output) const {
    const int64_t row = output_row[output];
    return position[row] - prefix[row] == 1;
  }
};

struct ScoreArgs {
  const int32_t* count;
  const int32_t* candidate;  // [outputs][k]
  const float* unary;        // [outputs][k]
  const float* gate;
  int64_t gate_stride;
  const int32_t* token;  // of each row of the pass
  Slots slots;
  const void* predecessor;  // [vocabulary][rank]
  const void* successor;
  float* score;  // [outputs][k][k]
  int64_t k;
  int64_t rank;
};

struct WalkArgs {
  const int32_t* count;
  const float* score;
  Slots slots;
  int32_t* greedy;
  int64_t k;
};

inline f32x16 weights(const float* p, int64_t n) { return load_n(p, n); }
inline f32x16 weights(const uint16_t* p, int64_t n) {
  if (n >= kLanes) return load_bf16(p);
  uint16_t tail[kLanes] = {};
  std::memcpy(tail, p, static_cast<size_t>(n) * sizeof *p);
  return load_bf16(tail);
}

// <predecessor * gate, successor>, in lanes that are folded at the end.
template <class W>
float bond(const W* before, const float* gate, const W* after, int64_t rank) {
  f32x16 sum = zero();
  for (int64_t i = 0; i < rank; i += kLanes) {
    const int64_t n = rank - i;
    sum = fma(weights(before + i, n) * load_n(gate + i, n), weights(after + i, n), sum);
  }
  return hsum(sum);
}

template <class W>
void scores(const ScoreArgs& a, Part part) {
  const Range tasks = share(*a.count * a.k, part);
  const W *predecessors = static_cast<const W*>(a.predecessor), *successors = static_cast<const W*>(a.successor);
  for (int64_t t = tasks.begin; t < tasks.end; ++t) {
    const int64_t output = t / a.k, before = t % a.k;
    const int64_t id = a.slots.first(output) ? a.token[a.slots.output_row[output] - 1]
                                             : a.candidate[(output - 1) * a.k + before];
    for (int64_t c = 0; c < a.k; ++c) {
      const int64_t at = output * a.k + c;
      const float follows = bond(predecessors + id * a.rank, a.gate + output * a.gate_stride,
                                 successors + a.candidate[at] * a.rank, a.rank);
      a.score[t * a.k + c] = a.unary[at] + follows;
    }
  }
}

}  // namespace

#define SLOTS_SIGNATURE "<output_row <position <prefix"
#define SCORES_SIGNATURE \
  "<count <candidate <unary <gate =gate_stride <token " SLOTS_SIGNATURE " <predecessor <successor >score =k =rank"

TDM_KERNEL(lattice_scores_fp32, ScoreArgs, SCORES_SIGNATURE) { scores<float>(a, part); }
TDM_KERNEL(lattice_scores_bf16, ScoreArgs, SCORES_SIGNATURE) { scores<uint16_t>(a, part); }

// The first of equal scores wins. Whoever has a block's first slot walks it to its end.
TDM_KERNEL(lattice_walk, WalkArgs, "<count <score " SLOTS_SIGNATURE " >greedy =k") {
  const Range tasks = share(*a.count, part);
  for (int64_t begin = tasks.begin; begin < tasks.end; ++begin) {
    if (!a.slots.first(begin)) continue;
    int64_t before = 0;
    for (int64_t o = begin; o < *a.count && (o == begin || !a.slots.first(o)); ++o) {
      const float* score = a.score + (o * a.k + before) * a.k;
      int64_t best = 0;
      for (int64_t c = 1; c < a.k; ++c) best = score[c] > score[best] ? c : best;
      a.greedy[o] = static_cast<int32_t>(best);
      before = best;
    }
  }
}
