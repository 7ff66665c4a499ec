#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "compiler/plan/plan.h"
#include "compiler/plan/spec.h"

namespace contraflow {

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

}  // namespace contraflow
