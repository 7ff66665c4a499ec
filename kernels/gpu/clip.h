#pragma once

// Norm of all gradients, clipping to a limit, and the flag of a failed step. Squares are summed for
// each block of parameters (SumOfSquares of kernels/host/adamw.h), then over blocks. Sums are
// doubles in an order that depends only on the sizes of the blocks. The sum of finite values is
// finite.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/gpu/stream.h"

namespace contraflow::gpu {

/// Values that one thread block adds up.
inline constexpr size_t kSquareTile = size_t{1} << 14;
struct SquareTile {
  uint64_t begin;
  int64_t size;  ///< at most kSquareTile
};
/// Tiles [first, last) make up a block, whose sum goes to `place`.
struct SquareBlock {
  int32_t first, last, place;
};

/// Adds a block of values [begin, begin + size) to both lists, which are for device memory.
void AddSquareBlock(size_t begin, size_t size, int place, std::vector<SquareTile>* tiles,
                    std::vector<SquareBlock>* blocks);

/// squares[place] = the sum of the squares of each block's values; others are left alone. `squares`
/// may be null. *not_finite becomes at least block_count - b where block b has a value that is not
/// finite. partial[tile_count] is work memory. Traffic: 4 bytes a value.
void SumSquares(Stream stream, const float* values, const SquareTile* tiles, int tile_count,
                const SquareBlock* blocks, int block_count, double* partial, double* squares,
                int32_t* not_finite);

/// *note = NaN if one of losses[n] is not finite or one of flags[m] is not 0; else 0.
void NoteFailure(Stream stream, const float* losses, int n, const int32_t* flags, int m,
                 double* note);

/// Share of the gradients that is left, and their norm before.
struct Clip {
  double norm;
  float scale;     ///< limit / norm where the norm is above the limit; else 1
  int32_t failed;  ///< 1 from the first norm on that is not finite; begins with 0
};
/// Clips by the sum of squares[parts x n], where a part has some of the n blocks and 0 for the
/// others, and parts with the same block have the same: each block counts once, in ascending order.
/// The limit may be infinite.
void ClipToNorm(Stream stream, const double* squares, int parts, int n, float limit, Clip* clip);

/// values[n] *= clip->scale. Traffic: 8 bytes a value, or none where the scale is 1.
void ScaleToClip(Stream stream, const Clip* clip, size_t n, float* values);

}  // namespace contraflow::gpu
