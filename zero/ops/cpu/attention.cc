#include <algorithm>
#include <cmath>

#include "quant/convert.h"
#include "zero/ops/cpu/softmax.h"
#include "zero/ops/ops.h"

namespace zeropp::zero::ops {
namespace {

using quant::ConstView;
using quant::Dtype;
using quant::MutView;

/// Queries go in tiles, and a tile sees the keys up to its last query only: the upper triangle
/// costs nothing but the tiles on the diagonal.
constexpr std::size_t kTile = 128;

constexpr std::size_t padded(std::size_t n) { return (n + 15) / 16 * 16; }

struct Tile {
  std::size_t first, rows, keys, ld;
};

std::size_t tiles(std::size_t seq) { return (seq + kTile - 1) / kTile; }

Tile tile_at(std::size_t index, std::size_t seq) {
  const std::size_t first = index * kTile, rows = std::min(kTile, seq - first);
  return {first, rows, first + rows, padded(first + rows)};
}

/// One head's [seq, head_dim] slice of a wider matrix.
Matrix head(ConstView all, const AttentionShape& s, std::size_t batch, std::size_t column,
            std::size_t ld) {
  const ConstView from = all.slice(batch * s.seq * ld + column, 0);
  return {from.data,
          all.dtype,
          static_cast<std::int64_t>(s.seq),
          static_cast<std::int64_t>(s.head_dim),
          static_cast<std::int64_t>(ld),
          false};
}

/// The slice itself where its dtype multiplies natively, else an fp32 copy in scratch, so that
/// tiles do not widen the same keys again and again.
Matrix operand(Context& ctx, Slot slot, const Matrix& m) {
  if (native_matmul(m.dtype)) return m;
  const auto rows = static_cast<std::size_t>(m.rows), cols = static_cast<std::size_t>(m.cols);
  const MutView copy = ctx.scratch(slot, Dtype::kF32, rows * cols);
  const ConstView from{m.data, m.dtype, 0};
  for (std::size_t i = 0; i < rows; ++i) {
    convert(ConstView{from.slice(i * static_cast<std::size_t>(m.ld), cols)},
            copy.slice(i * cols, cols));
  }
  return matrix(copy, m.rows, m.cols);
}

Matrix rows_of(const Matrix& m, std::size_t first, std::size_t count) {
  Matrix part = m;
  part.data =
      ConstView{m.data, m.dtype, 0}.slice(first * static_cast<std::size_t>(m.ld), 0).data;
  part.rows = static_cast<std::int64_t>(count);
  return part;
}

Matrix tile_matrix(const void* data, Dtype dtype, const Tile& t) {
  return {data,
          dtype,
          static_cast<std::int64_t>(t.rows),
          static_cast<std::int64_t>(t.keys),
          static_cast<std::int64_t>(t.ld),
          false};
}

MutMatrix tile_result(float* data, const Tile& t) {
  return {data, Dtype::kF32, static_cast<std::int64_t>(t.rows),
          static_cast<std::int64_t>(t.keys), static_cast<std::int64_t>(t.ld)};
}

MutMatrix output_rows(MutView all, const AttentionShape& s, std::size_t row, std::size_t column,
                      std::size_t rows, std::size_t ld) {
  return {all.slice(row * ld + column, 0).data, all.dtype, static_cast<std::int64_t>(rows),
          static_cast<std::int64_t>(s.head_dim), static_cast<std::int64_t>(ld)};
}

void store_head(const float* from, const MutMatrix& to) {
  const auto cols = static_cast<std::size_t>(to.cols), ld = static_cast<std::size_t>(to.ld);
  const MutView base{to.data, to.dtype, 0};
  for (std::size_t i = 0; i < static_cast<std::size_t>(to.rows); ++i) {
    convert(ConstView{from + i * cols, Dtype::kF32, cols}, base.slice(i * ld, cols));
  }
}

struct Scores {
  float *scores, *dprobabilities;
  void *probabilities, *dscores;
  Dtype dtype;
};

/// In fp32 the softmax works in place.
Scores score_buffers(Context& ctx, const AttentionShape& s, Dtype dtype, bool backward) {
  const std::size_t n = std::min(kTile, s.seq) * padded(s.seq);
  Scores b{};
  b.dtype = dtype;
  b.scores = ctx.scratch_f32(Slot::kScores, n);
  b.dprobabilities = backward ? ctx.scratch_f32(Slot::kScoreGrads, n) : nullptr;
  const bool in_place = dtype == Dtype::kF32;
  b.probabilities = in_place ? b.scores : ctx.scratch(Slot::kProbabilities, dtype, n).data;
  if (backward) {
    b.dscores =
        in_place ? b.dprobabilities : ctx.scratch(Slot::kProbabilityGrads, dtype, n).data;
  }
  return b;
}

SoftmaxTile softmax_tile(const AttentionShape& s, const Scores& b, const Tile& t) {
  return {.scores = b.scores,
          .first = t.first,
          .rows = t.rows,
          .ld = t.ld,
          .scale = 1.0F / std::sqrt(static_cast<float>(s.head_dim)),
          .dtype = b.dtype,
          .probabilities = b.probabilities,
          .dprobabilities = b.dprobabilities,
          .dscores = b.dscores};
}

}  // namespace

void attention_forward(Context& ctx, const AttentionShape& s, ConstView qkv, MutView out,
                       float* stats) {
  const std::size_t width = s.width(), d = s.head_dim;
  for (std::size_t bh = 0; bh < s.batch * s.heads; ++bh) {
    const std::size_t batch = bh / s.heads, column = bh % s.heads * d;
    const Matrix q = operand(ctx, Slot::kQuery, head(qkv, s, batch, column, 3 * width));
    const Matrix k = operand(ctx, Slot::kKey, head(qkv, s, batch, column + width, 3 * width));
    const Matrix v =
        operand(ctx, Slot::kValue, head(qkv, s, batch, column + 2 * width, 3 * width));
    const Scores b = score_buffers(ctx, s, q.dtype, false);
    for (std::size_t i = 0; i < tiles(s.seq); ++i) {
      const Tile t = tile_at(i, s.seq);
      matmul(ctx, {.a = rows_of(q, t.first, t.rows),
                   .b = transpose(rows_of(k, 0, t.keys)),
                   .c = tile_result(b.scores, t)});
      float* max = stats + bh * 2 * s.seq + t.first;
      softmax_forward(softmax_tile(s, b, t), max, max + s.seq);
      matmul(ctx, {.a = tile_matrix(b.probabilities, b.dtype, t),
                   .b = rows_of(v, 0, t.keys),
                   .c = output_rows(out, s, batch * s.seq + t.first, column, t.rows, width)});
    }
  }
}

void attention_backward(Context& ctx, const AttentionShape& s, ConstView qkv, ConstView dout,
                        const float* stats, MutView dqkv) {
  const std::size_t width = s.width(), d = s.head_dim, ld = 3 * width;
  const auto dim = static_cast<std::int64_t>(d);
  float* dk = ctx.scratch_f32(Slot::kKeyGrads, s.seq * d);
  float* dv = ctx.scratch_f32(Slot::kValueGrads, s.seq * d);
  for (std::size_t bh = 0; bh < s.batch * s.heads; ++bh) {
    const std::size_t batch = bh / s.heads, column = bh % s.heads * d, row = batch * s.seq;
    const Matrix q = operand(ctx, Slot::kQuery, head(qkv, s, batch, column, ld));
    const Matrix k = operand(ctx, Slot::kKey, head(qkv, s, batch, column + width, ld));
    const Matrix v = operand(ctx, Slot::kValue, head(qkv, s, batch, column + 2 * width, ld));
    const Matrix dy = operand(ctx, Slot::kOutput, head(dout, s, batch, column, width));
    const Scores b = score_buffers(ctx, s, q.dtype, true);
    // The last tile sees all keys, so it writes dk and dv and the earlier ones add.
    for (std::size_t i = tiles(s.seq); i-- > 0;) {
      const Tile t = tile_at(i, s.seq);
      const bool add_up = i + 1 < tiles(s.seq);
      const auto keys = static_cast<std::int64_t>(t.keys);
      const Matrix q_rows = rows_of(q, t.first, t.rows), dy_rows = rows_of(dy, t.first, t.rows);
      matmul(
          ctx,
          {.a = q_rows, .b = transpose(rows_of(k, 0, t.keys)), .c = tile_result(b.scores, t)});
      matmul(ctx, {.a = dy_rows,
                   .b = transpose(rows_of(v, 0, t.keys)),
                   .c = tile_result(b.dprobabilities, t)});
      const float* max = stats + bh * 2 * s.seq + t.first;
      softmax_backward(softmax_tile(s, b, t), max, max + s.seq);
      const Matrix p = tile_matrix(b.probabilities, b.dtype, t);
      const Matrix ds = tile_matrix(b.dscores, b.dtype, t);
      matmul(ctx, {.a = ds,
                   .b = rows_of(k, 0, t.keys),
                   .c = output_rows(dqkv, s, row + t.first, column, t.rows, ld)});
      matmul(ctx, {.a = transpose(ds),
                   .b = q_rows,
                   .c = {dk, Dtype::kF32, keys, dim, dim},
                   .accumulate = add_up});
      matmul(ctx, {.a = transpose(p),
                   .b = dy_rows,
                   .c = {dv, Dtype::kF32, keys, dim, dim},
                   .accumulate = add_up});
    }
    store_head(dk, output_rows(dqkv, s, row, column + width, s.seq, ld));
    store_head(dv, output_rows(dqkv, s, row, column + 2 * width, s.seq, ld));
  }
}

}  // namespace zeropp::zero::ops
