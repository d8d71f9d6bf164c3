// Writing keys and values into the cache, and moving them when a tree's accepted path is committed.
#include "cache.h"
#include "rotary.h"
#include "tandem.h"

namespace {

using namespace tdm;

struct WriteArgs {
  const int32_t* count;
  const float* k;
  int64_t k_stride;
  const float* v;
  int64_t v_stride;
  char* k_cache;
  char* v_cache;
  const int32_t* lane;
  const int32_t* slot;
  const int32_t* block_table;
  int64_t table_stride;
  int64_t page_bytes;
  int64_t kv_heads;
  int64_t head_dim;
};

struct RotaryWriteArgs {
  WriteArgs write;
  const float* q;
  int64_t q_stride;
  const float* cos;  // [context, half]
  const float* sin;
  const int32_t* position;
  float* y;  // rotated queries
  int64_t y_stride;
  int64_t heads;
  int64_t half;
};

struct MoveArgs {
  const int32_t* count;
  char* k_cache;
  char* v_cache;
  const int32_t* lane;
  const int32_t* source;
  const int32_t* target;
  const int32_t* block_table;
  int64_t table_stride;
  int64_t page_bytes;
  int64_t kv_heads;
  int64_t head_dim;
};

// One head of one row.
template <class C>
void put_head(const WriteArgs& a, int64_t row, int64_t head, const float* k_head) {
  const int32_t* table = a.block_table + a.lane[row] * a.table_stride;
  C* k = Pages<C>{a.k_cache, a.page_bytes, table}.k(a.slot[row], head, a.head_dim);
  C* v = Pages<C>{a.v_cache, a.page_bytes, table}.v(a.slot[row], head, a.head_dim);
  const float* v_head = a.v + row * a.v_stride + head * a.head_dim;
  for (int64_t d = 0; d < a.head_dim; ++d) put(k + d * kPage, k_head[d]), put(v + d, v_head[d]);
  for (int64_t d = a.head_dim; d < padded(a.head_dim); ++d) put(v + d, 0.0f);
}

template <class C>
void write(const WriteArgs& a, Part part) {
  const Range tasks = share(*a.count * a.kv_heads, part);
  for (int64_t t = tasks.begin; t < tasks.end; ++t) {
    const int64_t row = t % *a.count, head = t / *a.count;
    put_head<C>(a, row, head, a.k + row * a.k_stride + head * a.head_dim);
  }
}

// Query heads come first, then key and value heads. Rows of one head stand together: their tokens share cache lines.
template <class C>
void rotary_write(const RotaryWriteArgs& a, Part part) {
  const int64_t count = *a.write.count, units = a.heads + a.write.kv_heads, head_dim = a.write.head_dim;
  const Range tasks = share(count * units, part);
  for (int64_t t = tasks.begin; t < tasks.end; ++t) {
    const int64_t row = t % count, unit = t / count, turn = a.position[row] * a.half;
    const auto turned = [&](const float* x, float* y) { rotate(x, a.cos + turn, a.sin + turn, y, a.half, head_dim); };
    if (unit < a.heads) {
      turned(a.q + row * a.q_stride + unit * head_dim, a.y + row * a.y_stride + unit * head_dim);
    } else {
      const int64_t head = unit - a.heads;
      float k[kMaxHeadDim];
      turned(a.write.k + row * a.write.k_stride + head * head_dim, k);
      put_head<C>(a.write, row, head, k);
    }
  }
}

// Moves run in order for each head: a target may be a later move's neighbour, never its source.
template <class C>
void move(const MoveArgs& a, Part part) {
  const Range heads = share(a.kv_heads, part);
  for (int64_t head = heads.begin; head < heads.end; ++head)
    for (int32_t m = 0; m < *a.count; ++m) {
      const int32_t* table = a.block_table + a.lane[m] * a.table_stride;
      const Pages<C> keys{a.k_cache, a.page_bytes, table}, values{a.v_cache, a.page_bytes, table};
      const C* k = keys.k(a.source[m], head, a.head_dim);
      C* to = keys.k(a.target[m], head, a.head_dim);
      for (int64_t d = 0; d < a.head_dim; ++d) to[d * kPage] = k[d * kPage];
      std::memmove(values.v(a.target[m], head, a.head_dim), values.v(a.source[m], head, a.head_dim),
                   static_cast<size_t>(padded(a.head_dim)) * sizeof(C));
    }
}

}  // namespace

#define WRITE_SIGNATURE                                                                               \
  "<count <k =k_stride <v =v_stride !k_cache !v_cache <lane <slot <block_table =table_stride =page_bytes =kv_heads " \
  "=head_dim"
#define ROTARY_WRITE_SIGNATURE WRITE_SIGNATURE " <q =q_stride <cos <sin <position >y =y_stride =heads =half"
#define MOVE_SIGNATURE                                                                                       \
  "<count !k_cache !v_cache <lane <source <target <block_table =table_stride =page_bytes =kv_heads =head_dim"

TDM_KERNEL(kv_write_fp32, WriteArgs, WRITE_SIGNATURE) { write<float>(a, part); }
TDM_KERNEL(kv_write_bf16, WriteArgs, WRITE_SIGNATURE) { write<uint16_t>(a, part); }
TDM_KERNEL(rotary_kv_write_fp32, RotaryWriteArgs, ROTARY_WRITE_SIGNATURE) { rotary_write<float>(a, part); }
TDM_KERNEL(rotary_kv_write_bf16, RotaryWriteArgs, ROTARY_WRITE_SIGNATURE) { rotary_write<uint16_t>(a, part); }
TDM_KERNEL(kv_move_fp32, MoveArgs, MOVE_SIGNATURE) { move<float>(a, part); }
TDM_KERNEL(kv_move_bf16, MoveArgs, MOVE_SIGNATURE) { move<uint16_t>(a, part); }
