#pragma once

// Content of profiles, whatever their form. Times in microseconds.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/plan/instruction.h"

namespace contraflow {

/// One instruction that was timed; a SEND_F is a message of whatever stages. A stage of -1 stands
/// for every stage, a micro-batch of -1 for one that the profile does not name.
struct Sample {
  Instruction what;
  double time = 0;
  int step = 0;    ///< counted from 0 in each file; -1: not known
  int rank = -1;   ///< -1: that of the file
  double end = 0;  ///< traces of PyTorch only
};

/// One side of a message: a SEND named after the stage that makes what is sent, from its start; a
/// RECV after the stage that takes it, from when that waited to when it went on.
struct MessageEnd {
  Instruction what;
  double start = 0, end = 0;
  int step = 0;
};

/// Content of one file.
struct FileSamples {
  std::string place;  ///< its name, for messages
  std::vector<Sample> samples;
  std::vector<MessageEnd> messages;
  std::vector<double> transfers;  ///< how long a device sent and received, waiting included
  std::map<std::string, int64_t> unmapped;  ///< names that mean nothing here (AddUnmapped)
  std::vector<std::string> notes;           ///< other notes on these times
  int rank = -1, world_size = 0;            ///< -1 and 0 where it does not say
  int layers = 0;          ///< components of this many layers make a chunk; 0: not known
  bool one_stage = false;  ///< its ranges name no stage, and are of that with the rank's number
  /// Whether ranks computed nothing during a REDUCE; nothing where no computation follows one.
  std::optional<bool> reduce_blocks;
};

/// The instruction that a range of a profile is named after: "PP:0F3", "PP:(0F7;7B3)OVERLAP_F_B"
/// and "PP:0SEND_F1" of PyTorch's runtime, whose B is the full backward and whose I is B here;
/// "attn(F)", a component; "F s0 m3" of this project's traces. Messages have no peer. None if it is
/// no instruction.
std::optional<Instruction> ParseRange(std::string_view name);

/// The F or BW of this stage (-1: not known) that "Forward 3" or "Backward 3" is: see one_stage.
std::optional<Instruction> ParseOneStage(std::string_view name, int stage);

/// Without the blanks at both ends.
std::string_view TrimBlanks(std::string_view text);

/// Counts a name that means nothing here; names that differ in numbers alone count as one, with a #
/// in place of each.
void AddUnmapped(std::string_view name, FileSamples* file);

/// Numbers the steps of a file's samples and messages, which are in order of time: what has been
/// seen before, of the same stage and micro-batch, is of the next step; without a micro-batch that
/// is not known.
void NumberSteps(FileSamples* file);

// Readers of each form. Throw Error "PLACE: ..." for text that is none.

/// Chrome traces: of PyTorch's profiler (Kineto), of contraflow-run and contraflow simulate.
FileSamples ReadTraceSamples(std::string_view text, const std::string& place);
/// CSV with the columns stage, op and time (in microseconds, or as in "time (ms)"), and optionally
/// microbatch and step, in any order. Ops are F B W BW FB R REDUCE STEP, and COMM, a message.
FileSamples ReadTableSamples(std::string_view text, const std::string& place);
/// CSV of `nsys stats`: nvtx_gpu_proj_trace, nvtx_pushpop_trace, nvtx_sum and their like.
FileSamples ReadNvtxSamples(std::string_view text, const std::string& place);

/// How a log's ranks hold a model.
struct LogShape {
  int ranks = 0;         ///< of the pipeline; 0: as many as the log has
  int chunks = 1;        ///< stages of each
  int microbatches = 0;  ///< of a step; 0: not known
};
/// Megatron-LM's timers "forward-compute" and "backward-compute", with every --timing-log-option.
FileSamples ReadMegatronSamples(std::string_view text, const std::string& place,
                                const LogShape& shape);

}  // namespace contraflow
