#pragma once

#include <atomic>
#include <functional>
#include <string_view>

#include "compiler/plan/cost.h"

namespace contraflow {

/// How far a search has come.
struct SearchState {
  std::string_view phase;  ///< "schedules" "policies" "local search" ...; valid during the call
  Time makespan = 0;       ///< of the best so far; 0 before there is one
  Time bound = 0;          ///< proven for its placement
  double spent = 0;        ///< share of the budget; above 1 where the least that is done takes more
};

class MadePlans;

/// How a caller follows a search and ends it early. A search that is not stopped gives the same
/// plan with and without.
struct SearchControl {
  /// Ends the search with the best so far once it is true. Null: never. Must outlive the search.
  const std::atomic<bool>* stop = nullptr;
  /// Called now and then, on the thread that searches.
  std::function<void(const SearchState&)> report = {};
  /// Store of published plans of layers, and of the costs of their stages, to make them once. Null:
  /// nowhere but in this search. Must outlive it.
  MadePlans* made = nullptr;
  /// Published plans that the caller makes anyway, so that they cost the search nothing.
  enum class Made {
    kNone,
    kWithinLimit,   ///< all, within the memory limit of the search
    kWithoutLimit,  ///< all, without one
  } all_made = Made::kNone;

  bool stopped() const { return stop != nullptr && stop->load(std::memory_order_relaxed); }
};

}  // namespace contraflow
