#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/launch/world.h"

namespace contraflow {

/// The command line of contraflow-run.
struct RunOptions {
  std::string plan;
  std::string device = "cpu";
  std::string transport;  ///< "": what suits the launcher
  std::string model = "default";
  std::optional<double> capacity;  ///< instead of the model's capacity factor
  std::string data;                ///< "": a licence text of the machine
  int steps = 10;
  bool check = false;
  std::string trace;      ///< "": none
  std::string calibrate;  ///< "": none
  uint64_t seed = 1;
  bool json = false;
  bool strict = false;
  bool graph = true;      ///< --device cuda: replay a step that was captured once
  bool stamps = true;     ///< measure when instructions run; on the CPU always
  int partition_sms = 0;  ///< --device cuda: of each device; 0: as many as there are for each
  double timeout = 120;   ///< seconds
  double rendezvous_timeout = 60;  ///< seconds
  std::string rank_order{RankOrder::kDefault};
  std::string secret_file;   ///< "": none
  std::string checkpoint;    ///< folder; "": none
  int checkpoint_every = 0;  ///< steps; 0: at the end only
  int checkpoint_keep = 2;   ///< how many
  bool resume = false;
  std::optional<int> resume_step;  ///< instead of the newest
};

/// Seconds of an option, rounded up.
std::chrono::milliseconds Milliseconds(double seconds);

/// Nothing if the words ask for help or the version, which was printed. Throws UsageError if they
/// cannot be read, have a value that an option does not take, or do not go together.
std::optional<RunOptions> ParseRunOptions(const std::vector<std::string>& words);

}  // namespace contraflow
