#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "compiler/files/file.h"
#include "compiler/files/json.h"

namespace contraflow {

/// The file of --jsonl: one JSON object a step, each written whole as soon as the step is done, so
/// that who reads whole lines never sees a part of one.
class StepFile {
 public:
  /// Opens or makes the file and cuts away the steps after `done`, which come again, and a line
  /// that a killed run has left torn. Throws Error if it is something else, or cannot be written.
  StepFile(const std::string& path, int done);
  StepFile(const StepFile&) = delete;

  /// `row` begins with "step". Skips the line if the disk is full, with a warning the first time.
  void Add(const Json& row);

 private:
  const std::string path_;
  const Descriptor file_;
  bool failed_ = false;
};

/// The loss over the steps, for a terminal: of many steps each column is a mean, so the memory it
/// takes stays the same.
class LossPlot {
 public:
  void Add(double loss);
  /// Eight lines of blocks with their greatest and least value, at most `width` wide; "" of less
  /// than two steps.
  std::string Draw(int width) const;

 private:
  std::vector<double> sums_;  // of `each_` steps; the last of `last_`
  size_t each_ = 1, last_ = 0;
};

/// Columns of the terminal that standard output is; 0 if it is none.
int TerminalWidth();

}  // namespace contraflow
