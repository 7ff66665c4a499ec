#pragma once

#include <string>
#include <vector>

namespace contraflow {

/// One line of a report. A target of 0 is none; `at_most` says that less is better.
struct Figure {
  std::string name;
  double value = 0;
  std::string unit;
  double target = 0;
  bool at_most = false;
};

/// Table of name, figure, target and ratio (at least 1 if the target is met), with headings.
std::string FormatFigures(const std::vector<Figure>& figures);
/// Like FormatFigures, of one figure, on a line of its own.
std::string FormatFigure(const Figure& figure);

/// Appends a JSON object on a line of its own, with part, figure, value, unit, target and ratio
/// (null where there is none), in one write, so that processes can share a file and one that is
/// killed loses nothing. Throws Error if that fails.
void AppendFigure(const std::string& path, const std::string& part, const Figure& figure);

}  // namespace contraflow
