#include "tools/contraflow/comparison.h"

#include <algorithm>
#include <utility>

#include "compiler/plan/error.h"
#include "compiler/plan/recomputed.h"
#include "schedules/published/rows.h"
#include "tools/contraflow/build.h"
#include "tools/contraflow/interrupt.h"
#include "tools/contraflow/progress.h"
#include "tools/contraflow/search_option.h"

namespace contraflow {
namespace {

/// Stages of the model: as many as costs are listed or, where they are for any, one a rank.
int ModelStages(const Question& question) {
  const size_t listed = question.spec.costs.stages.size();
  return listed > 1 ? static_cast<int>(listed) : question.spec.ranks;
}

Spec SpecFor(const Schedule& schedule, const Question& question) {
  Spec spec = question.spec;
  spec.schedule = schedule.name;
  if (&schedule != &kInterleaved && &schedule != &kAuto) spec.chunks = 0;
  return spec;
}

/// `auto` takes --chunks for its interleaved placement only, and the costs for one stage a rank.
void ListStages(Spec* spec) {
  if (spec->chunks == 0 || spec->costs.stages.size() != 1) return;
  if (spec->ranks == 1) spec->chunks = 0;
  spec->costs.stages.resize(static_cast<size_t>(spec->ranks), spec->costs.stages.front());
}

struct Built {
  Plan plan;
  Report report;
};

Built Build(Spec spec, const CostModel& costs, const std::string& memory_limit, Level level,
            const SearchControl& control) {
  spec.costs = costs;
  if (spec.schedule == kAuto.name) ListStages(&spec);
  spec.search.components = level == Level::kComponent;
  const BuildOptions options = {.level = level,
                                .overlap = costs.derived.value_or(Overlap::kAll),
                                .memory_limit = memory_limit,
                                .control = control};
  Plan plan = BuildPlan(spec, options);
  std::optional<int64_t> limit;
  if (plan.provenance) {
    limit = plan.provenance->memory_limit;
  } else if (!memory_limit.empty()) {
    limit = ParseMemoryLimit(memory_limit, spec, plan.stages);
  }
  Report report = MakeReport(plan, *plan.costs, limit);
  return {std::move(plan), std::move(report)};
}

void Fill(const Built& built, Row* row) {
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
    row->messages += std::count_if(program.begin(), program.end(), [](const Instruction& i) {
      return WorkOf(i.op) == Work::kSend;
    });
  }
  if (plan.costs->comm.bytes > 0) row->message_bytes = row->messages * plan.costs->comm.bytes;
  for (const MemoryFigures& rank : built.report.memory) {
    if (!rank.parameters) continue;
    row->parameters = std::max(row->parameters.value_or(0), *rank.parameters);
  }
}

/// Chunk by chunk as in the papers; how much of the all-to-all is exposed is what the components of
/// the same chunks say.
Built PublishedOnly(const Spec& spec, const Question& question, const SearchControl& control) {
  Built chunks = Build(spec, question.published, question.memory_limit, Level::kComm, control);
  const Built parts =
      Build(spec, question.published, question.memory_limit, Level::kComponent, control);
  for (size_t r = 0; r < chunks.report.simulation.ranks.size(); ++r) {
    const RankFigures& of_parts = parts.report.simulation.ranks[r];
    chunks.report.simulation.ranks[r].all_to_all = of_parts.all_to_all;
    chunks.report.simulation.ranks[r].exposed = of_parts.exposed;
  }
  chunks.report.components = true;
  return chunks;
}

Row MakeRow(const Schedule& schedule, const Question& question, Progress* progress) {
  Spec spec = SpecFor(schedule, question);
  // What is searched has a best so far; the others end with the process.
  std::optional<Interrupt> interrupt;
  SearchControl control;
  if (&schedule == &kAuto) {
    interrupt.emplace();
    control = WatchSearch(*interrupt, progress, spec.costs.unit);
  }
  Row row;
  row.schedule = spec.schedule;
  row.stages = schedule.stages(spec);
  row.same_model = &schedule == &kAuto || row.stages == ModelStages(question);
  try {
    if (!question.components) {
      Fill(Build(spec, spec.costs, question.memory_limit, Level::kComm, control), &row);
    } else if (question.overlap() == Overlap::kPublished) {
      Fill(PublishedOnly(spec, question, control), &row);
    } else {
      Fill(Build(spec, spec.costs, question.memory_limit, Level::kComponent, control), &row);
      row.published =
          Build(spec, question.published, question.memory_limit, Level::kComm, control).report;
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

}  // namespace

std::vector<Row> Compare(const Question& question, Progress* progress) {
  std::vector<Row> rows;
  for (const Schedule* schedule : Schedules()) {
    if (schedule == &kAuto && !question.searched) continue;
    if (progress != nullptr) progress->Say("compiling " + std::string(schedule->name));
    rows.push_back(MakeRow(*schedule, question, progress));
  }
  return rows;
}

}  // namespace contraflow
