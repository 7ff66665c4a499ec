#pragma once

#include <cstddef>
#include <random>
#include <utility>

#include "schedules/search/policy.h"
#include "schedules/search/search_problem.h"

namespace contraflow {

/// Draws changes of the rules of single ranks and stages, or of neighbours.
class RuleChanges {
 public:
  RuleChanges(const SearchProblem& problem, std::mt19937_64* random);

  /// One to three.
  void Make(Rules* rules);

 private:
  size_t Draw(size_t below) { return static_cast<size_t>(random_() % below); }
  void ChangeStages(Rules* rules);
  void ChangeRanks(Rules* rules);

  const SearchProblem& problem_;
  std::mt19937_64& random_;
};

/// A stretch of neighbours of this many: more often than not a single one.
std::pair<size_t, size_t> DrawStretch(size_t count, std::mt19937_64* random);

}  // namespace contraflow
