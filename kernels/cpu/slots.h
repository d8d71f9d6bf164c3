// What rows follow and where their lanes keep what came before: the rule that convolution and recurrence share.
// Rows of a lane stand together, a parent before its children. A row without a parent follows its lane's committed
// prefix, of which the lane's slot holds the outcome; at position 0 it follows nothing, whatever the slot holds.
#pragma once
#include <cstdint>

namespace tdm {

struct Slots {
  const int32_t* state_slot;  // of each lane
  const int32_t* lane;        // of each row
  const int32_t* position;
  const int32_t* parent;  // a row of the pass, or below 0
  int64_t slot_bytes;

  // What a row that follows the prefix finds in `store`, which lies in slot 0; null where nothing came before.
  float* carried(void* store, int64_t row) const { return position[row] == 0 ? nullptr : kept(store, row); }
  float* kept(void* store, int64_t row) const {
    return reinterpret_cast<float*>(static_cast<char*>(store) + state_slot[lane[row]] * slot_bytes);
  }
  // Whether `row` is the last of rows that follow each other.
  bool ends(int64_t row, int64_t count) const { return row + 1 == count || parent[row + 1] < 0; }
  // The row that `row` follows, or below 0. Where rows are no tree each follows the last.
  int64_t before(int64_t row, bool tree) const { return tree || parent[row] < 0 ? parent[row] : row - 1; }
};

#define SLOTS_SIGNATURE "<state_slot <lane <position <parent =slot_bytes"

// Rows of the last verify that were accepted, in order: each becomes a position of its lane. Layers of a slot and of
// what the verify kept lie so many bytes apart.
struct Moves {
  const int32_t* state_slot;
  const int32_t* move_lane;
  const int32_t* move_row;
  const int32_t* move_target;
  int64_t slot_bytes;
  int64_t layers;
  int64_t slot_layer_bytes;
  int64_t factor_layer_bytes;

  float* kept(void* store, int64_t layer, int64_t move) const {
    const int64_t at = state_slot[move_lane[move]] * slot_bytes + layer * slot_layer_bytes;
    return reinterpret_cast<float*>(static_cast<char*>(store) + at);
  }
  const float* factors(const void* store, int64_t layer) const {
    return reinterpret_cast<const float*>(static_cast<const char*>(store) + layer * factor_layer_bytes);
  }
  // The first move behind those of the lane of move `begin`.
  int64_t end(int64_t begin, int64_t count) const {
    int64_t move = begin + 1;
    while (move < count && move_lane[move] == move_lane[begin]) ++move;
    return move;
  }
};

#define MOVES_SIGNATURE \
  "<state_slot <move_lane <move_row <move_target =slot_bytes =layers =slot_layer_bytes =factor_layer_bytes"

}  // namespace tdm
