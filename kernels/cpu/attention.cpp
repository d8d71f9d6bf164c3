// Attention of each row over its own prefix, in tiles of 64 absolute positions taken in order with a running
// maximum (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018).
// A tree row's ancestors are gathered into their positions first, so it sees exactly the tiles of a one-token
// step at that prefix. What lies behind a row's position never enters a sum.
#include <limits>
#include <type_traits>

#include "cache.h"
#include "tandem.h"

namespace {

using namespace tdm;

constexpr int kTileVectors = kPage / kLanes;
constexpr int64_t kPiece = 16;
constexpr int kBlockVectors = kRegisters >= 32 ? 4 : 2;  // of a tile's row
constexpr int kBlockHeads = kRegisters >= 32 ? 6 : 2;
constexpr float kNegInf = -std::numeric_limits<float>::infinity();

struct Args {
  const int32_t* count;
  const float* q;
  int64_t q_stride;
  char* k_cache;
  char* v_cache;
  const int32_t* position;
  const int32_t* lane;
  const int32_t* prefix;
  const int32_t* ancestor;
  int64_t ancestor_stride;
  const int32_t* block_table;
  int64_t table_stride;
  float* y;
  int64_t y_stride;
  int64_t page_bytes;
  int64_t heads;
  int64_t kv_heads;
  int64_t head_dim;
  double scale;
};

// One head's softmax so far.
struct Running {
  float peak = kNegInf;
  float mass = 0.0f;
  f32x16 sum[kMaxHeadDim / kLanes];
};

template <class C>
struct Tile {
  const C* k;  // [head_dim][64]
  const C* v;  // [64][padded]
  int64_t tokens;
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
  accumulate(weight, tile.v + at * kLanes, width, tile.tokens, acc);
  for (int h = 0; h < H; ++h)
    for (int b = 0; b < B; ++b) run[h].sum[at + b] = fma(run[h].sum[at + b], set1(keep[h]), acc[h][b]);
}

// Turns one head's scores into weights against the largest score so far; returns what the sum so far is to keep.
float soften(float* weight, int64_t tokens, Running& run) {
  for (int64_t t = tokens; t < kPage; ++t) weight[t] = kNegInf;
  f32x16 top = load(weight);
  for (int i = 1; i < kTileVectors; ++i) top = max(top, load(weight + i * kLanes));
  const float tile_peak = hmax(top);
  const float peak = run.peak > tile_peak ? run.peak : tile_peak;
  for (int64_t t = 0; t < kPage; t += kLanes) store(weight + t, exp(load(weight + t) - set1(peak)));
  for (int64_t t = tokens; t < kPage; ++t) weight[t] = 0.0f;
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
    weight[h] = weights + h * kPage;
    keep[h] = soften(weights + h * kPage, tile.tokens, run[h]);
  }
  int64_t at = 0;
  for (; (at + B) * kLanes <= width; at += B) value_block<H, B>(weight, tile, width, at, keep, run);
  for (; at * kLanes < width; ++at) value_block<H, 1>(weight, tile, width, at, keep, run);
}

// Copies the tile's tokens from wherever the row's path keeps them.
template <class C>
void gather(const Args& a, int64_t row, int64_t kv_head, int64_t first, const Pages<C>& keys, const Pages<C>& values,
            int64_t tokens, C* k_tile, C* v_tile) {
  const int64_t width = padded(a.head_dim), prefix = a.prefix[row];
  const int32_t* ancestor = a.ancestor + row * a.ancestor_stride;
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t slot = first + t < prefix ? first + t : ancestor[first + t - prefix];
    const C* k = keys.k(slot, kv_head, a.head_dim);
    for (int64_t d = 0; d < a.head_dim; ++d) k_tile[d * kPage + t] = k[d * kPage];
    std::memcpy(v_tile + t * width, values.v(slot, kv_head, a.head_dim), static_cast<size_t>(width) * sizeof(C));
  }
}

// Query heads of one KV head, those of row 0 first: number n is head n % group of row n / group.
struct Queries {
  const Args& a;
  int64_t kv_head;
  int64_t group = a.heads / a.kv_heads;

  int64_t row(int64_t n) const { return n / group; }
  int64_t column(int64_t n) const { return (kv_head * group + n % group) * a.head_dim; }
  const float* q(int64_t n) const { return a.q + row(n) * a.q_stride + column(n); }
  float* y(int64_t n) const { return a.y + row(n) * a.y_stride + column(n); }
};

template <class C>
Pages<C> pages(const Args& a, char* cache, int64_t row) {
  return {cache, a.page_bytes, a.block_table + a.lane[row] * a.table_stride};
}

