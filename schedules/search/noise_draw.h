#pragma once

#include <cstdint>
#include <vector>

#include "schedules/search/search_problem.h"

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

/// Mean makespan of an order that runs, over this many draws.
Time ExpectedMakespan(const SearchProblem& problem, const Order& order, double sigma, uint64_t seed,
                      int draws);

}  // namespace contraflow
