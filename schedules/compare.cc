#include "schedules/compare.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <future>
#include <utility>

#include "compiler/lower/interleave.h"
#include "compiler/plan/error.h"
#include "compiler/plan/plan.h"
#include "compiler/plan/text.h"
#include "schedules/compile.h"
#include "schedules/made_plans.h"
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
};

Built Build(Spec spec, const CostModel& costs, const CompareRequest& request, Level level) {
  const std::string& memory_limit = request.memory_limit;
  spec.costs = costs;
  if (!memory_limit.empty()) spec.memory_limit = MemoryLimitOf(spec, memory_limit);
  Plan plan = Compile(spec, {.level = level, .control = request.control, .any_device = true});
  const std::optional<int64_t> limit = plan.provenance ? std::nullopt : spec.memory_limit;
  Report report = MakeReport(plan, *plan.costs, limit, Keep::kFigures);
  return {std::move(plan), std::move(report)};
}

void Fill(const Built& built, const CompareRequest& request, CompareRow* row) {
  const Plan& plan = built.plan;
  row->report = built.report;
  row->provenance = plan.provenance;
  row->stages = plan.stages;
  row->twice = plan.routes.size() > 1;
  const RecomputedCells recomputed(plan);
  for (int s = 0; s < plan.stages; ++s) {
    if (recomputed.HasStage(s)) row->recomputed.push_back(s);
  }
  for (const Program& program : plan.programs) {
    row->offloaded += std::count_if(program.begin(), program.end(),
                                    [](const Instruction& i) { return i.op == Op::OFFLOAD; });
  }
  row->messages = MessageCount(plan);
  if (plan.costs->comm.bytes > 0) row->message_bytes = row->messages * plan.costs->comm.bytes;
  for (const MemoryFigures& rank : built.report.memory) {
    if (!rank.parameters) continue;
    row->parameters = std::max(row->parameters.value_or(0), *rank.parameters);
  }
  if (request.keep_plans) row->plan = plan;
  for (const MemoryFigures& rank : built.report.memory) {
    row->total = std::max(row->total.value_or(0), rank.total());
  }
}

/// Chunk by chunk as in the papers; how much of the all-to-all is exposed is what the components of
/// the same chunks say.
Built PublishedOnly(const Spec& spec, const CostModel& costs, const CompareRequest& request) {
  Built chunks = Build(spec, costs, request, Level::kComm);
  const Built parts = Build(spec, costs, request, Level::kComponent);
  for (size_t r = 0; r < chunks.report.simulation.ranks.size(); ++r) {
    const RankFigures& of_parts = parts.report.simulation.ranks[r];
    chunks.report.simulation.ranks[r].all_to_all = of_parts.all_to_all;
    chunks.report.simulation.ranks[r].exposed = of_parts.exposed;
  }
  chunks.report.components = true;
  return chunks;
}

/// Derives chunk costs where there are none; returns, with components, those of chunks that overlap
/// as in the papers.
CostModel Prepare(CompareRequest* request) {
  CostModel& costs = request->spec.costs;
  if (costs.moe && costs.stages.empty()) {
    DeriveChunkCosts(&costs, request->overlap());
    request->components = true;
  }
  if (!request->components) return {};
  CostModel published = costs;
  DeriveChunkCosts(&published, Overlap::kPublished);
  return published;
}

/// `published`: what Prepare returned.
CompareRow MakeRow(const Schedule& schedule, const CompareRequest& request,
                   const CostModel& published) {
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
      row.published = Build(spec, published, request, Level::kComm).report;
    }
    const std::vector<int64_t> devices = DevicesOf(spec);
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

/// What a shorter step must save to be worth anything less simple.
constexpr double kWorthwhile = 0.01;

/// From the simplest: 1F1B, then in the order of the table, where what is searched is last.
std::vector<const CompareRow*> SimplestFirst(std::span<const CompareRow> rows) {
  std::vector<const CompareRow*> fit;
  for (const CompareRow& row : rows) {
    if (row.report && row.fits) fit.push_back(&row);
  }
  std::stable_partition(fit.begin(), fit.end(),
                        [](const CompareRow* row) { return row->schedule == kOneFOneB.name; });
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
  if (!row.provenance && row.report->schedule == row.schedule) return row.schedule;
  if (!row.provenance) {
    return row.schedule + " (" + row.report->schedule + " with " + std::to_string(row.stages) +
           " stages)";
  }
  // What policies are called means nothing to those who did not write them.
  const std::string& from = row.provenance->from;
  const bool published = from.find(' ') == std::string::npos;
  return row.schedule + " (" + row.provenance->placement + " placement" +
         (published ? ", from " + from : "") + ")";
}

