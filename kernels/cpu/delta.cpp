// The gated delta rule over the rows of a pass, one after another: for rows that all stay, and for those of a verify,
// of which a commit replays the accepted ones. A task is a block of columns of one value head, for all rows.
#include "delta.h"

#include <cstring>

#include "slots.h"
#include "tandem.h"
#include "workspace.h"

namespace {

using namespace tdm;

struct RuleArgs {
  const int32_t* count;
  const float* q;  // heads of key_dim, not of length one yet
  int64_t q_stride;
  const float* k;
  int64_t k_stride;
  const float* v;
  int64_t v_stride;
  const float* decay;
  int64_t decay_stride;
  const float* beta;
  int64_t beta_stride;
  float* state;  // [value_heads][key_dim][value_dim] of slot 0
  Slots slots;
  float* y;
  int64_t y_stride;
  int64_t key_heads;
  int64_t value_heads;
  int64_t key_dim;
  int64_t value_dim;
  double eps;
};

struct VerifyArgs {
  RuleArgs rule;
  float* k_factor;      // [rows][key_heads][key_dim], of length one
  float* u_factor;      // [rows][value_heads][value_dim]
  float* decay_factor;  // [rows][value_heads]
  int64_t tree;
};

struct CommitArgs {
  const int32_t* count;
  const float* k_factor;
  const float* u_factor;
  const float* decay_factor;
  float* state;
  Moves moves;
  int64_t key_heads;
  int64_t value_heads;
  int64_t key_dim;
  int64_t value_dim;
};

size_t floats(int64_t count) { return static_cast<size_t>(count) * sizeof(float); }

// A head brought to length one, and then to `length`.
void normalise(const float* x, float* y, int64_t width, float eps, float length) {
  f32x16 sum = zero();
  for (int64_t i = 0; i < width; i += kLanes) {
    const f32x16 v = load_n(x + i, width - i);
    sum = fma(v, v, sum);
  }
  const f32x16 scale = set1(1.0f / std::sqrt(hsum(sum) + eps));
  for (int64_t i = 0; i < width; i += kLanes)
    store_n(y + i, load_n(x + i, width - i) * scale * set1(length), width - i);
}

// Queries and keys of one key head for all rows, in the thread's own memory.
class Units {
 public:
  explicit Units(const RuleArgs& a)
      : a_(a), heads_(static_cast<float*>(workspace(Use::kRow, floats(*a.count * 2 * a.key_dim)))) {}

  void hold(int64_t head) {
    if (head == held_) return;
    held_ = head;
    const int64_t width = a_.key_dim, at = head * width;
    const float eps = static_cast<float>(a_.eps), length = 1.0f / std::sqrt(static_cast<float>(width));
    for (int64_t row = 0; row < *a_.count; ++row) {
      normalise(a_.q + row * a_.q_stride + at, heads_ + 2 * row * width, width, eps, length);
      normalise(a_.k + row * a_.k_stride + at, heads_ + (2 * row + 1) * width, width, eps, 1.0f);
    }
  }
  const float* q(int64_t row) const { return heads_ + 2 * row * a_.key_dim; }
  const float* k(int64_t row) const { return heads_ + (2 * row + 1) * a_.key_dim; }

 private:
  const RuleArgs& a_;
  float* heads_;
  int64_t held_ = -1;
};

// Columns of a value head.
struct Block {
  int64_t head, column, lanes;

