#pragma once

#include <optional>
#include <string>
#include <vector>

#include "schedules/compile.h"
#include "tools/cli/spec_options.h"

namespace CLI {
class App;
}

namespace contraflow {

/// Request of `contraflow compile`, as the user wrote it.
struct CompileFlags {
  std::string schedule;
  int ranks = 0, microbatches = 0, chunks = 0, data_parallel = 1, expert_parallel = 0;
  CostsOption costs;
  std::optional<std::string> model;
  std::optional<double> capacity;
  std::string device = "cpu";
  std::string memory_limit;
  SearchOption search;
  std::string recompute = "none", offload = "none";
  std::optional<std::string> partition, target;
  DeviceMemoryOption device_memory;
  std::string level = "comm";
};

/// Adds these options to a command.
void AddCompileOptions(CLI::App* app, CompileFlags* flags);

/// The flags as arguments of Compile, without observer and control.
struct CompileRequest {
  Spec spec;
  CompileOptions options;
  bool assumed_limit = false;  ///< it is 1x because none is known
};

/// Throws UsageError where `auto` has one placement to search, of another number of stages a rank
/// than the spec says.
void CheckChunks(const Spec& spec);

/// Reads the named costs and model, and all values. Throws UsageError for a value that its option
/// does not take, Error for values that contradict each other. `assumed` as for ResolveCosts.
CompileRequest ResolveCompile(CompileFlags flags, std::vector<std::string>* assumed = nullptr);

}  // namespace contraflow
