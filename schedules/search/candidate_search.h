#pragma once

#include <string>

#include "compiler/plan/cost.h"
#include "compiler/plan/plan.h"
#include "compiler/plan/spec.h"
#include "schedules/search/candidates.h"

namespace contraflow {

struct SearchControl;  // schedules/search_control.h

/// Result for one candidate.
struct Choice {
  Plan plan;
  Time step = 0;  ///< its makespan with reductions and optimizer steps, of components if asked for
};

/// Control of a part of a search, from one share of the whole to another: reports count the whole,
/// and say what it is a part of.
SearchControl PartOf(const SearchControl& all, double from, double to, const std::string& name);

/// True where another order would also give routes other micro-batches, which the bound for the
/// candidate's routes knows nothing of.
bool SharesOutMicrobatches(const Candidate& candidate, const SearchOptions& options);

/// True where all schedules of a candidate can be looked at. Sums over micro-batches of two routes
/// are kept in ascending order by numbering micro-batches anew, which must be alike for that.
bool IsSmall(const Candidate& candidate, const SearchOptions& options);

/// The shortest step that the whole budget of the candidate finds; `bound` is proven for it, and
/// `asked` is what the plan says it was searched for.
Choice SearchCandidate(const Candidate& candidate, Time bound, const Spec& asked,
                       const SearchControl& control);

}  // namespace contraflow
