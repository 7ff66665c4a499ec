#pragma once

#include <string>

#include "compiler/error.h"
#include "kernels/stream.h"

namespace contraflow {

/// The message of the Error or GpuError that the call throws, or "accepted".
template <typename Call>
std::string Failure(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  } catch (const gpu::GpuError& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace contraflow
