#pragma once

#include <string>

#include "compiler/files/plan_io.h"
#include "compiler/plan/plan.h"

namespace contraflow {

// A plan as a folder, for plans of many millions of instructions: `plan.cbor`, the head with the
// checksum of every rank's file, and `rank-0000.cbor` on, a file for each rank with its program and
// slots. Each file is read and written piece by piece, and a rank needs no other's.

/// Name of a rank's file in its folder.
std::string RankFileName(int rank);

/// Writes a plan as a folder, which is complete or not there: into a temporary name beside it,
/// then renamed. A folder that is there is replaced if it holds a plan and nothing else; Error if
/// not, or if anything cannot be written.
void WriteRankFiles(const std::string& folder, const Plan& plan);

/// Reads the whole plan of a folder. Throws Error for a file that is missing, one too many,
/// damaged, of another rank or another plan, and for all that ReadPlan refuses.
Plan ReadRankFiles(const std::string& folder);

/// Reads what one rank needs: the head and its own file; the others may be missing.
RankPlan ReadRankFile(const std::string& folder, int rank);

}  // namespace contraflow
