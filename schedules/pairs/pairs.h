#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>

#include "schedules/search/search.h"
#include "schedules/search/search_problem.h"

namespace contraflow {

/// Two routes that are each other's mirror image, as in DualPipe: rank r does with the one what
/// rank P-1-r does with the other. An order with that symmetry runs as its first half would on a V
/// of half the ranks (DualPipe "cut in half", github deepseek-ai/DualPipe), whose middle hop keeps
/// its time. The problem of that V, with one route; nothing where the problem has no such symmetry,
/// as on an odd number of ranks or with an odd number of micro-batches. Its middle hop is between
/// stages of one rank, which IncrementalEvaluator counts and Evaluate does not.
std::optional<SearchProblem> Fold(const SearchProblem& problem);

/// The first half of the ranks' lists, as an order of the folded problem.
Order FoldOrder(const SearchProblem& problem, const Order& order);

/// Both halves of an order of the folded problem.
Order UnfoldOrder(const SearchProblem& problem, const Order& folded);

/// The same problem with `count` micro-batches on each of its routes.
SearchProblem WithCount(const SearchProblem& problem, int count);

/// DualPipeV's order (schedules/published/bidirectional.h) for a problem with one route on a V, or
/// for what Fold makes of two routes, whatever the ranks hold; nothing for other placements, or
/// where there are fewer micro-batches than stages.
std::optional<Order> UnlimitedPhases(const SearchProblem& problem);

/// Like UnlimitedPhases; nothing where a rank would hold more than the limit, too.
std::optional<Order> PhaseOrder(const SearchProblem& problem);

/// Event-driven: every rank runs its forwards, backwards and pairs in the order given, and weight
/// gradients that are not part of a pair while it would wait otherwise, at least `percent` of their
/// duration, or once there is no memory or nothing else left. None if the order does not run.
std::optional<Order> FillGaps(const SearchProblem& problem, const Order& order, int percent);

/// The best of PhaseOrder, with and without a pair in place of the middle rank's first forward and
/// backward, and of what FillGaps makes of them. None if PhaseOrder gives none.
std::optional<Order> ScheduleInPhases(const SearchProblem& problem);

/// UnlimitedPhases with fewer micro-batches in flight, so that it fits, also of two routes that are
/// each other's mirror image: the shortest that was found with about this much of the work, or a
/// quarter of it where that gives nothing below `below`. None for other placements, or if no order
/// fits.
std::optional<Order> ThinnedPhases(const SearchProblem& problem, Time below, int64_t budget,
                                   SearchWork* work);

/// List scheduling with pairs, for any placement: the best of some settings, with about this much
/// of the work. None if no order fits the limit.
std::optional<Order> ListPairs(const SearchProblem& problem, int64_t budget, SearchWork* work);

/// `piece` in place of the actions [from, to) of a list: the same work in another order or
/// otherwise paired.
struct PairMove {
  size_t from = 0, to = 0;
  ActionList piece;
};

/// Less than `count`, the same on every machine.
inline size_t Draw(std::mt19937_64* random, size_t count) { return (*random)() % count; }

/// A random change of a list, which need not be one that the rank can run; nothing where the
/// change that was drawn does not apply there. `split`: weight gradients may run apart.
std::optional<PairMove> DrawMove(const ActionList& list, std::mt19937_64* random);

/// Local search over orders with overlapped pairs: besides moving actions it forms and splits
/// pairs, exchanges what two of them pair, and splits full backwards to run the weight gradient
/// later. Replaces `best` by shorter ones until `bound` is reached or `budget` instructions or all
/// of the work is spent. Deterministic for a seed. Does nothing where IncrementalEvaluator does not
/// take the problem.
/// If memory is too short for DualPipe's order, half of the budget is for one with fewer
/// micro-batches in flight, which is returned: `best` is of another kind, and may be as short in
/// the end.
std::optional<SearchResult> ImprovePairs(const SearchProblem& problem, Time bound, uint64_t seed,
                                         int64_t budget, SearchWork* work, SearchResult* best);

/// Like ImprovePairs, from `best` alone, of which more is made than by beginning anew.
void GoOnWithPairs(const SearchProblem& problem, Time bound, uint64_t seed, int64_t budget,
                   SearchWork* work, SearchResult* best);

}  // namespace contraflow
