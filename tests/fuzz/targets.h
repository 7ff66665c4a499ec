#pragma once

#include <optional>
#include <string_view>

#include "compiler/plan/error.h"

namespace contraflow {

// Each takes any bytes, returns, and throws nothing.
void FuzzCosts(std::string_view bytes);
void FuzzDataset(std::string_view bytes);
void FuzzHfConfig(std::string_view bytes);
void FuzzInstruction(std::string_view bytes);
void FuzzLimits(std::string_view bytes);
void FuzzManifest(std::string_view bytes);
void FuzzMessage(std::string_view bytes);
void FuzzModel(std::string_view bytes);
void FuzzMutate(std::string_view bytes);
void FuzzOption(std::string_view bytes);
void FuzzPlan(std::string_view bytes);
void FuzzProfile(std::string_view bytes);
void FuzzRankFolder(std::string_view bytes);
void FuzzRunTrace(std::string_view bytes);
void FuzzSpec(std::string_view bytes);
void FuzzTorchCsv(std::string_view bytes);
void FuzzWorld(std::string_view bytes);

/// The value that `read` returns; nothing if it throws Error.
template <typename Read>
auto Accepted(Read read) -> std::optional<decltype(read())> {
  try {
    return read();
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace contraflow
