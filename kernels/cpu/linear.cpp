// Products with fp32 and bf16 weights; bf16 ones meet inputs rounded to bf16. Each output is a chain of fused
// multiply-adds over k, cut every kBlock steps and the pieces added in order, so an element's bits depend on K alone:
// not on the rows beside it, the tile that holds it or the thread.
#include "linear.h"
#include "pairs.h"

namespace {

using namespace tdm;

constexpr int64_t kBlock = 128;
// Rows from which on a tile computes for so long that the hardware no longer fetches ahead of it.
constexpr int kAhead = 4;
constexpr int64_t kAheadBytes = 2048;

template <int R, int P>
using Sums = f32x16[R][2 * P];

template <int R, int P>
inline void clear(Sums<R, P>& sums) {
  for (auto& line : sums)
    for (auto& c : line) c = zero();
}

// The chain: calls step(k, acc) over whole blocks and writes the total as [R][P][32].
template <int R, int P, int kStep, class Step>
void chain(int64_t k, float* out, Step step) {
  Sums<R, P> total;
  clear<R, P>(total);
  for (int64_t begin = 0; begin < k; begin += kBlock) {
    const int64_t end = begin + kBlock < k ? begin + kBlock : k;
    Sums<R, P> acc;
    clear<R, P>(acc);
    for (int64_t i = begin; i < end; i += kStep) step(i, acc);
    for (int r = 0; r < R; ++r)
      for (int c = 0; c < 2 * P; ++c) total[r][c] = total[r][c] + acc[r][c];
  }
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < 2 * P; ++c) store(out + (r * 2 * P + c) * kLanes, total[r][c]);
}

// acc[r][c] += input(r) x weight(c), in the order that keeps fewer values in registers.
template <int R, int P, class Weight, class Input, class Product>
inline void outer(Sums<R, P>& acc, Weight weight, Input input, Product product) {
  if constexpr (kRegisters >= 32) {
    decltype(weight(0)) w[2 * P];
    for (int c = 0; c < 2 * P; ++c) w[c] = weight(c);
    for (int r = 0; r < R; ++r) {
      const auto x = input(r);
      for (int c = 0; c < 2 * P; ++c) acc[r][c] = product(acc[r][c], w[c], x);
    }
  } else {
    for (int c = 0; c < 2 * P; ++c) {
      const auto w = weight(c);
      for (int r = 0; r < R; ++r) acc[r][c] = product(acc[r][c], w, input(r));
    }
  }
}

template <int R>
inline void fetch_ahead(const void* p) {
  if constexpr (R >= kAhead) __builtin_prefetch(static_cast<const char*>(p) + kAheadBytes);
}

struct Fp32Product {
  static constexpr int kMost = kRegisters >= 32 ? 12 : 2, kPairs = kRegisters >= 32 ? 4 : 1;
  Fp32Panels panels;
  const float* rows;  // per tile of R rows [k][R]

  Fp32Product(const LinearArgs& a, Part part) : panels(a.weight, a.k), rows(a.x) {
    if (*a.count == 1 && !a.norm && !a.delta) return;
    auto* tiles = static_cast<float*>(workspace(Use::kTiles, static_cast<size_t>(*a.count * a.k) * sizeof(float)));
    rows = tiles;
    each_tiled_input<kMost>(a, part, [&](const Place& at, const float* x) {
      float* to = tiles + at.first * a.k + at.inside;
      for (int64_t k = 0; k < a.k; ++k) to[k * at.size] = x[k];
    });
  }

  template <int R, int P>
  void tile(int64_t row, const int64_t (&panel)[P], float* out) const {
    const float* x = rows + row * panels.k;
    const float* w[P];
    for (int p = 0; p < P; ++p) w[p] = panels.at(panel[p]);
    chain<R, P, 1>(panels.k, out, [&](int64_t k, Sums<R, P>& acc) {
      for (int p = 0; p < P; ++p) fetch_ahead<R>(w[p] + k * kPanel);
      outer<R, P>(
          acc, [&](int c) { return load(w[c / 2] + k * kPanel + c % 2 * kLanes); },
          [&](int r) { return set1(x[k * R + r]); },
          [](f32x16 sum, f32x16 b, f32x16 s) { return fma(s, b, sum); });
    });
  }
};

struct Bf16Product {
  static constexpr int kMost = kRegisters >= 32 ? 12 : 6, kPairs = kRegisters >= 32 ? 4 : 1;
  Bf16Panels panels;
  Pair* rows;  // per tile of R rows [k / 2][R]

  Bf16Product(const LinearArgs& a, Part part) : panels(a.weight, a.k) {
    const int64_t pairs = panels.k / 2;
    rows = static_cast<Pair*>(workspace(Use::kTiles, static_cast<size_t>(*a.count * pairs) * sizeof(Pair)));
    auto* rounded = static_cast<uint16_t*>(workspace(Use::kBytes, static_cast<size_t>(panels.k) * sizeof(uint16_t)));
    each_tiled_input<kMost>(a, part, [&](const Place& at, const float* x) {
      rounded[panels.k - 1] = 0;
      for (int64_t k = 0; k < a.k; ++k) rounded[k] = to_normal_bf16(x[k]);
      Pair* to = rows + at.first * pairs + at.inside;
      for (int64_t i = 0; i < pairs; ++i) to[i * at.size] = make_pair(rounded[2 * i], rounded[2 * i + 1]);
    });
  }

  template <int R, int P>
  void tile(int64_t row, const int64_t (&panel)[P], float* out) const {
    const Pair* x = rows + row * (panels.k / 2);
    const uint16_t* w[P];
    for (int p = 0; p < P; ++p) w[p] = panels.at(panel[p]);
    chain<R, P, 2>(panels.k, out, [&](int64_t k, Sums<R, P>& acc) {
      for (int p = 0; p < P; ++p) fetch_ahead<R>(w[p] + k * kPanel), fetch_ahead<R>(w[p] + (k + 1) * kPanel);
      outer<R, P>(
          acc, [&](int c) { return load_pairs(w[c / 2] + k * kPanel + c % 2 * kPanel); },
          [&](int r) { return spread(x[k / 2 * R + r]); }, dot2);
    });
  }
};

}  // namespace

TDM_KERNEL(linear_fp32, LinearArgs, LINEAR_SIGNATURE) { cover(Fp32Product(a, part), a, part); }
TDM_KERNEL(linear_bf16, LinearArgs, LINEAR_SIGNATURE) { cover(Bf16Product(a, part), a, part); }
