#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "schedules/auto/order_search.h"
#include "schedules/recompute/moves.h"
#include "schedules/recompute/recompute.h"

namespace contraflow {

/// Searches orders and what of them is recomputed, as the spec of the candidate says. Each run
/// starts from the result of the one before.
class RecomputeSearch : public CandidateSearch {
 public:
  /// With a free choice the spec has a memory limit.
  explicit RecomputeSearch(const Candidate& candidate);

  std::optional<FoundPlan> Run(SearchWork* work) override;
  Time bound() const override { return bound_; }
  bool Proves(Time step) const override;

 private:
  bool Done(const std::optional<FoundPlan>& best) const;
  static void Take(const std::optional<FoundPlan>& other, std::optional<FoundPlan>* best);
  void Offer(Plan plan, SearchWork* work, std::optional<FoundPlan>* best) const;
  void OfferOrders(const Spec& spec, bool searched, SearchWork* work, const OrderMaker& make);
  void OfferPublished(SearchWork* work);
  void OfferSearched(int64_t share, SearchWork* work);
  void OfferSerial(SearchWork* work);
  void OfferMoved(const Candidate& candidate, int64_t budget, Freedom freedom, SearchWork* work,
                  std::optional<FoundPlan>* best);
  void OfferExact(const Candidate& candidate, int64_t budget, SearchWork* work,
                  std::optional<FoundPlan>* best);

  const Candidate candidate_;
  const Spec tight_;  // with the room of the fullest rank for all: choices of R know one limit
  const bool freely_;
  const Time bound_;
  size_t published_ = 0;                              // schedules that have been offered
  std::vector<std::unique_ptr<OrderSearch>> orders_;  // one for each spec without recompute
  /// The best of all, with few layers recomputed, and with all.
  std::optional<FoundPlan> own_, layers_, full_;
};

}  // namespace contraflow
