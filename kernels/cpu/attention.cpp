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

// Each score is cut every kPiece dimensions and the pieces added in order: one long chain would err more than needed.
template <class C>
void scores(const float* q, const Tile<C>& tile, int64_t head_dim, float scale, f32x16 out[kTileVectors]) {
  for (int i = 0; i < kTileVectors; ++i) out[i] = zero();
  for (int64_t begin = 0; begin < head_dim; begin += kPiece) {
    const int64_t end = begin + kPiece < head_dim ? begin + kPiece : head_dim;
    f32x16 acc[kTileVectors];
    for (auto& c : acc) c = zero();
    for (int64_t d = begin; d < end; ++d) {
      const f32x16 s = set1(q[d]);
      for (int i = 0; i < kTileVectors; ++i) acc[i] = fma(s, load_cache(tile.k + d * kPage + i * kLanes), acc[i]);
    }
    for (int i = 0; i < kTileVectors; ++i) out[i] = out[i] + acc[i];
  }
  for (int i = 0; i < kTileVectors; ++i) out[i] = out[i] * set1(scale);
}

// sum * keep + the tile's weighted values.
template <int V, class C>
void add_values(const float* weight, const Tile<C>& tile, float keep, f32x16* sum) {
  f32x16 acc[V];
  for (auto& c : acc) c = zero();
  for (int64_t t = 0; t < tile.tokens; ++t) {
    const f32x16 w = set1(weight[t]);
    for (int i = 0; i < V; ++i) acc[i] = fma(w, load_cache(tile.v + (t * V + i) * kLanes), acc[i]);
  }
  for (int i = 0; i < V; ++i) sum[i] = fma(sum[i], set1(keep), acc[i]);
}

template <int V, class C>
void fold(const float* q, const Tile<C>& tile, int64_t head_dim, float scale, Running& run) {
  f32x16 s[kTileVectors];
  scores(q, tile, head_dim, scale, s);
  float weight[kPage];
  for (int i = 0; i < kTileVectors; ++i) store(weight + i * kLanes, s[i]);
  for (int64_t t = tile.tokens; t < kPage; ++t) weight[t] = kNegInf;
  f32x16 top = load(weight);
  for (int i = 1; i < kTileVectors; ++i) top = max(top, load(weight + i * kLanes));
  const float tile_peak = hmax(top);
  const float peak = run.peak > tile_peak ? run.peak : tile_peak;
  for (int i = 0; i < kTileVectors; ++i) s[i] = exp(load(weight + i * kLanes) - set1(peak));
  for (int i = 0; i < kTileVectors; ++i) store(weight + i * kLanes, s[i]);
  for (int64_t t = tile.tokens; t < kPage; ++t) weight[t] = 0.0f;
  f32x16 mass = load(weight);
  for (int i = 1; i < kTileVectors; ++i) mass = mass + load(weight + i * kLanes);
  const float keep = run.mass == 0.0f ? 0.0f : hmax(exp(set1(run.peak - peak)));
  run.peak = peak;
  run.mass = run.mass * keep + hsum(mass);
  add_values<V>(weight, tile, keep, run.sum);
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

template <int V, bool kTree, class C>
void attend(const Args& a, int64_t row, int64_t kv_head) {
  const int64_t group = a.heads / a.kv_heads, length = a.position[row] + 1;
  const int32_t* table = a.block_table + a.lane[row] * a.table_stride;
  const Pages<C> keys{a.k_cache, a.page_bytes, table}, values{a.v_cache, a.page_bytes, table};
  C k_tile[kTree ? kPage * V * kLanes : 1], v_tile[kTree ? kPage * V * kLanes : 1];
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    const float* q = a.q + row * a.q_stride + head * a.head_dim;
    Running run;
    for (auto& s : run.sum) s = zero();
    for (int64_t first = 0; first < length; first += kPage) {
      const int64_t tokens = length - first < kPage ? length - first : kPage;
      Tile<C> tile{keys.k(first, kv_head, a.head_dim), values.v(first, kv_head, a.head_dim), tokens};
      if (kTree && first + tokens > a.prefix[row]) {
        gather(a, row, kv_head, first, keys, values, tokens, k_tile, v_tile);
        tile.k = k_tile, tile.v = v_tile;
      }
      fold<V>(q, tile, a.head_dim, static_cast<float>(a.scale), run);
    }
    float* y = a.y + row * a.y_stride + head * a.head_dim;
    for (int i = 0; i < V; ++i)
      store_n(y + i * kLanes, run.sum[i] / set1(run.mass), a.head_dim - i * kLanes);
  }
}

template <int V, bool kTree, class C>
void attention_width(const Args& a, Part part) {
  const Range tasks = share(*a.count * a.kv_heads, part);
  for (int64_t t = tasks.begin; t < tasks.end; ++t) attend<V, kTree, C>(a, t / a.kv_heads, t % a.kv_heads);
}

// The head's width in vectors is a constant of the inner loops.
template <bool kTree, class C, int V = 1>
void attention(const Args& a, Part part) {
  if (padded(a.head_dim) == V * kLanes) return attention_width<V, kTree, C>(a, part);
  if constexpr (V * kLanes < kMaxHeadDim) attention<kTree, C, V + 1>(a, part);
}

}  // namespace

#define ATTENTION_SIGNATURE                                                                                 \
  "<count <q =q_stride <k_cache <v_cache <position <lane <prefix <ancestor =ancestor_stride <block_table "  \
  "=table_stride >y =y_stride =page_bytes =heads =kv_heads =head_dim ~scale"

TDM_KERNEL(attention_fp32, Args, ATTENTION_SIGNATURE) { attention<false, float>(a, part); }
TDM_KERNEL(attention_bf16, Args, ATTENTION_SIGNATURE) { attention<false, uint16_t>(a, part); }
TDM_KERNEL(attention_tree_fp32, Args, ATTENTION_SIGNATURE) { attention<true, float>(a, part); }
TDM_KERNEL(attention_tree_bf16, Args, ATTENTION_SIGNATURE) { attention<true, uint16_t>(a, part); }
