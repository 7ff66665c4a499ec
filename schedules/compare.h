#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/plan/plan.h"
#include "compiler/plan/spec.h"
#include "schedules/registry.h"
#include "schedules/report.h"
#include "schedules/search/search_control.h"

namespace contraflow {

/// Subject of a comparison: a shape, the costs of one model, a limit, a search.
struct CompareRequest {
  /// `schedule` is nothing yet; `chunks` those of interleaved ones. Costs for every stage alike are
  /// of P stages.
  Spec spec;
  /// "80000" bytes (or activations), "1.5x" of what 1F1B's fullest rank holds, or "" for none:
  /// it means another number for schedules with other stages (MemoryLimitOf). spec.memory_limit is
  /// not looked at.
  std::string memory_limit = {};
  /// The limit is 1x because none is known: `auto` holds no more than 1F1B does, and published rows
  /// that hold more do not fit.
  bool assumed_limit = false;
  SearchControl control = {};  ///< of the search of `auto`; reports come from its thread
  bool no_auto = false;        ///< leaves `auto` out
  std::vector<std::string> schedules = {};  ///< those to compare; empty: all
  /// If the shortest that `auto` finds holds parameters twice: before it, a row with the shortest
  /// that holds them once (Placement::kSingle).
  bool single_too = false;
  bool keep_plans = false;  ///< CompareRow::plan
  /// The chunk costs follow from "moe", so components decide how long a step takes, and the papers'
  /// overlap of chunks is shown too. Holds where the costs have "moe" and no chunk costs in any
  /// case.
  bool components = false;
  /// Samples of a step and of a micro-batch; 0: not known.
  int64_t global_batch = 0, samples = 0;
  double held_by_1f1b = 0;  ///< HeldBy1F1B; 0: Compare finds it

  bool includes(std::string_view schedule) const;
  bool recomputes() const { return spec.recompute.choice != Recompute::Choice::kNone; }
  /// True if time may be given for memory, by recompute or copies to the host.
  bool buys_memory() const { return recomputes() || spec.offload.choice != Offload::Choice::kNone; }
  Overlap overlap() const { return spec.costs.derived.value_or(Overlap::kAll); }
};

/// One schedule of a comparison: its figures, or why it does not fit.
struct CompareRow {
  std::string schedule;
  int stages = 0;
  bool twice = false;  ///< holds two copies of every stage's parameters
  std::optional<Report> report;
  std::optional<Provenance> provenance;  ///< of what was searched
  int64_t messages = 0;                  ///< between ranks, in one step
  std::optional<int64_t> message_bytes;  ///< of all of them, where the costs say
  std::optional<int64_t> parameters;     ///< bytes of the rank that holds most, if the costs say
  std::optional<int64_t> total;          ///< bytes of the fullest rank in all, if the costs say
  double memory = 0;                     ///< of activations, as a multiple of 1F1B's
  bool pairs = false;                    ///< has F&B pairs
  bool fits = true;                      ///< no rank holds more than its device or the limit
  std::vector<int> recomputed;           ///< stages, ascending
  int64_t offloaded = 0;                 ///< cells that wait in the memory of the host
  /// Report of components that overlap as far as they can: chunk by chunk as in the papers.
  std::optional<Report> published;
  double spent = 0;          ///< counted work of the search of `auto`, in nanoseconds
  std::string rejected;      ///< why it does not fit; then there is no report
  std::optional<Plan> plan;  ///< with CompareRequest::keep_plans

  Time makespan() const { return report->simulation.makespan; }
  bool interrupted() const { return provenance && provenance->interrupted; }
};

/// A row for every schedule, in the order of Schedules(), `auto` last (twice with `single_too`).
/// `auto` is searched on its own thread, concurrently with the others. Calls `started`, on the
/// caller's, with the name of each before it is compiled, or waited for. A schedule that does not
/// take the spec, or does not fit, says so in its row.
std::vector<CompareRow> Compare(const CompareRequest& request,
                                const std::function<void(std::string_view)>& started = {});

/// The row of one schedule.
CompareRow CompareSchedule(const Schedule& schedule, const CompareRequest& request);

/// Why no schedule takes the request, where that is the same for all of them; "" otherwise.
std::string RejectedByAll(const CompareRequest& request, std::span<const CompareRow> rows);

/// Which schedule to take, in a sentence that says why.
struct Advice {
  std::string schedule;  ///< "" where none fits
  std::string text;
  size_t price = 0;                 ///< where in it the part on memory begins; 0: nowhere
  const CompareRow* row = nullptr;  ///< null where none fits
};

/// The simplest of the rows that fit whose step is within a hundredth of the shortest: 1F1B where
/// nothing gains more than that, and none that holds parameters twice, or a tenth more activations
/// than 1F1B, where one that does not is as good. Says what it gains in time over 1F1B and the best
/// other published row that fits, then what it costs in memory.
Advice Advise(std::span<const CompareRow> rows);

}  // namespace contraflow
