#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compiler/plan/spec.h"
#include "tools/contraflow/report.h"

namespace contraflow {

class Progress;

/// One schedule of a comparison: its figures, or why it does not fit.
struct Row {
  std::string schedule;
  int stages = 0;
  /// True if it runs the model that the costs describe, so that steps compare; else its ranks hold
  /// other numbers of the same stages.
  bool same_model = false;
  bool twice = false;  ///< holds two copies of every stage's parameters
  std::optional<Report> report;
  std::optional<Provenance> provenance;  ///< of what was searched
  int64_t messages = 0;                  ///< between ranks, in one step
  std::optional<int64_t> message_bytes;  ///< of all of them, where the costs say
  std::optional<int64_t> parameters;     ///< bytes of the rank that holds most, likewise
  std::vector<int> recomputed;           ///< stages, ascending
  /// Where the report is of components that overlap as far as they can: chunk by chunk as in the
  /// papers.
  std::optional<Report> published;
  std::string rejected;

  Time makespan() const { return report->simulation.makespan; }
  bool interrupted() const { return provenance && provenance->interrupted; }
};

/// What schedules are compared for: a shape, costs, a limit, a search.
struct Question {
  Spec spec;                 ///< `schedule` is nothing yet; `chunks` those of interleaved ones
  std::string memory_limit;  ///< text of --memory-limit, or ""
  bool searched = true;      ///< `auto` as well
  /// The chunk costs follow from components, so these decide how long a step takes.
  bool components = false;
  CostModel published = {};  ///< with components: the costs of chunks that overlap as in the papers

  bool recomputes() const { return spec.recompute.choice != Recompute::Choice::kNone; }
  Overlap overlap() const { return spec.costs.derived.value_or(Overlap::kAll); }
};

/// A row for every schedule, `auto` last. Says on `progress`, if there is one, which is compiled.
/// Ctrl-C while it searches gives the best so far.
std::vector<Row> Compare(const Question& question, Progress* progress);

}  // namespace contraflow
