#pragma once

// What the watch in one process says to that in another.

#include <cstdint>
#include <string>

#include "runtime/core/bytes.h"
#include "runtime/launch/fault_report.h"

namespace contraflow {

/// What one process is doing.
struct Beat {
  uint64_t moves = 0;
  int32_t step = 0;
  int32_t waits_for = -1;
  uint32_t age_ms = 0;   ///< how long it has been there
  std::string position;  ///< described
};

void PutBeat(const Beat& beat, ByteWriter* bytes);
void PutFault(const Fault& fault, ByteWriter* bytes);
std::string FaultBytes(const Fault& fault);

/// Throw Error unless it is one of a job of so many processes. Its texts steer no terminal.
Beat TakeBeat(ByteReader* bytes, int size);
Fault TakeFaultBytes(ByteReader* bytes, int size);

}  // namespace contraflow
