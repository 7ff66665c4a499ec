#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "compiler/files/json.h"
#include "compiler/plan/value.h"

namespace contraflow {

struct Plan;
class Job;
class Run;

/// The arenas of one rank.
struct RankArenas {
  std::array<int64_t, kArenaCount> predicted{};  ///< by the slots of the plan
  std::array<int64_t, kArenaCount> allocated{};  ///< by the device of it that allocated most
};

/// Of every rank of a plan of level buffer, by what the devices of all processes say; for the one
/// that leads.
std::vector<RankArenas> ArenasOf(const Plan& plan, Run& run, Job& job);

/// Bytes of a device of each rank, arena by arena, and of all together predicted and allocated.
std::string FormatArenas(const std::vector<RankArenas>& ranks);

/// The same as a member "arenas" of a document.
void ArenasToJson(const std::vector<RankArenas>& ranks, JsonObject* document);

}  // namespace contraflow
