#pragma once

#include <string>
#include <string_view>

#include "compiler/plan/plan.h"

namespace contraflow {

/// "format" and "version" of the document.
inline constexpr std::string_view kPlanFormat = "contraflow-plan";
inline constexpr int kPlanVersion = 1;

/// Reads a plan document, JSON text or its binary form (CBOR); the first byte tells which.
/// `place` (a file name) begins every error message, followed by the JSON path.
/// Hostile input is expected: unknown and duplicate keys, wrong types, values out of range and
/// counts over the limits of plan.h are refused before anything is allocated for them. It checks
/// the form of the document only; whether the plan is sound is Verify's to say.
Plan ReadPlan(std::string_view document, const std::string& place);

/// Reads a plan file, the binary form piece by piece, or a folder with a file for each rank
/// (rank_files.h). Throws Error if it cannot be read.
Plan ReadPlanFile(const std::string& path);

/// JSON text: fixed key order, one instruction a line, same plan same bytes.
/// ReadPlan(WritePlan(p)) == p.
std::string WritePlan(const Plan& plan);

/// The same document in CBOR, for large plans: an instruction is a list of numbers
/// (PackedInstruction), which "names" in front of the programs explains. Instructions as text are
/// read as well.
std::string WritePlanBinary(const Plan& plan);

/// Writes a plan file atomically and piece by piece; binary if the path ends in ".cbor", a folder
/// with a file for each rank if it ends in "/".
void WritePlanFile(const std::string& path, const Plan& plan);

/// What one rank needs of a plan: its program, and the head; the other programs are empty.
struct RankPlan {
  int rank = 0;
  Plan plan;

  bool operator==(const RankPlan&) const = default;
};

/// A per-rank document: the head of the plan with "rank" and that rank's program alone. ReadPlan
/// refuses it, so that a part is not taken for the whole.
std::string WriteRankPlan(const Plan& plan, int rank);

/// Reads a per-rank document, checked like a whole one.
RankPlan ReadRankPlan(std::string_view document, const std::string& place);

}  // namespace contraflow
