// A tile of 64 absolute positions folded into the softmax of one or several heads, with a running maximum (Milakov
// and Gimelshein, "Online normalizer calculation for softmax", 2018). Knows nothing of rows: who sees which tiles.
#pragma once
#include <limits>
#include <type_traits>

#include "cache.h"

namespace tdm {

constexpr int kTileVectors = kPage / kLanes;
constexpr int64_t kPiece = 16;
constexpr int kBlockVectors = kRegisters >= 32 ? 4 : 2;  // of a tile's row
constexpr int kBlockHeads = kRegisters >= 32 ? 6 : 2;
constexpr float kNegInf = -std::numeric_limits<float>::infinity();

// One head's softmax so far.
struct Running {
  float peak = kNegInf;
  float mass = 0.0f;
  f32x16 sum[kMaxHeadDim / kLanes];

  Running() {
    for (auto& s : sum) s = zero();
  }
};

template <class C>
struct Tile {
  const C* k;  // [head_dim][64]
  const C* v;  // [64][padded]
  int64_t begin, end;  // its tokens that are seen
};

// acc[h][b] += sum over i of factor[h][i] * row i's vector b: the rows are widened once for all heads.
template <int H, int B, class C>
inline void accumulate(const float* const* factor, const C* rows, int64_t stride, int64_t n, f32x16 (&acc)[H][B]) {
  for (int64_t i = 0; i < n; ++i) {
    f32x16 row[B];
    for (int b = 0; b < B; ++b) row[b] = load_cache(rows + i * stride + b * kLanes);
    for (int h = 0; h < H; ++h) {
      const f32x16 f = set1(factor[h][i]);
      for (int b = 0; b < B; ++b) acc[h][b] = fma(f, row[b], acc[h][b]);
    }
  }
}

template <int H, int B>
inline void clear(f32x16 (&acc)[H][B]) {
  for (auto& line : acc)
    for (auto& c : line) c = zero();
}

// Scores of B vectors of tokens. Each is cut every kPiece dimensions and the pieces added in order: one long chain
// would err more than needed.
template <int H, int B, class C>
void score_block(const float* const* q, const C* k, int64_t head_dim, float scale, float* out) {
  f32x16 total[H][B], acc[H][B];
  clear(total);
  for (int64_t begin = 0; begin < head_dim; begin += kPiece) {
    const int64_t n = head_dim - begin < kPiece ? head_dim - begin : kPiece;
    const float* piece[H];
    for (int h = 0; h < H; ++h) piece[h] = q[h] + begin;
    clear(acc);
    accumulate(piece, k + begin * kPage, kPage, n, acc);
    for (int h = 0; h < H; ++h)
      for (int b = 0; b < B; ++b) total[h][b] = total[h][b] + acc[h][b];
  }
  for (int h = 0; h < H; ++h)
    for (int b = 0; b < B; ++b) store(out + h * kPage + b * kLanes, total[h][b] * set1(scale));
}

// sum * keep + the tile's weighted values, B vectors of each head's width.
template <int H, int B, class C>
void value_block(const float* const* weight, const Tile<C>& tile, int64_t width, int64_t at, const float* keep,
                 Running* run) {
  f32x16 acc[H][B];
  clear(acc);
  accumulate(weight, tile.v + tile.begin * width + at * kLanes, width, tile.end - tile.begin, acc);
  for (int h = 0; h < H; ++h)
    for (int b = 0; b < B; ++b) run[h].sum[at + b] = fma(run[h].sum[at + b], set1(keep[h]), acc[h][b]);
}

// Turns one head's scores into weights against the largest score so far; returns what the sum so far is to keep.
inline float soften(float* weight, int64_t begin, int64_t end, Running& run) {
  const auto hide = [&](float x) {
    for (int64_t t = 0; t < begin; ++t) weight[t] = x;
    for (int64_t t = end; t < kPage; ++t) weight[t] = x;
  };
  hide(kNegInf);
  f32x16 top = load(weight);
  for (int i = 1; i < kTileVectors; ++i) top = max(top, load(weight + i * kLanes));
  const float tile_peak = hmax(top);
  const float peak = run.peak > tile_peak ? run.peak : tile_peak;
  for (int64_t t = 0; t < kPage; t += kLanes) store(weight + t, exp(load(weight + t) - set1(peak)));
  hide(0.0f);
  f32x16 mass = load(weight);
  for (int i = 1; i < kTileVectors; ++i) mass = mass + load(weight + i * kLanes);
  const float keep = run.mass == 0.0f ? 0.0f : hmax(exp(set1(run.peak - peak)));
  run.peak = peak;
  run.mass = run.mass * keep + hsum(mass);
  return keep;
}

// Folds a tile into the softmax of H heads that share its keys and values.
template <int H, class C>
void fold(const float* const* q, const Tile<C>& tile, int64_t head_dim, float scale, Running* run) {
  constexpr int B = kBlockVectors;
  const int64_t width = padded(head_dim);
  float weights[H * kPage], keep[H];
  for (int t = 0; t < kPage; t += B * kLanes) score_block<H, B>(q, tile.k + t, head_dim, scale, weights + t);
  const float* weight[H];
  for (int h = 0; h < H; ++h) {
    weight[h] = weights + h * kPage + tile.begin;
    keep[h] = soften(weights + h * kPage, tile.begin, tile.end, run[h]);
  }
  int64_t at = 0;
  for (; (at + B) * kLanes <= width; at += B) value_block<H, B>(weight, tile, width, at, keep, run);
  for (; at * kLanes < width; ++at) value_block<H, 1>(weight, tile, width, at, keep, run);
}

// What the softmax gives, [head_dim].
inline void finish(const Running& run, float* y, int64_t head_dim) {
  for (int64_t d = 0; d < head_dim; d += kLanes) store_n(y + d, run.sum[d / kLanes] / set1(run.mass), head_dim - d);
}

// Calls f(Size<H>) with the largest H up to H that `left` allows, and returns it.
template <int H, class F>
int64_t sized(int64_t left, F f) {
  if constexpr (H > 1)
    if (left < H) return sized<H - 1>(left, f);
  f(std::integral_constant<int, H>{});
  return H;
}

}  // namespace tdm