  State of(float* state, const RuleArgs& a) const {
    return {state + head * a.key_dim * a.value_dim + column, a.value_dim};
  }
};

// Calls f(block, units of its key head) for this part's blocks.
template <class F>
void each_block(const RuleArgs& a, Part part, F f) {
  const int64_t blocks = (a.value_dim + kBlock - 1) / kBlock, group = a.value_heads / a.key_heads;
  const Range tasks = share(a.value_heads * blocks, part);
  Units units(a);
  for (int64_t t = tasks.begin; t < tasks.end; ++t) {
    const int64_t head = t / blocks, column = t % blocks * kBlock, left = a.value_dim - column;
    units.hold(head / group);
    f(Block{head, column, left < kBlock ? left : kBlock}, units);
  }
}

// Takes a block over all rows. place(row) is where the state behind a row is kept; `tile` serves a lane's first row
// that has nothing to go on from. `u` [rows][value_heads][value_dim] or null.
template <class Place>
void walk(const RuleArgs& a, const Block& block, const Units& units, bool tree, float* tile, float* u, Place place) {
  const int64_t width = a.value_heads * a.value_dim, at = block.head * a.value_dim + block.column;
  const auto entry = [&](int64_t row) {
    if (float* state = a.slots.carried(a.state, row)) return block.of(state, a);
    std::memset(tile, 0, floats(a.key_dim * kBlock));
    return State{tile, kBlock};
  };
  for (int64_t row = 0; row < *a.count; ++row) {
    const int64_t above = a.slots.before(row, tree);
    const float decay = a.decay[row * a.decay_stride + block.head], beta = a.beta[row * a.beta_stride + block.head];
    const float* v = a.v + row * a.v_stride + at;
    float* y = a.y + row * a.y_stride + at;
    const Token token{units.q(row), units.k(row), v, decay, beta, y, u ? u + row * width + at : nullptr};
    step(token, above < 0 ? entry(row) : place(above), place(row), a.key_dim, block.lanes);
  }
}

// Who goes on from a row: nobody, the next row alone, or rows further on.
enum class Heir : unsigned char { kNone, kNext, kLater };

Heir* heirs(const RuleArgs& a, bool tree) {
  Heir* out = static_cast<Heir*>(workspace(Use::kBytes, static_cast<size_t>(*a.count)));
  for (int64_t row = 0; row < *a.count; ++row) {
    out[row] = Heir::kNone;
    if (const int64_t above = a.slots.before(row, tree); above >= 0)
      out[above] = above + 1 == row ? Heir::kNext : Heir::kLater;
  }
  return out;
}

// What a commit needs of the rows beside u: of its key head by the first value head that reads it.
void keep(const VerifyArgs& a, const Block& block, const Units& units) {
  const RuleArgs& rule = a.rule;
  if (block.column != 0) return;
  const int64_t group = rule.value_heads / rule.key_heads, key_head = block.head / group;
  for (int64_t row = 0; row < *rule.count; ++row) {
    a.decay_factor[row * rule.value_heads + block.head] = rule.decay[row * rule.decay_stride + block.head];
    if (block.head % group == 0)
      std::memcpy(a.k_factor + (row * rule.key_heads + key_head) * rule.key_dim, units.k(row), floats(rule.key_dim));
  }
}

// Moves one row of a state on, number `row` of all heads', by the moves from `begin` to before `end`.
void replay(const CommitArgs& a, int64_t layer, int64_t begin, int64_t end, int64_t row) {
  const int64_t head = row / a.key_dim, key_head = head / (a.value_heads / a.key_heads);
  const int64_t key = key_head * a.key_dim + row % a.key_dim, value = head * a.value_dim;
  const float* k = a.moves.factors(a.k_factor, layer) + key;
  const float* u = a.moves.factors(a.u_factor, layer) + value;
  const float* decay = a.moves.factors(a.decay_factor, layer) + head;
  float* state = a.moves.kept(a.state, layer, begin) + row * a.value_dim;
  const bool fresh = a.moves.move_target[begin] == 0;
  for (int64_t i = 0; i < a.value_dim; i += kLanes) {
    const int64_t n = a.value_dim - i;
    f32x16 s = fresh ? zero() : load_n(state + i, n);
    for (int64_t m = begin; m < end; ++m) {
      const int64_t from = a.moves.move_row[m];
      s = moved_on(s, set1(decay[from * a.value_heads]), set1(k[from * a.key_heads * a.key_dim]),
                   load_n(u + from * a.value_heads * a.value_dim + i, n));
    }
    store_n(state + i, s, n);
  }
}

}  // namespace

#define DELTA_SIGNATURE(STATE)                                                                              \
  "<count <q =q_stride <k =k_stride <v =v_stride <decay =decay_stride <beta =beta_stride " STATE            \
  " " SLOTS_SIGNATURE " >y =y_stride =key_heads =value_heads =key_dim =value_dim ~eps"

TDM_KERNEL(delta_rule, RuleArgs, DELTA_SIGNATURE("!state")) {
  float* tile = static_cast<float*>(workspace(Use::kTiles, floats(a.key_dim * kBlock)));
  each_block(a, part, [&](const Block& block, const Units& units) {
    walk(a, block, units, false, tile, nullptr, [&](int64_t row) {
      return a.slots.ends(row, *a.count) ? block.of(a.slots.kept(a.state, row), a) : State{tile, kBlock};
    });
  });
}

TDM_KERNEL(delta_verify, VerifyArgs, DELTA_SIGNATURE("<state") " >k_factor >u_factor >decay_factor =tree") {
  const RuleArgs& rule = a.rule;
  const bool tree = a.tree != 0;
  const int64_t size = rule.key_dim * kBlock;
  // The first is handed from row to row, then one for each row.
  float* tiles = static_cast<float*>(workspace(Use::kTiles, floats((1 + *rule.count) * size)));
  const Heir* heir = heirs(rule, tree);
  each_block(rule, part, [&](const Block& block, const Units& units) {
    walk(rule, block, units, tree, tiles, a.u_factor, [&](int64_t row) {
      if (heir[row] == Heir::kNone) return State{nullptr, 0};
      return State{heir[row] == Heir::kNext ? tiles : tiles + (1 + row) * size, kBlock};
    });
    keep(a, block, units);
  });
}

TDM_KERNEL(delta_commit, CommitArgs,
           "<count <k_factor <u_factor <decay_factor !state " MOVES_SIGNATURE
           " =key_heads =value_heads =key_dim =value_dim") {
  const int64_t rows = a.value_heads * a.key_dim;
  const Range tasks = share(a.moves.layers * rows, part);
  for (int64_t begin = 0, end; begin < *a.count; begin = end) {
    end = a.moves.end(begin, *a.count);
    for (int64_t t = tasks.begin; t < tasks.end; ++t) replay(a, t / rows, begin, end, t % rows);
  }
}
