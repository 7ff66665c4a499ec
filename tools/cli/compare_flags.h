#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "schedules/compare.h"
#include "tools/cli/spec_options.h"

namespace CLI {
class App;
}

namespace contraflow {

/// Request of `contraflow compare`, as the user wrote it.
struct CompareFlags {
  int ranks = 0, chunks = 0, data_parallel = 1, expert_parallel = 0;
  std::string microbatches, memory_limit;  ///< one each, or lists
  CostsOption costs;
  SearchOption search;
  std::string recompute = "none", offload = "none";
  std::optional<std::string> partition, target;
  DeviceMemoryOption device_memory;
  bool no_auto = false;
  std::optional<int64_t> global_batch;
  std::string schedules, sort;  ///< names with commas, or ""; a column, or ""
};

/// Adds the options that say so to a command.
void AddCompareOptions(CLI::App* app, CompareFlags* flags);

/// The request that Compare takes, without numbers of micro-batches and limits. Reads the named
/// costs and all other values. Throws UsageError for a value that its option does not take, Error
/// for values that contradict each other. `assumed` as for ResolveCosts.
CompareRequest ResolveCompare(CompareFlags flags, std::vector<std::string>* assumed = nullptr);

}  // namespace contraflow
