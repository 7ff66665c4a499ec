#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/plan/plan.h"
#include "compiler/plan/spec.h"

namespace contraflow {

struct SearchControl;  // schedules/search/search_control.h

/// The published bubble of a schedule. Letters as in the papers: B is the FULL backward, F&B the
/// overlapped pair, PP the ranks; every table that prints `text` prints that legend too.
struct Formula {
  std::string_view text;  ///< "(PP/2-1)(F&B+B-3W)"
  /// The published figure, in ticks, the same for every rank. For equal stages and micro-batches.
  Time (*published)(const Spec& spec);
  /// The true bubble of each rank for any uniform costs without communication, in ticks
  /// (facts: derived from the orders, checked on random costs). Empty where it is not known:
  /// comm > 0, bw != b + w in a schedule that has both, or fb outside [max(f, bw), f + bw].
  std::vector<Time> (*exact)(const Spec& spec);
};

/// One schedule: a row of the table in schedules/registry.cc. Generators emit F B W BW FB only.
struct Schedule {
  std::string_view name;
  std::string_view summary;
  std::string_view limits;  ///< on P, M and chunks, in words
  std::string_view memory;  ///< peak activations of a rank, in words
  /// Stages it makes of this spec.
  int (*stages)(const Spec& spec);
  /// Why the spec does not fit and what would, or "".
  std::string (*reject)(const Spec& spec);
  /// Its routes, without programs, whatever the costs; null for `auto`.
  Plan (*frame)(const Spec& spec);
  /// The compute order, for a spec that reject accepts.
  Plan (*generate)(const Spec& spec);
  /// Most activations (stage inputs held until the end of W) on a rank, reached once M is large
  /// enough.
  int (*peak_activations)(const Spec& spec, int rank);
  const Formula* formula;     ///< null where none is published
  bool heeds_costs = false;   ///< else the order depends on P, M and chunks alone
  bool takes_chunks = false;  ///< Spec::chunks may be any number; else 0 or the schedule's own
};

/// Every schedule, in the order in which they are listed and compared: the published ones, then
/// `auto`. The rows live as long as the program.
std::span<const Schedule* const> Schedules();

/// The name of the schedule that papers and PyTorch spell so: "DualPipe", "zb_v", "ZBVZeroBubble",
/// "Interleaved1F1B". Returns any other text as it is.
std::string ScheduleName(const std::string& spelling);

/// The row of that name ("1f1b", "auto"). Throws Error with the known names and the nearest one.
const Schedule& FindSchedule(const std::string& name);

/// The compute order alone, at level compute: no messages, nothing proven; Compile does the rest.
/// With the recompute that the spec asks for; a searched plan comes with its costs and its
/// provenance. Deterministic: equal specs give equal plans. Checks the spec and asks the schedule
/// first. Throws Error that says what is wrong and what would do if the spec is out of range, if
/// the schedule or the costs cannot have it, or if `auto` finds nothing within its memory limit.
/// The caller compares what a published schedule holds with the limit.
Plan GeneratePlan(const Spec& spec);
/// The same for a caller that follows a search and may stop it: then the plan is the best so far.
Plan GeneratePlan(const Spec& spec, const SearchControl& control);

/// True if the schedule of the spec fits its memory limit with Recompute::Choice::kAuto. False
/// where the spec has no limit, or its costs do not say what a recomputed chunk holds.
bool FitsRecomputed(const Spec& spec, const SearchControl& control);

}  // namespace contraflow
