// Attention of each row over its own prefix, in tiles of 64 absolute positions taken in order (`tile.h`).
// A tree row's ancestors are gathered into their positions first, so it sees exactly the tiles of a one-token
// step at that prefix. What lies behind a row's position never enters a sum.
#include <limits>

#include "tandem.h"
#include "tile.h"

namespace {

using namespace tdm;

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
    Tile<C> tile{keys.k(first, queries.kv_head, a.head_dim), values.v(first, queries.kv_head, a.head_dim), 0, tokens};
    if (kTree && first + tokens > a.prefix[row]) {
      gather(a, row, queries.kv_head, first, keys, values, tokens, k_tile, v_tile);
      tile.k = k_tile, tile.v = v_tile;
    }
    fold<H>(q, tile, a.head_dim, static_cast<float>(a.scale), run);
  }
}

// H queries, of one row or several: tiles that all of them see whole are read once for all, the rest row by row.
template <int H, bool kTree, class C>
void attend(const Queries& queries, int64_t n) {
  const Args& a = queries.a;
  const int64_t shared = shared_tokens<H, kTree>(queries, n), row = queries.row(n);
  const Pages<C> keys = pages<C>(a, a.k_cache, row), values = pages<C>(a, a.v_cache, row);
  const float* q[H];
  Running run[H];
  for (int h = 0; h < H; ++h) q[h] = queries.q(n + h);
  for (int64_t first = 0; first < shared; first += kPage) {
    const Tile<C> tile{keys.k(first, queries.kv_head, a.head_dim), values.v(first, queries.kv_head, a.head_dim), 0, kPage};
    fold<H>(q, tile, a.head_dim, static_cast<float>(a.scale), run);
  }
  for (int64_t h = 0; h < H;) {
    const int64_t of_row = (queries.row(n + h) + 1) * queries.group - (n + h);
    h += sized<H>(of_row < H - h ? of_row : H - h, [&]<int S>(std::integral_constant<int, S>) {
      fold_rest<S, kTree, C>(queries, n + h, shared, run + h);
    });
  }
  for (int h = 0; h < H; ++h) finish(run[h], queries.y(n + h), a.head_dim);
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
