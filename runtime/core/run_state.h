#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/plan/plan.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/core/run.h"

namespace contraflow {

/// What this process saves of a run: over all processes every block of the model exactly once. Of
/// the copies of a stage that is the one of replica 0 on its first holder, and of what every member
/// of an expert group has, member 0's.
std::vector<StateBlock> SavedState(const Plan& plan, Run& run);

/// Everything that this process has of a run, every copy of it.
std::vector<StateBlock> WholeState(const Plan& plan, Run& run);

/// What was changed there holds from now on.
void PutState(const Plan& plan, Run& run);

/// SHA-256 of the parameters of each block, by name; as bytes for other processes, and back.
/// Throws Error if they are no such digests.
std::map<std::string, Digest> ParameterDigests(const std::vector<StateBlock>& blocks);
std::string WriteDigests(const std::map<std::string, Digest>& digests);
std::map<std::string, Digest> ReadDigests(std::string_view bytes);

}  // namespace contraflow
