#pragma once

#include <string>

#include "compiler/error.h"

namespace contraflow {

/// The message of the Error that the call throws, or "accepted".
template <typename Call>
std::string Failure(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace contraflow
