#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compiler/plan/cost.h"
#include "compiler/plan/plan.h"
#include "schedules/published/schedule.h"

namespace contraflow {

/// A compute-level plan without instructions: one route for all micro-batches over `ranks`
/// (ranks[s] owns stage s).
Plan SingleRoutePlan(const Spec& spec, std::vector<int> ranks);

/// The same over LinearPlacement, and over VPlacement.
Plan LinearPlan(const Spec& spec);
Plan VPlan(const Spec& spec);

/// Two routes, 0..P-1 with the first half of the micro-batches and P-1..0 with the second.
Plan BidirectionalPlan(const Spec& spec);

/// 0..P-1: one stage a rank.
std::vector<int> LinearPlacement(int ranks);

/// 0..P-1, P-1..0: two stages a rank, the last rank holds both middle stages.
std::vector<int> VPlacement(int ranks);

/// The same again and again, `chunks` stages a rank: the waves of Hanayo (Liu et al., arXiv
/// 2308.15762). With an even number of them a rank near the start of the pipeline is near its end,
/// too, so no rank waits long for its first backward.
std::vector<int> WavePlacement(int ranks, int chunks);

/// Returns why `spec.chunks` does not fit a schedule with exactly `chunks` stages a rank, or "".
std::string RejectChunks(const Spec& spec, int chunks);

/// The letters of the published formulas for equal stages, in ticks; B is the full backward (bw).
struct FormulaCosts {
  Time f, full_b, b, w, fb;
};
FormulaCosts LettersOf(const Spec& spec);

/// True if the closed forms apply: equal stages and micro-batches and no communication.
bool HasClosedForm(const Spec& spec);

/// The same bubble on every rank.
std::vector<Time> OnEachRank(const Spec& spec, Time bubble);

/// The fill of a pipeline without stalls, (P-1)(F+B): the published bubble of GPipe and 1F1B, and
/// exact for any F, B and M.
Time FillTime(const Spec& spec);
std::vector<Time> FillOnEachRank(const Spec& spec);
inline constexpr Formula kFillFormula = {"(PP-1)(F+B)", FillTime, FillOnEachRank};

/// The order with the routes of `frame` in which each micro-batch begins when the one before it has
/// ended. A rank has to hold all its chunks of a route between the last F and the first B of any
/// micro-batch, so no order of these routes holds less.
Plan SerialOrder(const Plan& frame);

/// Peak of that order on its fullest rank, in bytes or, where the costs give none, activations;
/// with every chunk recomputed or none. The least that any order of these routes can do with.
/// Throws Error if chunks are recomputed and the costs do not say what they hold meanwhile.
int64_t SerialPeak(const Plan& frame, const CostModel& costs, bool recomputed);
/// The same of each rank.
std::vector<int64_t> SerialPeaks(const Plan& frame, const CostModel& costs, bool recomputed);
/// Like the overload above, where each stage has such cells; the input of one that is not
/// recomputed is all of it.
int64_t SerialPeak(const Plan& frame, const std::vector<CellBytes>& cells);

/// True if two routes have a stage on the same rank: then the rank adds to the same weight gradient
/// for micro-batches of both, and the order of these counts.
bool SharesStages(const Plan& frame);

/// The same order with other numbers of its micro-batches, by their present ones.
Plan NumberMicrobatches(Plan plan, const std::vector<int>& number);

/// The same order with its micro-batches numbered as they add to the weight gradient that routes
/// share, so that the sum is in ascending order. For micro-batches that cost the same, of
/// a compute plan whose routes share one stage.
Plan RenumberMicrobatches(Plan plan);

}  // namespace contraflow
