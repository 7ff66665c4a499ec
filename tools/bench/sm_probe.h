#pragma once

#include <cstdint>

#include "kernels/gpu/stream.h"

namespace contraflow {

/// Blocks of 1024 threads that tell on which SM they are, and stay there for N nanoseconds.
void ProbeSms(gpu::Stream stream, int blocks, uint64_t nanoseconds, int* sm_of_block);

/// *at += 1, after this many nanoseconds.
void CountLate(gpu::Stream stream, uint64_t nanoseconds, int* at);

/// *to = *from.
void CopyOne(gpu::Stream stream, const int* from, int* to);

}  // namespace contraflow
