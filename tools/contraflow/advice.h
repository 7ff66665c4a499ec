#pragma once

#include <span>
#include <string>

#include "tools/contraflow/comparison.h"

namespace contraflow {

/// Which schedule to take, in a sentence that says why.
struct Advice {
  std::string schedule;  ///< "" where none fits
  std::string text;
};

/// The simplest of the rows of the costs' own model whose step is within a hundredth of the
/// shortest: 1F1B where nothing gains more than that.
Advice Advise(std::span<const Row> rows);

}  // namespace contraflow
