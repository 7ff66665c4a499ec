#pragma once

#include <optional>
#include <vector>

#include "compiler/plan/plan.h"
#include "schedules/auto/candidate_search.h"
#include "schedules/search/search.h"

namespace contraflow {

/// Searches orders of F, B, W, BW and FB: published ones, list schedules, local search and, of few
/// cells, all schedules.
class OrderSearch : public CandidateSearch {
 public:
  /// One micro-batch fits the limit of the candidate.
  explicit OrderSearch(const Candidate& candidate);

  /// Never longer than a published order that fits.
  std::optional<FoundPlan> Run(SearchWork* work) override;
  /// Raised once all schedules have been looked at.
  Time bound() const override { return bound_; }
  bool Proves(Time step) const override;

  const Candidate& candidate() const { return candidate_; }

 private:
  struct Seeds {
    SearchProblem problem;
    std::vector<Plan> published;
  };

  FoundPlan Once(const Candidate& candidate, const Seeds& seeds, Time* bound, SearchWork* work);
  std::optional<FoundPlan> Arranged(SearchWork* work);
  Time LookAtAll(const Seeds& seeds, Time bound, SearchWork* work, SearchResult* found, Plan* plan);

  const Candidate candidate_;
  Time bound_;
  std::optional<Seeds> seeds_;
};

}  // namespace contraflow
