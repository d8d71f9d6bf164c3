// Products with int8 and int4 weights and rows of signed bytes: whole-number sums, exact in any order, then one fixed
// chain of float operations per output.
#include "linear.h"
#include "quantise.h"

namespace {

using namespace tdm;

// What turns byte sums back into reals: for int8 per row, with 128 times the bytes' sum, since weights are raised by
// 128; for int4 per group, with the bytes' sum times the scale, since minima multiply it.
struct RowSpan {
  float scale;
  int32_t raised;
  explicit RowSpan(Span s) : scale(s.scale), raised(128 * s.sum) {}
};
struct GroupSpan {
  float scale;
  float weighed;
  explicit GroupSpan(Span s) : scale(s.scale), weighed(s.scale * static_cast<float>(s.sum)) {}
};

// Rows as bytes in spans of `width` inputs: per tile of R rows [k / 4][R][4], and [spans][R] what goes with them.
template <class S, int kMost>
struct ByteRows {
  int64_t k;  // padded
  int64_t spans;
  int8_t* bytes;
  S* span;

  ByteRows(const LinearArgs& a, Part part, int64_t width)
      : k(padded_inputs(a.k)), spans((a.k + width - 1) / width) {
    const int64_t count = *a.count;
    const size_t size = static_cast<size_t>(count * k);
    bytes = static_cast<int8_t*>(workspace(Use::kTiles, size + sizeof(S) * static_cast<size_t>(count * spans)));
    span = reinterpret_cast<S*>(bytes + size);
    auto* row = static_cast<int8_t*>(workspace(Use::kBytes, static_cast<size_t>(k)));
    each_tiled_input<kMost>(a, part, [&](const Place& at, const float* x) {
      for (int64_t s = 0; s < spans; ++s) {
        const int64_t left = a.k - s * width;
        const Span made = quantise(x + s * width, left < width ? left : width, row + s * width);
        span[at.first * spans + s * at.size + at.inside] = S(made);
      }
      int8_t* to = bytes + at.first * k + at.inside * 4;
      for (int64_t i = 0; i < k; i += 4) std::memcpy(to + i * at.size, row + i, 4);
    });
  }

  const int8_t* at(int64_t row) const { return bytes + row * k; }
  const S* spans_at(int64_t row) const { return span + row * spans; }
};

struct Int8Product {
  static constexpr int kMost = kRegisters >= 32 ? 8 : 6, kPairs = kRegisters >= 32 ? 4 : 1;
  Int8Panels panels;
  ByteRows<RowSpan, kMost> rows;

  Int8Product(const LinearArgs& a, Part part) : panels(a.weight, a.k), rows(a, part, a.k) {}

  template <int R, int P>
  void tile(int64_t row, const int64_t (&panel)[P], float* out) const {
    const int8_t* x = rows.at(row);
    const uint8_t* w[P];
    i32x16 acc[R][2 * P];
    for (int p = 0; p < P; ++p) w[p] = panels.at(panel[p]);
    for (auto& line : acc)
      for (auto& c : line) c = set1_int(0);
    for (int64_t k = 0; k < panels.k; k += 4) {
      for (int c = 0; c < 2 * P; ++c) {
        const u8x64 b = load_bytes(w[c / 2] + k * kPanel + c % 2 * 64);
        for (int r = 0; r < R; ++r) acc[r][c] = dot4(acc[r][c], b, four(x + k * R + 4 * r));
      }
    }
    const RowSpan* span = rows.spans_at(row);
    for (int c = 0; c < 2 * P; ++c) {
      const f32x16 scale = load(panels.scales(panel[c / 2]) + c % 2 * kLanes);
      for (int r = 0; r < R; ++r) {
        const f32x16 sum = to_f32(acc[r][c] - set1_int(span[r].raised));
        store(out + (r * 2 * P + c) * kLanes, sum * scale * set1(span[r].scale));
      }
    }
  }
};

// Per group in order: + nibble sum x (weight scale x row scale), + minimum x (byte sum x row scale).
struct Int4Product {
  static constexpr int kMost = kRegisters >= 32 ? 6 : 8, kPairs = kRegisters >= 32 ? 3 : 1;
  Int4Panels panels;
  ByteRows<GroupSpan, kMost> rows;

  Int4Product(const LinearArgs& a, Part part) : panels(a.weight, a.k), rows(a, part, kGroup) {}

  template <int R, int P>
  void tile(int64_t row, const int64_t (&panel)[P], float* out) const {
    const int8_t* x = rows.at(row);
    const GroupSpan* span = rows.spans_at(row);
    const uint8_t* w[P];
    f32x16 total[R][2 * P];
    for (int p = 0; p < P; ++p) w[p] = panels.at(panel[p]);
    for (auto& line : total)
      for (auto& t : line) t = zero();
    for (int64_t g = 0; g < panels.groups; ++g, x += kGroup * R, span += R)
      for (int c = 0; c < 2 * P; ++c) {
        const uint8_t* group = w[c / 2] + g * Int4Panels::kBytes + c % 2 * 64;
        i32x16 acc[R];
        for (auto& sum : acc) sum = set1_int(0);
        for (int i = 0; i < 4; ++i) {
          const u8x64 b = load_bytes(group + 2 * i * 64), low = low_nibbles(b), high = high_nibbles(b);
          for (int r = 0; r < R; ++r) {
            const int8_t* s = x + (i * R + r) * 4;
            acc[r] = dot4_nibbles(dot4_nibbles(acc[r], low, four(s)), high, four(s + kGroup / 2 * R));
          }
        }
        const auto* reals = reinterpret_cast<const uint16_t*>(w[c / 2] + g * Int4Panels::kBytes + Int4Panels::kNibbles) +
                            c % 2 * kLanes;
        const f32x16 scale = load_fp16(reals), minimum = load_fp16(reals + kPanel);
        for (int r = 0; r < R; ++r) {
          total[r][c] = fma(to_f32(acc[r]), scale * set1(span[r].scale), total[r][c]);
          total[r][c] = fma(minimum, set1(span[r].weighed), total[r][c]);
        }
      }
    for (int r = 0; r < R; ++r)
      for (int c = 0; c < 2 * P; ++c) store(out + (r * 2 * P + c) * kLanes, total[r][c]);
  }
};

}  // namespace

TDM_KERNEL(linear_int8, LinearArgs, LINEAR_SIGNATURE) { cover(Int8Product(a, part), a, part); }
TDM_KERNEL(linear_int4, LinearArgs, LINEAR_SIGNATURE) { cover(Int4Product(a, part), a, part); }
