#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "schedules/auto/candidate_search.h"

namespace contraflow {

/// Searches orders together with copies to the host and, where the spec of the candidate asks for
/// it, recompute. Each run starts from the result of the one before.
class OffloadSearch : public CandidateSearch {
 public:
  explicit OffloadSearch(const Candidate& candidate);

  std::optional<FoundPlan> Run(SearchWork* work) override;
  Time bound() const override { return bound_; }
  bool Proves(Time step) const override;

 private:
  struct Resident;

  bool Done() const { return best_ && Proves(best_->step); }
  bool Offer(Plan plan, const std::string& from, SearchWork* work);
  void OfferResidents(SearchWork* work);
  void OfferListed(SearchWork* work);

  const Candidate candidate_;
  const bool freely_;
  Time bound_;
  /// Searches without copies, for the limit and for looser ones.
  std::vector<std::unique_ptr<CandidateSearch>> residents_;
  Plan frame_;  // of the candidate, with the routes of the first order found
  std::optional<FoundPlan> best_;
};

}  // namespace contraflow
