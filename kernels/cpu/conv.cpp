// Causal depthwise convolution with SiLU over a row and its nearest ancestors, and the tail it leaves behind: the last
// raw inputs of a lane, oldest first. Each thread has channels of its own, so a tail is moved on in place.
#include <cstring>

#include "norm.h"
#include "slots.h"
#include "tandem.h"

namespace {

using namespace tdm;

constexpr int64_t kMaxTaps = 8;

struct ConvArgs {
  const int32_t* count;
  const float* x;
  int64_t x_stride;
  const float* weight;  // [taps][channels], oldest first
  float* tail;          // [taps - 1][channels]
  Slots slots;
  float* y;
  int64_t y_stride;
  int64_t channels;
  int64_t taps;
};

struct VerifyArgs {
  ConvArgs conv;
  float* raw;  // [rows][channels]
  int64_t tree;
};

struct CommitArgs {
  const int32_t* count;
  const float* raw;
  float* tail;
  Moves moves;
  int64_t channels;
  int64_t taps;
};

// Whole vectors of channels that fall to this part.
Range columns(int64_t channels, Part part) {
  const Range vectors = share((channels + kLanes - 1) / kLanes, part);
  const int64_t end = vectors.end * kLanes;
  return {vectors.begin * kLanes, end < channels ? end : channels};
}

// Raw inputs, oldest first; null where there was no token yet.
using Window = const float* [kMaxTaps];

void look_back(const ConvArgs& a, int64_t row, bool tree, Window& window) {
  int64_t t = a.taps - 1, at = row;
  window[t] = a.x + at * a.x_stride;
  for (int64_t above; t > 0 && (above = a.slots.before(at, tree)) >= 0; at = above)
    window[--t] = a.x + above * a.x_stride;
  const float* tail = a.slots.carried(a.tail, at);
  for (int64_t newest = a.taps - 1; t > 0;) --t, window[t] = tail ? tail + --newest * a.channels : nullptr;
}

f32x16 load_or_zero(const float* p, int64_t i, int64_t n) { return p ? load_n(p + i, n) : zero(); }

void convolve(const ConvArgs& a, int64_t row, const Window& window, Range range) {
  for (int64_t i = range.begin; i < range.end; i += kLanes) {
    const int64_t n = range.end - i;
    f32x16 sum = load_or_zero(window[0], i, n) * load_n(a.weight + i, n);
    for (int64_t t = 1; t < a.taps; ++t)
      sum = fma(load_or_zero(window[t], i, n), load_n(a.weight + t * a.channels + i, n), sum);
    store_n(a.y + row * a.y_stride + i, silu(sum), n);
  }
}

void put(float* to, const float* from, Range range) {
  const size_t bytes = static_cast<size_t>(range.end - range.begin) * sizeof(float);
  if (from)
    std::memmove(to + range.begin, from + range.begin, bytes);
  else
    std::memset(to + range.begin, 0, bytes);
}

}  // namespace

#define CONV_SIGNATURE(TAIL) \
  "<count <x =x_stride <weight " TAIL " " SLOTS_SIGNATURE " >y =y_stride =channels =taps"

TDM_KERNEL(causal_conv, ConvArgs, CONV_SIGNATURE("!tail")) {
  const Range range = columns(a.channels, part);
  for (int64_t row = 0; row < *a.count; ++row) {
    Window window;
    look_back(a, row, false, window);
    convolve(a, row, window, range);
    if (!a.slots.ends(row, *a.count)) continue;
    // Oldest first: what is overwritten has been taken.
    for (int64_t t = 0; t + 1 < a.taps; ++t) put(a.slots.kept(a.tail, row) + t * a.channels, window[t + 1], range);
  }
}

TDM_KERNEL(conv_verify, VerifyArgs, CONV_SIGNATURE("<tail") " >raw =tree") {
  const ConvArgs& conv = a.conv;
  const Range range = columns(conv.channels, part);
  for (int64_t row = 0; row < *conv.count; ++row) {
    Window window;
    look_back(conv, row, a.tree != 0, window);
    convolve(conv, row, window, range);
    put(a.raw + row * conv.channels, window[conv.taps - 1], range);
  }
}

TDM_KERNEL(conv_commit, CommitArgs, "<count <raw !tail " MOVES_SIGNATURE " =channels =taps") {
  const Range range = columns(a.channels, part);
  const int64_t length = a.taps - 1;
  for (int64_t layer = 0; layer < a.moves.layers; ++layer)
    for (int64_t begin = 0, end; begin < *a.count; begin = end) {
      end = a.moves.end(begin, *a.count);
      float* tail = a.moves.kept(a.tail, layer, begin);
      const bool fresh = a.moves.move_target[begin] == 0;
      for (int64_t t = 0; t < length; ++t) {
        // Counted in tokens from the oldest that the tail held before.
        const int64_t token = t + end - begin, move = begin + token - length;
        const float* raw = a.moves.factors(a.raw, layer);
        const float* held = fresh ? nullptr : tail + token * a.channels;
        put(tail + t * a.channels, token < length ? held : raw + a.moves.move_row[move] * a.channels, range);
      }
    }
}
