// y = f(x) W^T + b for every weight format: what goes in front of the product and behind it, and how tiles cover it.
// f is nothing or RMS norm, after a residual add where there is a delta. A gated product pairs output j with output
// n / 2 + j and keeps silu(first) * second. Every thread prepares all rows for itself: that is cheaper than a barrier.
#pragma once
#include <initializer_list>
#include <type_traits>

#include "norm.h"
#include "panel.h"
#include "tandem.h"
#include "workspace.h"

namespace tdm {

struct LinearArgs {
  const int32_t* count;
  const float* x;
  int64_t x_stride;
  const float* delta;
  int64_t delta_stride;
  const float* norm;
  double eps;
  float* sum;
  int64_t sum_stride;
  const void* weight;
  const float* bias;
  float* y;
  int64_t y_stride;
  int64_t n;
  int64_t k;
  int64_t gated;
};

#define LINEAR_SIGNATURE                                                                              \
  "<count <x =x_stride <delta =delta_stride <norm ~eps >sum =sum_stride <weight <bias >y =y_stride =n =k =gated"

template <int R>
using Size = std::integral_constant<int, R>;

// Cuts rows into tiles of at most kMost: calls f(first row, Size<R>).
template <int kMost, class F>
void each_tile(int64_t count, F f) {
  int64_t row = 0;
  const auto tiles = [&]<int R>(Size<R> size) {
    if constexpr (R <= kMost)
      for (; count - row >= R; row += R) f(row, size);
  };
  tiles(Size<12>{}), tiles(Size<8>{}), tiles(Size<6>{}), tiles(Size<4>{}), tiles(Size<3>{}), tiles(Size<2>{});
  tiles(Size<1>{});
}

// Rows of the tile that begins at `row`.
template <int kMost>
int64_t tile_at(int64_t count, int64_t row) {
  for (int size : {12, 8, 6, 4, 3, 2})
    if (size <= kMost && count - row >= size) return size;
  return 1;
}

// Calls f(row, its values) for every row behind norm and residual add. Sums are written out by the part that a row
// falls to.
template <class F>
void each_input(const LinearArgs& a, Part part, F f) {
  auto* row = static_cast<float*>(workspace(Use::kRow, static_cast<size_t>(a.k) * sizeof(float)));
  const int64_t count = *a.count;
  const Range mine = share(count, part);
  for (int64_t r = 0; r < count; ++r) {
    const float* x = a.x + r * a.x_stride;
    if (a.delta) {
      add_rows(x, a.delta + r * a.delta_stride, row, a.k);
      if (mine.begin <= r && r < mine.end)
        std::memcpy(a.sum + r * a.sum_stride, row, static_cast<size_t>(a.k) * sizeof(float));
      x = row;
    }
    if (a.norm) rms_norm(x, a.norm, row, a.k, static_cast<float>(a.eps)), x = row;
    f(r, x);
  }
}

// Where a row's values go: it is number `inside` of the tile of `size` rows that begins at row `first`.
struct Place {
  int64_t first;
  int64_t size;
  int64_t inside;
};

// each_input with the row's place among tiles of at most kMost rows.
template <int kMost, class F>
void each_tiled_input(const LinearArgs& a, Part part, F f) {
  Place at{0, 0, 0};
  each_input(a, part, [&](int64_t row, const float* x) {
    if (row == at.first + at.size) at = {row, tile_at<kMost>(*a.count, row), 0};
    at.inside = row - at.first;
    f(at, x);
  });
}

// Writes R rows of P panels that lie in `out` as [R][P][32].
template <int R, int P>
void finish(const LinearArgs& a, int64_t row, const int64_t (&panel)[P], const float* out) {
  for (int p = 0; p < P; ++p)
    for (int h = 0; h < kPanel; h += kLanes) {
      const int64_t column = panel[p] * kPanel + h, width = a.n - column;
      if (width <= 0) break;
      for (int r = 0; r < R; ++r) {
        f32x16 v = load(out + (r * P + p) * kPanel + h);
        if (a.bias) v = v + load_n(a.bias + column, width);
        store_n(a.y + (row + r) * a.y_stride + column, v, width);
      }
    }
}

// Writes R rows of P panels of gates, their partners in `up`; row r of either lies r * stride floats on.
template <int R, int P>
void finish_gated(const LinearArgs& a, int64_t row, int64_t panel, const float* gate, const float* up, int64_t stride) {
  for (int r = 0; r < R; ++r)
    for (int i = 0; i < P * kPanel; i += kLanes) {
      const int64_t at = r * stride + i;
      store(a.y + (row + r) * a.y_stride + panel * kPanel + i, silu(load(gate + at)) * load(up + at));
    }
}

// All rows of P panels: the weights are read from memory once and from the cache then.
template <int P, class Product>
void cover_rows(const Product& product, const LinearArgs& a, const int64_t (&panel)[P]) {
  each_tile<Product::kMost>(*a.count, [&]<int R>(int64_t row, Size<R>) {
    alignas(64) float out[R * P * kPanel];
    product.template tile<R, P>(row, panel, out);
    finish<R, P>(a, row, panel, out);
  });
}

// The same for P pairs of panels, side by side where they fit the registers and else one after the other.
template <int P, class Product>
void cover_pairs(const Product& product, const LinearArgs& a, int64_t panel, bool beside) {
  const int64_t partner = panel + a.n / (2 * kPanel);
  each_tile<Product::kMost>(*a.count, [&]<int R>(int64_t row, Size<R>) {
    alignas(64) float out[2 * R * P * kPanel];
    float* up = out + P * kPanel;
    if constexpr (P == 2) {
      product.template tile<R, 4>(row, {panel, panel + 1, partner, partner + 1}, out);
    } else if (R <= Product::kPairs && beside) {
      product.template tile<R, 2>(row, {panel, partner}, out);
    } else {
      product.template tile<R, 1>(row, {panel}, out);
      up = out + R * kPanel;
      product.template tile<R, 1>(row, {partner}, up);
      return finish_gated<R, 1>(a, row, panel, out, up, kPanel);
    }
    finish_gated<R, P>(a, row, panel, out, up, 2 * P * kPanel);
  });
}

// One row leaves registers for four panels at once and kPairs rows for two: more independent chains in flight.
template <class Product>
void cover(const Product& product, const LinearArgs& a, Part part) {
  const int64_t count = *a.count, panels = (a.n + kPanel - 1) / kPanel;
  Range range = share(a.gated ? panels / 2 : panels, part);
  int64_t& p = range.begin;
  if (a.gated) {
    if (count == 1)
      for (; range.end - p >= 2; p += 2) cover_pairs<2>(product, a, p, true);
    for (; p < range.end; ++p) cover_pairs<1>(product, a, p, count <= Product::kPairs);
    return;
  }
  if (count == 1)
    for (; range.end - p >= 4; p += 4) cover_rows<4>(product, a, {p, p + 1, p + 2, p + 3});
  if (count <= Product::kPairs)
    for (; range.end - p >= 2; p += 2) cover_rows<2>(product, a, {p, p + 1});
  for (; p < range.end; ++p) cover_rows<1>(product, a, {p});
}

}  // namespace tdm
