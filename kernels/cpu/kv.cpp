// Writing keys and values into the cache, and moving them when a tree's accepted path is committed.
#include "cache.h"
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

template <class C>
void write(const WriteArgs& a, Part part) {
  const Range tasks = share(*a.count * a.kv_heads, part);
  for (int64_t t = tasks.begin; t < tasks.end; ++t) {
    const int64_t row = t / a.kv_heads, head = t % a.kv_heads;
    const int32_t* table = a.block_table + a.lane[row] * a.table_stride;
    C* k = Pages<C>{a.k_cache, a.page_bytes, table}.k(a.slot[row], head, a.head_dim);
    C* v = Pages<C>{a.v_cache, a.page_bytes, table}.v(a.slot[row], head, a.head_dim);
    const float* k_row = a.k + row * a.k_stride + head * a.head_dim;
    const float* v_row = a.v + row * a.v_stride + head * a.head_dim;
    for (int64_t d = 0; d < a.head_dim; ++d) put(k + d * kPage, k_row[d]), put(v + d, v_row[d]);
    for (int64_t d = a.head_dim; d < padded(a.head_dim); ++d) put(v + d, 0.0f);
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
#define MOVE_SIGNATURE                                                                                       \
  "<count !k_cache !v_cache <lane <source <target <block_table =table_stride =page_bytes =kv_heads =head_dim"

TDM_KERNEL(kv_write_fp32, WriteArgs, WRITE_SIGNATURE) { write<float>(a, part); }
TDM_KERNEL(kv_write_bf16, WriteArgs, WRITE_SIGNATURE) { write<uint16_t>(a, part); }
TDM_KERNEL(kv_move_fp32, MoveArgs, MOVE_SIGNATURE) { move<float>(a, part); }
TDM_KERNEL(kv_move_bf16, MoveArgs, MOVE_SIGNATURE) { move<uint16_t>(a, part); }
