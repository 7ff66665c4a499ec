#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "schedules/search/search.h"

namespace contraflow {

/// How long everything takes in one imagined run: F, B and W of each chunk take their time times
/// 1 + sigma * z, with z close to normal (the sum of four even draws, scaled to variance 1), the
/// same for a chunk whatever the order. BW and FB have one z for the whole. Drawn in integers:
/// equal on every machine.
class NoiseDraw {
 public:
  /// `sigma` in 0..1. The problem must outlive it.
  NoiseDraw(const SearchProblem& problem, double sigma, uint64_t seed);

  /// Like SearchProblem::Duration.
  Time Duration(const Action& action, int k, int j = -1) const;

 private:
  const SearchProblem& problem_;
  std::vector<int32_t> factors_;  // in 65536ths, three for each chunk
};

/// Mean makespan of an order that runs, over so many draws.
Time ExpectedMakespan(const SearchProblem& problem, const Order& order, double sigma, uint64_t seed,
                      int draws);

/// Among orders that are equally long: replaces `best` by a seed or by another that policies or
/// local search on sampled draws make, if its expected makespan is lower on draws that it was not
/// chosen by. The makespan never gets longer. Spends what is left of the work.
void LowerExpected(const SearchProblem& problem, std::span<const Plan> seeds,
                   const SearchOptions& options, SearchWork* work, SearchResult* best);

/// Orders as short as `best`: the seeds', and those that policies (policy.h) make, also for slower
/// messages than there are: what is made early there leaves room for delays. Spends up to `budget`
/// instructions. Of all those it returns the few that several draws of noise lengthen least, the
/// best first; `best` is among the candidates.
std::vector<SearchResult> RobustCandidates(const SearchProblem& problem,
                                           std::span<const Plan> seeds, const SearchResult& best,
                                           const SearchOptions& options, int64_t budget,
                                           SearchWork* work);

}  // namespace contraflow
