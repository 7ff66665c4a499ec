#include "schedules/compare.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <future>
#include <thread>
#include <utility>

#include "compiler/lower/interleave.h"
#include "compiler/plan/error.h"
#include "compiler/plan/memory_limit.h"
#include "compiler/plan/plan.h"
#include "compiler/plan/text.h"
#include "compiler/simulate/simulate.h"
#include "schedules/compile.h"
#include "schedules/partition/made_plans.h"
#include "schedules/published/rows.h"
#include "schedules/registry.h"

namespace contraflow {
namespace {

Spec SpecFor(const Schedule& schedule, const CompareRequest& request) {
  Spec spec = request.spec;
  spec.schedule = schedule.name;
  spec.memory_limit.reset();
  if (!schedule.takes_chunks) spec.chunks = 0;
  // All rows run one model.
  if (!spec.partition) spec.partition = PartitionChoice();
  return spec;
}

struct Built {
  Plan plan;
  Report report;
  double spent = 0;  ///< by the search, in nanoseconds
};

Built Build(Spec spec, const CostModel& costs, const CompareRequest& request, Level level) {
  const std::string& memory_limit = request.memory_limit;
  spec.costs = costs;
  const bool searched = spec.schedule == kAuto.name;
  if (request.assumed_limit) {
    // Published schedules are shown as they are.
    if (searched) spec.memory_limit = LimitOf1F1B(spec, request.held_by_1f1b);
  } else if (!memory_limit.empty()) {
    SetMemoryLimit(memory_limit, request.held_by_1f1b, &spec);
  }
  double spent = 0;
  SearchControl control = request.control;
  control.report = [&](const SearchState& state) {
    spent = state.spent * static_cast<double>(spec.search.budget);
    if (request.control.report) request.control.report(state);
  };
  Plan plan = Compile(spec, {.level = level, .control = control, .any_device = true});
  std::optional<int64_t> limit = plan.provenance ? std::nullopt : spec.memory_limit;
  if (request.assumed_limit && !searched) {
    const int64_t assumed = LimitOf1F1B(spec, request.held_by_1f1b);
    const Simulation run = Simulate(plan, *plan.costs, Keep::kFigures);
    if (MemoryLimit(*plan.costs, assumed).Fits(run)) limit = assumed;
  }
  Report report = MakeReport(plan, *plan.costs, limit, Keep::kFigures);
  return {std::move(plan), std::move(report), spent};
}

void Fill(const Built& built, const CompareRequest& request, CompareRow* row) {
  const Plan& plan = built.plan;
  row->report = built.report;
  row->spent += built.spent;
  row->provenance = plan.provenance;
  row->stages = plan.stages;
  row->twice = plan.routes.size() > 1;
  row->memory = ActivationsHeld(plan, *plan.costs, built.report.simulation) / request.held_by_1f1b;
  const RecomputedCells recomputed(plan);
  for (int s = 0; s < plan.stages; ++s) {
    if (recomputed.HasStage(s)) row->recomputed.push_back(s);
  }
  const CommCost& comm = plan.costs->comm;
  int64_t sent = 0;
  for (const Program& program : plan.programs) {
    for (const Instruction& i : program) {
      if (i.op == Op::OFFLOAD) ++row->offloaded;
      if (i.op == Op::FB) row->pairs = true;
      if (IsSend(i.op)) sent += comm.SizeOf(i).bytes;
    }
  }
  row->messages = MessageCount(plan);
  if (comm.bytes > 0) row->message_bytes = sent;
  for (const MemoryFigures& rank : built.report.memory) {
    row->total = std::max(row->total.value_or(0), rank.total());
    if (!rank.parameters) continue;
    row->parameters = std::max(row->parameters.value_or(0), *rank.parameters);
  }
  if (request.keep_plans) row->plan = plan;
}

/// Chunk by chunk as in the papers; how much of the all-to-all is exposed is what the components of
/// the same chunks say.
Built PublishedOnly(const Spec& spec, const CostModel& costs, const CompareRequest& request) {
  Built chunks = Build(spec, costs, request, Level::kComm);
  const Built parts = Build(spec, costs, request, Level::kComponent);
  chunks.spent += parts.spent;
  for (size_t r = 0; r < chunks.report.simulation.ranks.size(); ++r) {
    const RankFigures& of_parts = parts.report.simulation.ranks[r];
    chunks.report.simulation.ranks[r].all_to_all = of_parts.all_to_all;
    chunks.report.simulation.ranks[r].exposed = of_parts.exposed;
  }
  chunks.report.components = true;
  return chunks;
}

/// Derives chunk costs where there are none, and finds what 1F1B holds; returns, with components,
/// those of chunks that overlap as in the papers.
CostModel Prepare(CompareRequest* request) {
  CostModel& costs = request->spec.costs;
  if (request->held_by_1f1b == 0) {
    request->held_by_1f1b = HeldBy1F1B(request->spec, request->control.made);
  }
  if (costs.moe && costs.stages.empty()) {
    DeriveChunkCosts(&costs, request->overlap());
    request->components = true;
  }
  if (!request->components) return {};
  CostModel published = costs;
  DeriveChunkCosts(&published, Overlap::kPublished);
  return published;
}

/// Rounding of a printed multiple: half of its last digit.
constexpr double kRounded = 0.005;

/// `published`: what Prepare returned; `devices`: bytes of each rank's, empty for any.
CompareRow RowOf(const Schedule& schedule, const CompareRequest& request,
                 const CostModel& published, const std::vector<int64_t>& devices) {
  const Spec spec = SpecFor(schedule, request);
  CompareRow row;
  row.schedule = spec.schedule;
  row.stages = schedule.stages(spec);
  try {
    if (!request.components) {
      Fill(Build(spec, spec.costs, request, Level::kComm), request, &row);
    } else if (request.overlap() == Overlap::kPublished) {
      Fill(PublishedOnly(spec, published, request), request, &row);
    } else {
      Fill(Build(spec, spec.costs, request, Level::kComponent), request, &row);
      const Built chunks = Build(spec, published, request, Level::kComm);
      row.published = chunks.report;
      row.spent += chunks.spent;
    }
    // The table prints two digits: 1.004 is 1.00x, which fits.
    row.fits = !request.assumed_limit || row.memory < 1 + kRounded;
    for (size_t r = 0; r < devices.size(); ++r) {
      row.fits = row.fits && row.report->memory[r].total() <= devices[r];
    }
  } catch (const Error& error) {
    row.report.reset();
    row.rejected = error.what();
    // The schedule's name stands in the first column already.
    if (row.rejected.starts_with(row.schedule + " ")) {
      row.rejected.erase(0, row.schedule.size() + 1);
    }
  }
  return row;
}

/// A step that a partition or an order for little memory may take longer than the schedule's own,
/// as a factor; and with all forwards, a third of the work, run again.
constexpr double kSqueezed = 1.05, kSqueezedAndAgain = 1.4;

/// True if the schedule gives up its own step to have the memory of `within`.
bool Squeezed(const CompareRow& own, const CompareRow& within, double most = kSqueezed) {
  return own.report && within.report &&
         static_cast<double>(within.makespan()) > most * static_cast<double>(own.makespan());
}

/// The row of a published schedule within a memory limit, which does not fit where the step is then
/// much longer: it would be another schedule under the same name.
CompareRow WithinLimit(const Schedule& schedule, const CompareRequest& request,
                       const CostModel& published, const std::vector<int64_t>& devices) {
  CompareRow within = RowOf(schedule, request, published, devices);
  const bool limited = !request.memory_limit.empty() && !request.assumed_limit;
  if (!within.report || !limited || request.buys_memory() || &schedule == &kAuto) return within;
  CompareRequest free = request;
  free.memory_limit.clear();
  const CompareRow own = RowOf(schedule, free, published, devices);
  if (!Squeezed(own, within)) return within;
  within.rejected =
      "does not fit `memory_limit`: within it the step takes " +
      FormatPercent(static_cast<double>(within.makespan()) / static_cast<double>(own.makespan()) -
                    1) +
      " longer; raise it, or take auto";
  within.report.reset();
  return within;
}

/// A published schedule that fits no device as it is has the partition that fits, unless the step
/// is then much longer: the row shows the schedule as it is, and that it does not fit.
CompareRow MakeRow(const Schedule& schedule, const CompareRequest& request,
                   const CostModel& published) {
  const std::vector<int64_t> devices = DevicesOf(request.spec);
  const bool buys = request.buys_memory();
  // An order that is made anew for less memory may wait for it.
  if (devices.empty() || (buys && !schedule.heeds_costs) || &schedule == &kAuto ||
      !CountsBytes(request.spec.costs)) {
    return WithinLimit(schedule, request, published, devices);
  }
  CompareRequest free = request;
  free.spec.device_memory.reset();
  for (RankCost& rank : free.spec.costs.ranks) rank.memory_bytes.reset();
  CompareRow own = WithinLimit(schedule, free, published, devices);
  if (own.report && own.fits) return own;
  CompareRow within = WithinLimit(schedule, request, published, devices);
  if (buys) return Squeezed(own, within, kSqueezedAndAgain) || !within.report ? own : within;
  return (within.report && within.fits && !Squeezed(own, within)) || !own.report ? within : own;
}

/// The least saving that is worth a less simple row, as a share of the step; more memory than this
/// factor is not worth it.
constexpr double kWorthwhile = 0.01, kMoreMemory = 1.1;

/// From the simplest: 1F1B, then in the order of Schedules(), where what is searched is last.
std::vector<const CompareRow*> SimplestFirst(std::span<const CompareRow> rows) {
  std::vector<const CompareRow*> fit;
  for (const CompareRow& row : rows) {
    if (row.report && row.fits) fit.push_back(&row);
  }
  std::ranges::stable_sort(fit, {}, [](const CompareRow* row) {
    if (row->schedule == kOneFOneB.name) return std::pair<std::ptrdiff_t, bool>(-1, false);
    const auto at = std::ranges::find(Schedules(), row->schedule, &Schedule::name);
    return std::pair(at - Schedules().begin(), row->twice);
  });
  return fit;
}

double ShorterBy(const CompareRow& row, const CompareRow& than) {
  if (than.makespan() == 0) return 0;
  return static_cast<double>(than.makespan() - row.makespan()) /
         static_cast<double>(than.makespan());
}

bool Shorter(const CompareRow* a, const CompareRow* b) { return a->makespan() < b->makespan(); }

/// The best published row, nothing if `taken` alone fits.
const CompareRow* BestOther(const std::vector<const CompareRow*>& fit, const CompareRow* taken) {
  std::vector<const CompareRow*> others;
  for (const CompareRow* row : fit) {
    if (row != taken && row->schedule != kAuto.name) others.push_back(row);
  }
  if (others.empty()) return nullptr;
  return *std::min_element(others.begin(), others.end(), Shorter);
}

std::string Name(const CompareRow& row) {
  if (row.schedule == kOneFOneB.name) return "1F1B (1f1b)";
  if (row.provenance) return row.schedule + " (" + row.provenance->placement + ")";
  if (row.report->schedule == row.schedule) return row.schedule;
  return row.schedule + " (" + row.report->schedule + " with " + std::to_string(row.stages) +
         " stages)";
}

/// "12.30 % shorter than 1f1b"
std::string Gain(const CompareRow& taken, const CompareRow& than) {
  const double gain = ShorterBy(taken, than);
  if (gain == 0) return "as long as " + than.schedule;
  return FormatPercent(std::abs(gain)) + (gain < 0 ? " longer than " : " shorter than ") +
         than.schedule;
}

/// Returns the gain over 1F1B, which may not fit, and over the best other published row.
std::string Gains(const CompareRow& taken, const std::vector<const CompareRow*>& fit,
                  const CompareRow* one_f_one_b) {
  const CompareRow* const other = BestOther(fit, &taken);
  std::string text;
  if (one_f_one_b != nullptr && one_f_one_b != &taken) {
    text = ", " + Gain(taken, *one_f_one_b) + (one_f_one_b->fits ? "" : ", which does not fit");
  }
  if (fit.size() == 1) return text + "; nothing else fits";
  if (other == nullptr || other == one_f_one_b) return text;
  const bool longer = ShorterBy(taken, *other) < 0;
  return text + ", " + (longer ? "only " : "") + Gain(taken, *other) +
         (!longer                        ? " (best other published that fits)"
          : other->twice && !taken.twice ? ", which holds parameters twice"
                                         : ", and simpler");
}

/// Returns its memory as a multiple of 1F1B's.
std::string Price(const CompareRow& taken, const CompareRow* one_f_one_b) {
  const Report& report = *taken.report;
  const double gap = report.any_partition ? report.gap_to_any_partition() : report.gap();
  std::string text = gap > 0
                         ? "at most " + FormatPercent(gap) + " above the best of its placement; "
                         : "no order of its placement is shorter; ";
  if (taken.twice) text += "parameters twice; ";
  if (const int64_t total = taken.total.value_or(0); total > 0) {
    text += "fullest rank " + FormatBytes(total);
    if (one_f_one_b != nullptr && one_f_one_b != &taken) {
      text += ", 1F1B's " + FormatBytes(one_f_one_b->total.value_or(0));
    }
    text += "; ";
  }
  char times[32];
  std::snprintf(times, sizeof times, "%.2f", taken.memory);
  return text + "holds " + times + " times 1F1B's activations";
}

/// Rows within a hundredth of the shortest, but for those that hold parameters twice, or more than
/// 1F1B and others, where some do not.
std::vector<const CompareRow*> WorthTaking(const std::vector<const CompareRow*>& fit) {
  const CompareRow* const shortest = *std::min_element(fit.begin(), fit.end(), Shorter);
  std::vector<const CompareRow*> close;
  for (const CompareRow* row : fit) {
    if (ShorterBy(*shortest, *row) <= kWorthwhile) close.push_back(row);
  }
  const auto drop = [&](const auto& costly) {
    if (!std::ranges::all_of(close, costly)) std::erase_if(close, costly);
  };
  drop([](const CompareRow* row) { return row->twice; });
  double least = INFINITY;
  for (const CompareRow* row : close) least = std::min(least, row->memory);
  drop([&](const CompareRow* row) { return row->memory > kMoreMemory * std::max(1.0, least); });
  return close;
}

/// Why none of the rows is a plan, where that is the same for all; else "".
std::string SameForAll(std::span<const CompareRow> rows) {
  if (rows.empty()) return "";
  const std::string& first = rows.front().rejected;
  const auto alike = [&](const CompareRow& row) { return row.rejected == first; };
  return std::ranges::all_of(rows, alike) ? first : "";
}

std::string NothingFits(std::span<const CompareRow> rows) {
  const auto any = [&](const char* field) {
    return std::any_of(rows.begin(), rows.end(), [&](const CompareRow& row) {
      return row.rejected.find(field) != std::string::npos;
    });
  };
  const bool device =
      any("`device_memory`") ||
      std::any_of(rows.begin(), rows.end(), [](const auto& row) { return !row.fits; });
  if (device) {
    const bool recomputed =
        std::ranges::any_of(rows, [](const CompareRow& row) { return !row.recomputed.empty(); });
    return std::string("no schedule fits `device_memory`; use more `ranks`, ") +
           (recomputed ? "or `zero` with `data_parallel`"
                       : "`zero` with `data_parallel`, or `recompute` auto");
  }
  if (const std::string why = SameForAll(rows); !why.empty()) return "no schedule fits: " + why;
  return any("`memory_limit`")
             ? "no schedule fits; raise `memory_limit`, or see above what each of them needs"
             : "no schedule takes this model on so many ranks; see above what each of them needs";
}

}  // namespace

bool CompareRequest::includes(std::string_view schedule) const {
  if (no_auto && schedule == kAuto.name) return false;
  return schedules.empty() || std::ranges::count(schedules, schedule) > 0;
}

CompareRow CompareSchedule(const Schedule& schedule, const CompareRequest& asked) {
  CompareRequest request = asked;
  const CostModel published = Prepare(&request);
  return MakeRow(schedule, request, published);
}

std::vector<CompareRow> Compare(const CompareRequest& asked,
                                const std::function<void(std::string_view)>& started) {
  CompareRequest request = asked;
  MadePlans made;
  request.control.made = &made;
  if (request.schedules.empty()) {
    request.control.all_made = request.assumed_limit ? SearchControl::Made::kWithoutLimit
                                                     : SearchControl::Made::kWithinLimit;
  }
  const CostModel published = Prepare(&request);
  const bool any = request.spec.search.placement == Placement::kAny;
  // All searches share the budget: of components and of chunks, and of what holds parameters once.
  if (request.components && request.overlap() != Overlap::kPublished) {
    request.spec.search.budget /= 2;
  }
  if (request.single_too && any) request.spec.search.budget /= 2;
  // `auto` is searched concurrently with all the others, and reported after them.
  std::atomic<bool> heard = false;
  CompareRequest searched = request;
  if (asked.control.report) {
    searched.control.report = [&](const SearchState& state) {
      if (heard) asked.control.report(state);
    };
  }
  const auto search = [&] { return MakeRow(kAuto, searched, published); };
  // libc++ waits forever for a thread that cannot start, so one processor gets none.
  const auto policy = std::thread::hardware_concurrency() == 1
                          ? std::launch::deferred
                          : std::launch::async | std::launch::deferred;
  std::future<CompareRow> found;
  if (request.includes(kAuto.name)) found = std::async(policy, search);
  std::vector<CompareRow> rows;
  for (const Schedule* schedule : Schedules()) {
    if (schedule == &kAuto || !request.includes(schedule->name)) continue;
    if (started) started(schedule->name);
    rows.push_back(MakeRow(*schedule, request, published));
  }
  if (!request.includes(kAuto.name)) return rows;
  if (started) started(kAuto.name);
  heard = true;
  rows.push_back(found.get());
  if (!request.single_too || !any || !rows.back().twice) return rows;
  request.spec.search.placement = Placement::kSingle;
  CompareRow once = MakeRow(kAuto, request, published);
  if (once.report) rows.insert(rows.end() - 1, std::move(once));
  return rows;
}

std::string RejectedByAll(const CompareRequest& request, std::span<const CompareRow> rows) {
  const auto taken = [](const CompareRow& row) { return row.rejected.empty(); };
  if (rows.empty() || std::ranges::any_of(rows, taken)) return "";
  const int most = std::ranges::max(rows, {}, &CompareRow::stages).stages;
  const std::pair<const char*, const std::vector<int>&> chosen[] = {
      {"recompute", request.spec.recompute.stages}, {"offload", request.spec.offload.stages}};
  for (const auto& [field, stages] : chosen) {
    if (stages.empty() || stages.back() < most) continue;
    return "`" + std::string(field) + "`: there is no stage " + std::to_string(stages.back()) +
           ", no schedule makes more than " + std::to_string(most) + " stages (0.." +
           std::to_string(most - 1) + ")";
  }
  return SameForAll(rows);
}

Advice Advise(std::span<const CompareRow> rows) {
  const std::vector<const CompareRow*> fit = SimplestFirst(rows);
  if (fit.empty()) return {.schedule = "", .text = NothingFits(rows)};
  const CompareRow& taken = *WorthTaking(fit).front();
  const auto baseline = std::ranges::find_if(
      rows, [](const CompareRow& row) { return row.report && row.schedule == kOneFOneB.name; });
  const CompareRow* const one_f_one_b = baseline == rows.end() ? nullptr : &*baseline;
  Advice advice = {.schedule = taken.schedule, .text = "take " + Name(taken) + ": ", .row = &taken};
  advice.text += FormatWithUnit(taken.makespan(), taken.report->unit);
  if (&taken == one_f_one_b && fit.size() > 1) {
    const CompareRow& shortest = **std::min_element(fit.begin(), fit.end(), Shorter);
    const double gain = ShorterBy(shortest, taken);
    advice.text += gain > 0 ? "; the shortest that fits, " + shortest.schedule +
                                  ", saves no more than " + FormatPercent(gain)
                            : std::string("; nothing that fits is shorter");
  } else {
    advice.text += Gains(taken, fit, one_f_one_b);
  }
  advice.text += "; ";
  advice.price = advice.text.size();
  advice.text += Price(taken, one_f_one_b);
  return advice;
}

}  // namespace contraflow
