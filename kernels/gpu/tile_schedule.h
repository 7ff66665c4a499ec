#pragma once

#include <cstdint>

#include "kernels/host/bf16.h"

namespace contraflow::gpu {

/// One tile of the product of one expert; row and column are counted in tiles.
struct Tile {
  int expert, row, column;
};

/// The tiles of a grouped product. Expert e has the rows first[e] .. first[e + 1] of the operands;
/// one without rows has no tiles.
struct TileGrid {
  const int32_t* first;  ///< [experts + 1], non-decreasing
  int experts;
  int height;   ///< rows of an expert that make a row of tiles; 0: every expert has `rows` of those
  int rows;     ///< rows of tiles of an expert, where height is 0
  int columns;  ///< columns of tiles of an expert

  CF_BOTH int Rows(int expert) const {
    const int operand_rows = first[expert + 1] - first[expert];
    if (height == 0) return operand_rows > 0 ? rows : 0;
    return (operand_rows + height - 1) / height;
  }
};

/// Walks the tiles of one block: every blocks-th of all tiles in one fixed order, so that the
/// blocks of a grid cover each tile once. Neighbours in that order belong to one expert and lie
/// close together: it goes through bands of some rows of tiles column by column, rightwards and in
/// the next band leftwards. Tiles that blocks work on at the same time thus share operands in L2.
class TileWalk {
 public:
  /// 16 rows of 128 by 8 columns of 256 are square, and about as many tiles as there are SMs.
  static constexpr int kBand = 16;

  CF_BOTH TileWalk(const TileGrid& grid, int block, int blocks, int band = kBand)
      : grid_(grid), next_(block), blocks_(blocks), band_(band) {}

  /// The block's next tile; false after the last.
  CF_BOTH bool Next(Tile* tile) {
    while (next_ >= end_) {
      if (++expert_ >= grid_.experts) return false;
      end_ += grid_.Rows(expert_) * grid_.columns;
    }
    // Asked again rather than kept: registers are scarce.
    const int rows = grid_.Rows(expert_);
    const int number = next_ - (end_ - rows * grid_.columns);
    const int band = number / (band_ * grid_.columns), band_row = band * band_;
    const int band_rows = rows - band_row < band_ ? rows - band_row : band_;
    const int in_band = number - band_row * grid_.columns;
    const int column = in_band / band_rows;
    *tile = {expert_, band_row + in_band % band_rows,
             band % 2 == 0 ? column : grid_.columns - 1 - column};
    next_ += blocks_;
    return true;
  }

 private:
  TileGrid grid_;
  int next_, blocks_, band_;
  int expert_ = -1;
  int end_ = 0;  // after the numbers of the expert's tiles
};

}  // namespace contraflow::gpu
