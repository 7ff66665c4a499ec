#pragma once

#include <string>

#include "tools/pictures/picture.h"

namespace contraflow {

/// How a grid is drawn.
struct GridStyle {
  int width = 100;     ///< columns of a line; longer pictures go on in another band below
  bool color = false;  ///< kinds of work by ANSI colours, else by letters
};

/// Limits of GridStyle::width.
inline constexpr int kMinGridWidth = 40;
inline constexpr int kMaxGridWidth = 10'000;

/// The picture known from the papers as text: one row a rank (with components one a lane), time
/// from left to right, boxes with micro-batch numbers. The scale is the smallest at which every
/// number fits in its box, unless that takes more than a few bands; then boxes too narrow for their
/// number show their kind only.
std::string DrawGrid(const Picture& picture, const GridStyle& style);

}  // namespace contraflow
