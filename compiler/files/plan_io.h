#pragma once

#include <string>
#include <string_view>

#include "compiler/files/file.h"
#include "compiler/plan/plan.h"

namespace contraflow {

/// "format" and "version" of the document.
inline constexpr std::string_view kPlanFormat = "contraflow-plan";
inline constexpr int kPlanVersion = 1;

/// Reads a plan document, JSON text or its binary form (CBOR); the first byte tells which. `place`
/// (a file name) begins every error message, followed by the JSON path. Hostile input is expected:
/// unknown and duplicate keys, wrong types, values out of range and counts over the limits of
/// plan.h are refused before anything is allocated for them. It checks the form of the document
/// only; whether the plan is sound is Verify's to say. Throws Error "PLACE: PATH: FLAW; REMEDY".
Plan ReadPlan(std::string_view document, const std::string& place);

/// Returns the path of the plan that `path` names: for a folder with a plan.json, as `contraflow
/// plan` writes it, that file; else the path itself.
std::string PlanPath(const std::string& path);

/// Reads a plan file, the binary form piece by piece, or a folder with a plan.json or a file for
/// each rank (ReadRankFiles). Throws Error if it cannot be read.
Plan ReadPlanFile(const std::string& path);
/// Like the overload above, of a file that is open.
Plan ReadPlanFile(InputFile* file);
/// A plan file is refused beyond that: there is room for fifty million instructions, in
/// the binary form for three times as many.
inline constexpr int64_t kMaxPlanBytes = int64_t{2} << 30;

/// JSON text: fixed key order, one instruction a line, same plan same bytes.
/// ReadPlan(WritePlan(p)) == p.
std::string WritePlan(const Plan& plan);

/// The same document in CBOR, for large plans: an instruction is a list of numbers
/// (PackedInstruction), which "names" in front of the programs explains. Instructions as text are
/// read as well.
std::string WritePlanBinary(const Plan& plan);

/// Writes a plan file atomically and piece by piece; binary if the path ends in ".cbor", a folder
/// with a file for each rank if it ends in "/". Throws Error if it cannot be written.
void WritePlanFile(const std::string& path, const Plan& plan);

/// The part of a plan that one rank needs: its program, and the head; the other programs are empty.
struct RankPlan {
  int rank = 0;
  Plan plan;

  bool operator==(const RankPlan&) const = default;
};

/// A per-rank document: the head of the plan with "rank" and that rank's program alone. ReadPlan
/// refuses it, so that a part is not taken for the whole. `rank` must be in 0..ranks-1.
std::string WriteRankPlan(const Plan& plan, int rank);

/// Reads a per-rank document, checked like a whole one; refuses a whole plan.
RankPlan ReadRankPlan(std::string_view document, const std::string& place);

// A plan as a folder, for plans of many millions of instructions: `plan.cbor`, the head with the
// checksum of every rank's file, and `rank-0000.cbor` on, a file for each rank with its program and
// slots. Each file is read and written piece by piece, and a rank needs no other's.

/// Name of a rank's file in its folder.
std::string RankFileName(int rank);

/// Writes a plan as a folder, which is complete or not there: under a temporary name next to it,
/// then renamed. A folder that is there is replaced if it holds a plan and nothing else; Error if
/// not, or if anything cannot be written.
void WriteRankFiles(const std::string& folder, const Plan& plan);

/// Reads the whole plan of a folder. Throws Error for a file that is missing, one too many,
/// damaged, of another rank or another plan, and for all that ReadPlan refuses.
Plan ReadRankFiles(const std::string& folder);

/// Reads what one rank needs, as a process that was launched for it: the head and its own file. No
/// other file is opened; they may be missing.
RankPlan ReadRankFile(const std::string& folder, int rank);

/// The bytes of the head. It holds the checksum of every rank's file, so that processes which find
/// the same bytes have parts of the same plan.
std::string ReadRankFilesHead(const std::string& folder);
/// The plan that it describes, without programs.
Plan ReadRankFilesPlan(const std::string& folder);

}  // namespace contraflow
