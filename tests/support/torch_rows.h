#pragma once

#include <doctest/doctest.h>

#include <sstream>
#include <string>
#include <vector>

#include "compiler/files/file.h"

namespace contraflow {

/// The cells of each rank of a schedule in PyTorch's CSV.
using TorchRows = std::vector<std::vector<std::string>>;

inline std::string TorchReference(const std::string& name) {
  return ReadFile(CF_TEST_DIR "/reference/torch_" + name + ".csv", 1 << 20);
}

inline TorchRows SplitTorchCsv(const std::string& csv) {
  TorchRows rows;
  std::istringstream lines(csv);
  for (std::string line; std::getline(lines, line);) {
    CHECK(line.ends_with('\r'));
    line.pop_back();
    rows.emplace_back();
    std::istringstream cells(line);
    for (std::string cell; std::getline(cells, cell, ',');) rows.back().push_back(cell);
  }
  return rows;
}

inline std::string JoinTorchCsv(const TorchRows& rows) {
  std::string csv;
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) csv += (i == 0 ? "" : ",") + row[i];
    csv += "\r\n";
  }
  return csv;
}

}  // namespace contraflow
