#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/core/rank_order.h"

namespace contraflow {

/// The command line of contraflow-run.
struct RunOptions {
  std::string plan;
  std::string device = "cpu";
  std::string transport;      ///< "": what suits the launcher
  std::string stages;         ///< shared library of custom stages; "": the model's
  std::string stage_options;  ///< for them alone
  std::string model = "default";
  std::optional<double> capacity;    ///< instead of the model's capacity factor
  std::optional<double> lr, clip;    ///< instead of the model's learning rate and limit
  std::string data;                  ///< "": a licence text of the machine
  std::string validation;            ///< a file, or a part of the data as a number; "": none
  int validate_every = 100;          ///< steps; at the end as well
  int validate_batches = 4;          ///< steps' worth of micro-batches
  int log_every = 1;                 ///< steps
  std::string jsonl;                 ///< "": none
  std::optional<double> peak_flops;  ///< of a device, a second
  int steps = 10;
  bool check = false;
  std::string trace;      ///< "": none
  std::string calibrate;  ///< "": none
  uint64_t seed = 1;
  bool json = false;
  bool strict = false;
  bool graph = true;       ///< --device cuda: replay a step that was captured once
  int stamps = 1;          ///< measure when instructions run every n steps; 0: never
  bool one_sided = false;  ///< --transport nccl: the pipeline's messages are put without kernels
  int partition_sms = 0;   ///< --device cuda: of each device; 0: as many as there are for each
  std::string matmul_choices;      ///< --device cuda: file of chosen algorithms; "": none
  double timeout = 120;            ///< seconds
  double rendezvous_timeout = 60;  ///< seconds
  std::string rank_order{RankOrder::kDefault};
  std::string secret_file;   ///< "": none
  std::string ask;           ///< HOST:PORT of a job that runs; "": train
  std::string checkpoint;    ///< folder; "": none
  int checkpoint_every = 0;  ///< steps; 0: at the end only
  int checkpoint_keep = 2;   ///< how many
  bool resume = false;
  std::optional<int> resume_step;           ///< instead of the newest
  std::chrono::milliseconds grace{30'000};  ///< between a request to stop and the end
};

/// The part of the data that is held out for validation, if the option is one: above 0, below 1.
std::optional<double> HeldOut(const RunOptions& options);

/// Seconds of an option, rounded up.
std::chrono::milliseconds Milliseconds(double seconds);

/// Returns nothing if the words ask for help or the version, which was printed. Throws UsageError
/// if they cannot be read, have a value that an option does not take, or do not go together.
std::optional<RunOptions> ParseRunOptions(const std::vector<std::string>& words);

}  // namespace contraflow
