#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace contraflow {

/// The command line of contraflow-run.
struct RunOptions {
  std::string plan;
  std::string device = "cpu";
  std::string transport = "threads";
  std::string model = "default";
  std::optional<double> capacity;  ///< instead of the model's capacity factor
  std::string data;                ///< "": a licence text of the machine
  int steps = 10;
  bool check = false;
  std::string trace;  ///< "": none
  uint64_t seed = 1;
  bool json = false;
  bool strict = false;
  double timeout = 120;  ///< seconds

  std::string help;  ///< if not empty, show this and do nothing else
};

/// Throws UsageError if the words cannot be read, Error if a value does not fit or names a device
/// or transport that this version does not have.
RunOptions ParseRunOptions(const std::vector<std::string>& words);

}  // namespace contraflow