/// "12.3 % shorter than 1f1b", or that nothing else fits.
std::string Gain(const CompareRow& taken, const std::vector<const CompareRow*>& fit) {
  const CompareRow* const other = BestOther(fit, &taken);
  if (other == nullptr) return "nothing else fits";
  const CompareRow* const simplest = fit.front();
  std::string text;
  if (simplest != &taken && simplest != other) {
    text = FormatPercent(ShorterBy(taken, *simplest)) + " shorter than " + simplest->schedule +
           " and ";
  }
  const double gain = ShorterBy(taken, *other);
  const std::string than =
      gain == 0 ? std::string("as long as ")
                : FormatPercent(std::abs(gain)) + (gain < 0 ? " longer than " : " shorter than ");
  return text + than + other->schedule + ", the best other published schedule that fits";
}

/// What the fullest rank holds, beside that of the best other.
std::string Price(const CompareRow& taken, const std::vector<const CompareRow*>& fit) {
  std::string text = taken.twice ? "; every rank holds the parameters of two stages" : "";
  const auto holds = [](const CompareRow& row) { return row.total.value_or(0); };
  if (holds(taken) == 0) return text;
  text += "; its fullest rank holds " + FormatBytes(holds(taken));
  const CompareRow* const other = BestOther(fit, &taken);
  if (other == nullptr || holds(*other) == holds(taken)) return text;
  return text + " against " + FormatBytes(holds(*other)) + " with " + other->schedule;
}

/// Rows within a hundredth of the shortest, but for those that hold parameters twice where others
/// are.
std::vector<const CompareRow*> WorthTaking(const std::vector<const CompareRow*>& fit) {
  const CompareRow* const shortest = *std::min_element(fit.begin(), fit.end(), Shorter);
  std::vector<const CompareRow*> close, once;
  for (const CompareRow* row : fit) {
    if (ShorterBy(*shortest, *row) > kWorthwhile) continue;
    close.push_back(row);
    if (!row->twice) once.push_back(row);
  }
  return once.empty() ? close : once;
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

CompareRow CompareSchedule(const Schedule& schedule, const CompareRequest& asked) {
  CompareRequest request = asked;
  return MakeRow(schedule, request, Prepare(&request));
}

std::vector<CompareRow> Compare(const CompareRequest& asked,
                                const std::function<void(std::string_view)>& started) {
  CompareRequest request = asked;
  const CostModel published = Prepare(&request);
  MadePlans made;
  request.control.made = &made;
  // `auto` is searched beside all the others, and heard of once these are there.
  std::atomic<bool> heard = false;
  CompareRequest searched = request;
  if (asked.control.report) {
    searched.control.report = [&](const SearchState& state) {
      if (heard) asked.control.report(state);
    };
  }
  const auto search = [&] { return MakeRow(kAuto, searched, published); };
  std::future<CompareRow> found;
  if (!request.no_auto) found = std::async(std::launch::async | std::launch::deferred, search);
  std::vector<CompareRow> rows;
  for (const Schedule* schedule : Schedules()) {
    if (schedule == &kAuto) continue;
    if (started) started(schedule->name);
    rows.push_back(MakeRow(*schedule, request, published));
  }
  if (request.no_auto) return rows;
  if (started) started(kAuto.name);
  heard = true;
  rows.push_back(found.get());
  const bool any = request.spec.search.placement == Placement::kAny;
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
  if (fit.empty()) return {"", NothingFits(rows), nullptr};
  const CompareRow* const shortest = *std::min_element(fit.begin(), fit.end(), Shorter);
  const CompareRow& taken = *WorthTaking(fit).front();
  const Report& report = *taken.report;
  std::string figures = FormatWithUnit(taken.makespan(), report.unit) + ", " +
                        FormatPercent(report.gap()) + " above the bound of its placement";
  const bool layered = !report.partition.empty();
  if (!taken.provenance) figures += layered ? ", memory" : " and memory";
  const bool any = report.any_partition == report.bound.value;
  if (layered) figures += any ? " and any partition" : " and partition";
  if (report.any_partition && !any) {
    figures += ", " + FormatPercent(report.gap_to_any_partition()) + " above that of any partition";
  }
  if (taken.schedule == kOneFOneB.name) {
    const double gain = ShorterBy(*shortest, taken);
    return {taken.schedule,
            "take 1F1B (1f1b): nothing is simpler, and " +
                (gain > 0 ? "the shortest that fits, " + shortest->schedule +
                                ", saves no more than " + FormatPercent(gain)
                          : std::string("nothing that fits is shorter")) +
                "; " + figures + Price(taken, fit),
            &taken};
  }
  return {taken.schedule,
          "take " + Name(taken) + ": " + Gain(taken, fit) + "; " + figures + Price(taken, fit),
          &taken};
}

}  // namespace contraflow
