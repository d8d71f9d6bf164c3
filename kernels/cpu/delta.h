// The gated delta rule on some columns of one value head's state S [key_dim][value_dim]: S <- decay S,
// u = beta (v - S^T k), S <- S + k u^T, y = S^T q. Columns know nothing of each other, so a block of them may be of any
// width. A sum over the key is kChains chains folded in halves, its bits depend on the key's width alone.
#pragma once
#include "simd.h"

namespace tdm {

constexpr int kChains = 4;
constexpr int kBlockVectors = kRegisters >= 32 ? 2 : 1;  // of a state's row: with its chains it fits the registers
constexpr int64_t kBlock = kBlockVectors * kLanes;

// Columns of a state, or of a copy of them.
struct State {
  float* rows;
  int64_t stride;
};

// What one row of the pass does to the columns and asks of them.
struct Token {
  const float* q;  // of all of the key's width
  const float* k;
  const float* v;  // of the columns alone
  float decay;
  float beta;
  float* y;
  float* u;  // null where nobody asks for it
};

// B vectors of a row, all whole or only the first `lanes` lanes.
template <int B, bool kWhole>
struct Columns {
  int64_t lanes;

  f32x16 get(const float* p, int b) const {
    return kWhole ? load(p + b * kLanes) : load_n(p + b * kLanes, lanes - b * kLanes);
  }
  void set(float* p, int b, f32x16 x) const {
    kWhole ? store(p + b * kLanes, x) : store_n(p + b * kLanes, x, lanes - b * kLanes);
  }
};

template <int B>
struct Chains {
  f32x16 sum[kChains][B];

  Chains() {
    for (auto& chain : sum)
      for (auto& x : chain) x = zero();
  }
  f32x16 folded(int b) const { return (sum[0][b] + sum[2][b]) + (sum[1][b] + sum[3][b]); }
};

// Calls f(i, chain) for every i below `count`: chains take turns, and the first takes what is left over.
template <class F>
inline void each_key(int64_t count, F f) {
  int64_t i = 0;
  for (; i + kChains <= count; i += kChains) f(i, 0), f(i + 1, 1), f(i + 2, 2), f(i + 3, 3);
  for (; i < count; ++i) f(i, 0);
}

// What a step adds to a state is `key` times u of each column.
inline f32x16 moved_on(f32x16 state, f32x16 decay, f32x16 key, f32x16 u) { return fma(key, u, state * decay); }

// Takes the columns from the state `from` to that behind the token, kept in `to` unless that is nowhere. Both may be
// one place.
template <int B, bool kWhole>
void step(const Token& token, State from, State to, int64_t key_dim, Columns<B, kWhole> columns) {
  const float *q = token.q, *k = token.k;
  const f32x16 decay = set1(token.decay);
  Chains<B> recalled, read;
  each_key(key_dim, [&](int64_t i, int chain) {
    const f32x16 key = set1(k[i]);
    for (int b = 0; b < B; ++b) {
      f32x16& sum = recalled.sum[chain][b];
      sum = fma(key, columns.get(from.rows + i * from.stride, b) * decay, sum);
    }
  });
  f32x16 u[B];
  for (int b = 0; b < B; ++b) u[b] = set1(token.beta) * (columns.get(token.v, b) - recalled.folded(b));
  each_key(key_dim, [&](int64_t i, int chain) {
    const f32x16 key = set1(k[i]), query = set1(q[i]);
    for (int b = 0; b < B; ++b) {
      const f32x16 state = moved_on(columns.get(from.rows + i * from.stride, b), decay, key, u[b]);
      if (to.rows) columns.set(to.rows + i * to.stride, b, state);
      f32x16& sum = read.sum[chain][b];
      sum = fma(query, state, sum);
    }
  });
  for (int b = 0; b < B; ++b) {
    columns.set(token.y, b, read.folded(b));
    if (token.u) columns.set(token.u, b, u[b]);
  }
}

// The same for `lanes` columns, at most kBlock.
inline void step(const Token& token, State from, State to, int64_t key_dim, int64_t lanes) {
  if (lanes == kBlock) return step(token, from, to, key_dim, Columns<kBlockVectors, true>{lanes});
  if (lanes == kLanes) return step(token, from, to, key_dim, Columns<1, true>{lanes});
  if (lanes < kLanes) return step(token, from, to, key_dim, Columns<1, false>{lanes});
  step(token, from, to, key_dim, Columns<kBlockVectors, false>{lanes});
}

}  // namespace tdm
