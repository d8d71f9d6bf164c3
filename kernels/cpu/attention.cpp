// Attention of each row over its own prefix, in tiles of 64 absolute positions taken in order with a running
// maximum (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018).
// A tree row's ancestors are gathered into their positions first, so it sees exactly the tiles of a one-token
// step at that prefix. What lies behind a row's position never enters a sum.
#include <limits>

#include "cache.h"
#include "tandem.h"

namespace {

using namespace tdm;

constexpr int64_t kMaxHeadDim = 256;
constexpr int kTileVectors = kPage / kLanes;
constexpr int64_t kPiece = 16;
constexpr int kBlockVectors = kRegisters >= 32 ? 4 : 2;  // of a tile's row
constexpr int kBlockHeads = kRegisters >= 32 ? 4 : 2;
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

// H heads of one row that share a KV head.
template <int H, bool kTree, class C>
void attend(const Args& a, int64_t row, int64_t kv_head, int64_t head) {
  constexpr int64_t kGathered = kTree ? kPage * kMaxHeadDim : 1;
  const int64_t length = a.position[row] + 1;
  const int32_t* table = a.block_table + a.lane[row] * a.table_stride;
  const Pages<C> keys{a.k_cache, a.page_bytes, table}, values{a.v_cache, a.page_bytes, table};
  C k_tile[kGathered], v_tile[kGathered];
  const float* q[H];
  Running run[H];
  for (int h = 0; h < H; ++h) {
    q[h] = a.q + row * a.q_stride + (head + h) * a.head_dim;
    for (auto& s : run[h].sum) s = zero();
  }
  for (int64_t first = 0; first < length; first += kPage) {
    const int64_t tokens = length - first < kPage ? length - first : kPage;
    Tile<C> tile{keys.k(first, kv_head, a.head_dim), values.v(first, kv_head, a.head_dim), tokens};
    if (kTree && first + tokens > a.prefix[row]) {
      gather(a, row, kv_head, first, keys, values, tokens, k_tile, v_tile);
      tile.k = k_tile, tile.v = v_tile;
    }
    fold<H>(q, tile, a.head_dim, static_cast<float>(a.scale), run);
  }
  for (int h = 0; h < H; ++h) {
    float* y = a.y + row * a.y_stride + (head + h) * a.head_dim;
    for (int64_t d = 0; d < a.head_dim; d += kLanes)
      store_n(y + d, run[h].sum[d / kLanes] / set1(run[h].mass), a.head_dim - d);
  }
}

// As many of the `left` heads as fit the registers; returns how many it took.
template <int H, bool kTree, class C>
int64_t attend_some(const Args& a, int64_t row, int64_t kv_head, int64_t head, int64_t left) {
  if constexpr (H > 1)
    if (left < H) return attend_some<H - 1, kTree, C>(a, row, kv_head, head, left);
  attend<H, kTree, C>(a, row, kv_head, head);
  return H;
}

template <bool kTree, class C>
void attention(const Args& a, Part part) {
  const int64_t group = a.heads / a.kv_heads;
  const Range tasks = share(*a.count * a.kv_heads, part);
  for (int64_t t = tasks.begin; t < tasks.end; ++t) {
    const int64_t row = t / a.kv_heads, kv_head = t % a.kv_heads;
    for (int64_t done = 0; done < group;)
      done += attend_some<kBlockHeads, kTree, C>(a, row, kv_head, kv_head * group + done, group - done);
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
