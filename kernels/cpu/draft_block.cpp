// What is a draft block's own: attention of its rows over a window of context and over each other, and the depthwise
// convolution whose taps follow from the row and never leave the block. A block's rows stand together, the anchor first.
#include "tandem.h"
#include "tile.h"

namespace {

using namespace tdm;

struct AttentionArgs {
  const int32_t* count;
  const float* q;
  int64_t q_stride;
  char* k_cache;
  char* v_cache;
  const int32_t* position;
  const int32_t* lane;
  const int32_t* prefix;  // the anchor's position, of each row
  const int32_t* block_table;
  int64_t table_stride;
  float* y;
  int64_t y_stride;
  int64_t page_bytes;
  int64_t heads;
  int64_t kv_heads;
  int64_t head_dim;
  int64_t block;
  int64_t window;
  double scale;
};

// H query heads of one row, from `head` on, over its tiles in order.
template <int H, class C>
void attend(const AttentionArgs& a, int64_t row, int64_t head) {
  const int32_t* table = a.block_table + a.lane[row] * a.table_stride;
  const Pages<C> keys{a.k_cache, a.page_bytes, table}, values{a.v_cache, a.page_bytes, table};
  const int64_t kv_head = head / (a.heads / a.kv_heads), end = a.prefix[row] + a.block;
  const int64_t oldest = a.position[row] - a.window + 1, begin = oldest > 0 ? oldest : 0;
  const float* q[H];
  Running run[H];
  for (int h = 0; h < H; ++h) q[h] = a.q + row * a.q_stride + (head + h) * a.head_dim;
  for (int64_t first = begin / kPage * kPage; first < end; first += kPage) {
    const int64_t from = begin > first ? begin - first : 0, to = end - first < kPage ? end - first : kPage;
    const Tile<C> tile{keys.k(first, kv_head, a.head_dim), values.v(first, kv_head, a.head_dim), from, to};
    fold<H>(q, tile, a.head_dim, static_cast<float>(a.scale), run);
  }
  for (int h = 0; h < H; ++h) finish(run[h], a.y + row * a.y_stride + (head + h) * a.head_dim, a.head_dim);
}

template <class C>
void attention(const AttentionArgs& a, Part part) {
  const int64_t group = a.heads / a.kv_heads;
  const Range tasks = share(*a.count * a.kv_heads, part);
  for (int64_t t = tasks.begin; t < tasks.end; ++t) {
    const int64_t row = t / a.kv_heads, head = t % a.kv_heads * group;
    for (int64_t h = 0; h < group;)
      h += sized<kBlockHeads>(group - h, [&]<int H>(std::integral_constant<int, H>) { attend<H, C>(a, row, head + h); });
  }
}

struct ConvArgs {
  const int32_t* count;
  const float* x;
  int64_t x_stride;
  const float* delta;  // [rows][taps][groups]
  int64_t delta_stride;
  const float* weight;  // [taps][channels], the row's own tap first
  const int32_t* position;
  const int32_t* prefix;
  float* y;
  int64_t y_stride;
  int64_t channels;
  int64_t taps;
  int64_t group;  // channels
};

// A vector of a tap's coefficients: its fixed part, and what the row adds to each group.
f32x16 coefficient(const ConvArgs& a, int64_t row, int64_t tap, int64_t channel, int64_t n) {
  const float* delta = a.delta + row * a.delta_stride + tap * (a.channels / a.group);
  float added[kLanes] = {};
  for (int64_t i = 0; i < n && i < kLanes; ++i) added[i] = delta[(channel + i) / a.group];
  return load_n(a.weight + tap * a.channels + channel, n) + load(added);
}

}  // namespace

#define BLOCK_ATTENTION_SIGNATURE                                                                              \
  "<count <q =q_stride <k_cache <v_cache <position <lane <prefix <block_table =table_stride >y =y_stride "     \
  "=page_bytes =heads =kv_heads =head_dim =block =window ~scale"

TDM_KERNEL(block_attention_fp32, AttentionArgs, BLOCK_ATTENTION_SIGNATURE) { attention<float>(a, part); }
TDM_KERNEL(block_attention_bf16, AttentionArgs, BLOCK_ATTENTION_SIGNATURE) { attention<uint16_t>(a, part); }

TDM_KERNEL(block_conv, ConvArgs,
           "<count <x =x_stride <delta =delta_stride <weight <position <prefix >y =y_stride =channels =taps =group") {
  const Range tasks = share(*a.count, part);
  for (int64_t row = tasks.begin; row < tasks.end; ++row) {
    const int64_t within = a.position[row] - a.prefix[row] + 1, taps = within < a.taps ? within : a.taps;
    for (int64_t i = 0; i < a.channels; i += kLanes) {
      const int64_t n = a.channels - i;
      f32x16 sum = load_n(a.x + row * a.x_stride + i, n) * coefficient(a, row, 0, i, n);
      for (int64_t tap = 1; tap < taps; ++tap)
        sum = fma(load_n(a.x + (row - tap) * a.x_stride + i, n), coefficient(a, row, tap, i, n), sum);
      store_n(a.y + row * a.y_stride + i, sum, n);
    }
  }
}