// Whole tiles that the rows of queries n to n + H - 1 all see where they lie.
template <int H, bool kTree>
int64_t shared_tokens(const Queries& queries, int64_t n) {
  const Args& a = queries.a;
  int64_t tokens = std::numeric_limits<int64_t>::max();
  for (int64_t row = queries.row(n); row <= queries.row(n + H - 1); ++row) {
    const int64_t mine = kTree ? a.prefix[row] : a.position[row] + 1;
    tokens = a.lane[row] != a.lane[queries.row(n)] ? 0 : mine < tokens ? mine : tokens;
  }
  return tokens / kPage * kPage;
}

// The rest of one row's tiles, from token `first` on, for H queries of it.
template <int H, bool kTree, class C>
void fold_rest(const Queries& queries, int64_t n, int64_t first, Running* run) {
  constexpr int64_t kGathered = kTree ? kPage * kMaxHeadDim : 1;
  const Args& a = queries.a;
  const int64_t row = queries.row(n), length = a.position[row] + 1;
  const Pages<C> keys = pages<C>(a, a.k_cache, row), values = pages<C>(a, a.v_cache, row);
  const float* q[H];
  for (int h = 0; h < H; ++h) q[h] = queries.q(n + h);
  C k_tile[kGathered], v_tile[kGathered];
  for (; first < length; first += kPage) {
    const int64_t tokens = length - first < kPage ? length - first : kPage;
    Tile<C> tile{keys.k(first, queries.kv_head, a.head_dim), values.v(first, queries.kv_head, a.head_dim), tokens};
    if (kTree && first + tokens > a.prefix[row]) {
      gather(a, row, queries.kv_head, first, keys, values, tokens, k_tile, v_tile);
      tile.k = k_tile, tile.v = v_tile;
    }
    fold<H>(q, tile, a.head_dim, static_cast<float>(a.scale), run);
  }
}

// Calls f(Size<H>) with the largest H up to H that `left` allows, and returns it.
template <int H, class F>
int64_t sized(int64_t left, F f) {
  if constexpr (H > 1)
    if (left < H) return sized<H - 1>(left, f);
  f(std::integral_constant<int, H>{});
  return H;
}

// H queries, of one row or several: tiles that all of them see whole are read once for all, the rest row by row.
template <int H, bool kTree, class C>
void attend(const Queries& queries, int64_t n) {
  const Args& a = queries.a;
  const int64_t shared = shared_tokens<H, kTree>(queries, n), row = queries.row(n);
  const Pages<C> keys = pages<C>(a, a.k_cache, row), values = pages<C>(a, a.v_cache, row);
  const float* q[H];
  Running run[H];
  for (int h = 0; h < H; ++h) {
    q[h] = queries.q(n + h);
    for (auto& s : run[h].sum) s = zero();
  }
  for (int64_t first = 0; first < shared; first += kPage) {
    const Tile<C> tile{keys.k(first, queries.kv_head, a.head_dim), values.v(first, queries.kv_head, a.head_dim), kPage};
    fold<H>(q, tile, a.head_dim, static_cast<float>(a.scale), run);
  }
  for (int64_t h = 0; h < H;) {
    const int64_t of_row = (queries.row(n + h) + 1) * queries.group - (n + h);
    h += sized<H>(of_row < H - h ? of_row : H - h, [&]<int S>(std::integral_constant<int, S>) {
      fold_rest<S, kTree, C>(queries, n + h, shared, run + h);
    });
  }
  for (int h = 0; h < H; ++h)
    for (int64_t d = 0; d < a.head_dim; d += kLanes)
      store_n(queries.y(n + h) + d, run[h].sum[d / kLanes] / set1(run[h].mass), a.head_dim - d);
}

template <bool kTree, class C>
void attention(const Args& a, Part part) {
  const int64_t per_head = *a.count * (a.heads / a.kv_heads);
  const Range tasks = share(a.kv_heads * per_head, part);
  for (int64_t t = tasks.begin; t < tasks.end;) {
    const Queries queries{a, t / per_head};
    const int64_t end = (queries.kv_head + 1) * per_head, left = (end < tasks.end ? end : tasks.end) - t;
    t += sized<kBlockHeads>(left, [&]<int H>(std::integral_constant<int, H>) {
      attend<H, kTree, C>(queries, t % per_head);
    });
  }
}

}  // namespace

#define ATTENTION_SIGNATURE                                                                                 \
  "<count <q =q_stride <k_cache <v_cache <position <lane <prefix <ancestor =ancestor_stride <block_table "  \
  "=table_stride >y =y_stride =page_bytes =heads =kv_heads =head_dim ~scale"

TDM_KERNEL(attention_fp32, Args, ATTENTION_SIGNATURE) { attention<false, float>(a, part); }
TDM_KERNEL(attention_bf16, Args, ATTENTION_SIGNATURE) { attention<false, uint16_t>(a, part); }
TDM_KERNEL(attention_tree_fp32, Args, ATTENTION_SIGNATURE) { attention<true, float>(a, part); }
TDM_KERNEL(attention_tree_bf16, Args, ATTENTION_SIGNATURE) { attention<true, uint16_t>(a, part); }
