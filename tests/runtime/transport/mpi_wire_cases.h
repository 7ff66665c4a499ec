#pragma once

#include <chrono>
#include <string>

#include "runtime/transport/mpi.h"

namespace contraflow {

/// Longest that a process waits for another.
inline constexpr std::chrono::seconds kLimit{60};

/// This process among those of the job.
inline int process = -1;

/// Says what did not hold, and ends the process; mpirun then ends the others.
[[noreturn]] void Fail(const std::string& what);

#define EXPECT(condition) \
  ((condition)            \
       ? void()           \
       : ::contraflow::Fail(std::string(#condition) + " at line " + std::to_string(__LINE__)))

/// Messages of many sizes in all directions, in order, by rendezvous, in pieces; and Abort.
void TestWire(Mpi* mpi);
/// Messages of another size than their receives expect.
void TestSizes(Mpi* mpi);

}  // namespace contraflow
