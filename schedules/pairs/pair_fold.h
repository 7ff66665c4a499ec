#pragma once

#include <optional>

#include "schedules/search/search_problem.h"

namespace contraflow {

/// Two routes that are each other's mirror image, as in DualPipe: rank r does with the one what
/// rank P-1-r does with the other. An order with that symmetry runs as its first half would on a V
/// of half the ranks (DualPipe "cut in half", github deepseek-ai/DualPipe), whose middle hop keeps
/// its time. The problem of that V, with one route; nothing where the problem has no such symmetry.
/// Its middle hop is between stages of one rank, which IncrementalEvaluator counts and Evaluate does not.
std::optional<SearchProblem> Fold(const SearchProblem& problem);

/// The first half of the ranks' lists, as an order of the folded problem.
Order FoldOrder(const SearchProblem& problem, const Order& order);

/// Both halves of an order of the folded problem.
Order UnfoldOrder(const SearchProblem& problem, const Order& folded);

}  // namespace contraflow
