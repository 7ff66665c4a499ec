#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "compiler/plan/instruction.h"

namespace contraflow {

/// A complete event ("ph": "X") of a trace; times in microseconds. A number that it does not have
/// is -1.
struct TraceEvent {
  std::string name, category;
  double start = 0, duration = 0;
  int64_t pid = -1, tid = -1;
  int64_t correlation = -1;  ///< Kineto: joins what the host launches and what the device runs
  int64_t stage = -1, microbatch = -1, back_stage = -1, back_microbatch = -1, layer = -1, peer = -1;

  double end() const { return start + duration; }
};

/// Text outside the events.
struct TraceHead {
  int64_t rank = -1, world_size = -1;
  double base = 0;  ///< microseconds to add to every start
};

/// Reads the Trace Event Format (an object with "traceEvents", or the array alone), of any size,
/// event by event; the view ends with the call of `take`. Throws Error "PLACE: ..." for what is not
/// JSON, has no events, or has a complete event without a name or with times that are none.
TraceHead ReadTraceEvents(std::string_view text, const std::string& place,
                          const std::function<void(const TraceEvent& event)>& take);

/// The instruction of a slice of this project's own traces, by its name or, where that is the
/// operation alone, by its arguments. None if it is no instruction.
std::optional<Instruction> OwnSlice(const TraceEvent& event);

}  // namespace contraflow
