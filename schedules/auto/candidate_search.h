#pragma once

#include <memory>
#include <optional>

#include "compiler/plan/plan.h"
#include "schedules/search/candidates.h"
#include "schedules/search/work.h"

namespace contraflow {

/// A plan with its costs and its origin, and how long its step takes: with reductions and optimizer
/// steps, of components if they are asked for.
struct FoundPlan {
  Plan plan;
  Time step = 0;
};

/// Searches plans of one candidate: orders, with the recompute and offload of its spec.
class CandidateSearch {
 public:
  virtual ~CandidateSearch() = default;

  /// Returns the best plan of one search with this work; nothing if none fits. A search with more
  /// work may return a longer one.
  virtual std::optional<FoundPlan> Run(SearchWork* work) = 0;
  /// Least makespan of any plan of the candidate. May rise with a run.
  virtual Time bound() const = 0;
  /// True if a step of this length is proven to be the shortest.
  virtual bool Proves(Time step) const = 0;
};

/// Returns the search of a candidate; null if no plan of it can fit its memory limit.
std::unique_ptr<CandidateSearch> SearchOf(const Candidate& candidate);

}  // namespace contraflow
