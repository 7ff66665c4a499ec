#pragma once

#include <string>
#include <string_view>

#include "compiler/plan/error.h"
#include "kernels/gpu/stream.h"

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

/// The same of another type, as Failure<UsageError>(call); other exceptions pass through.
template <typename Thrown, typename Call>
std::string Failure(Call call) {
  try {
    call();
  } catch (const Thrown& error) {
    return error.what();
  }
  return "accepted";
}

/// True if the text has the part.
inline bool Contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace contraflow
