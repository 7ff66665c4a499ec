#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compiler/plan/error.h"
#include "schedules/published/rows.h"
#include "schedules/registry.h"
#include "tools/interop/interop.h"
#include "tools/interop/stage_layers.h"

namespace contraflow {
namespace {

[[noreturn]] void Refuse(const std::string& why) {
  throw Error("Megatron-LM cannot run this plan: " + why +
              "; it has only 1f1b, interleaved-1f1b and combined-1f1b");
}

void CheckPlacement(const Plan& plan) {
  if (plan.layers > 0) {
    throw Error(
        "the plan has components, for which Megatron-LM has no arguments; compile it with `level` "
        "comm or compute");
  }
  if (plan.routes.size() != 1) {
    Refuse("its micro-batches take " + std::to_string(plan.routes.size()) + " routes");
  }
  if (plan.stages % plan.ranks != 0) {
    Refuse(std::to_string(plan.stages) + " stages are not equally many on each of " +
           std::to_string(plan.ranks) + " ranks");
  }
  for (int stage = 0; stage < plan.stages; ++stage) {
    const int rank = plan.routes[0].ranks[static_cast<size_t>(stage)];
    if (rank == stage % plan.ranks) continue;
    Refuse("stage " + std::to_string(stage) + " is on rank " + std::to_string(rank) +
           ", not on rank " + std::to_string(stage % plan.ranks));
  }
}

/// Computing instructions, in order.
std::vector<Program> ComputeOrder(const Plan& plan) {
  std::vector<Program> programs;
  for (const Program& program : plan.programs) {
    Program& order = programs.emplace_back();
    for (const Instruction& i : program) {
      if (WorkOf(i.op) != Work::kCompute || i.op == Op::R) continue;
      if (i.op == Op::FB) {
        order.push_back(Pair(i.stage, i.microbatch, i.back_stage, i.back_microbatch));
        continue;
      }
      if (i.op != Op::F && i.op != Op::BW) Refuse(ToString(i) + " splits a backward");
      order.push_back(CellOp(i.op, i.stage, i.microbatch));
    }
  }
  return programs;
}

void CheckOrder(const std::vector<Program>& order, const Plan& known) {
  for (size_t rank = 0; rank < order.size(); ++rank) {
    const Program &has = order[rank], &runs = known.programs[rank];
    const auto [mine, theirs] = std::mismatch(has.begin(), has.end(), runs.begin(), runs.end());
    if (mine == has.end() && theirs == runs.end()) continue;
    CF_ASSERT(mine != has.end() && theirs != runs.end());
    Refuse("rank " + std::to_string(rank) + " runs " + ToString(*mine) + " where " +
           known.schedule + " runs " + ToString(*theirs));
  }
}

bool HasPairs(const std::vector<Program>& order) {
  return std::ranges::any_of(order, [](const Program& program) {
    return std::ranges::any_of(program, [](const Instruction& i) { return i.op == Op::FB; });
  });
}

/// Micro-batches of a round of interleaved or combined 1F1B; throws unless the plan has that order.
int CheckInterleaved(const Plan& plan, const std::vector<Program>& order, Spec spec) {
  const bool pairs = HasPairs(order);
  spec.schedule = pairs ? "combined-1f1b" : "interleaved-1f1b";
  spec.chunks = plan.stages / plan.ranks;
  const Program& first = order[0];
  const auto round = static_cast<int>(
      std::find_if(first.begin(), first.end(),
                   [](const Instruction& i) { return i.op != Op::F || i.stage != 0; }) -
      first.begin());
  if (round < plan.ranks) {
    Refuse("a round of " + std::to_string(round) + " micro-batches is shorter than the pipeline");
  }
  const int rounds = (plan.microbatches + round - 1) / round;
  const Plan known =
      pairs ? GeneratePlan(spec)
            : InterleavedInRounds(spec, std::min(rounds, plan.microbatches / plan.ranks));
  CheckOrder(order, known);
  if (plan.microbatches % rounds != 0 && plan.microbatches % rounds != rounds - 1) {
    Refuse("more than the last of its rounds are shorter than " + std::to_string(round) +
           " micro-batches");
  }
  return round;
}

/// Returns the recomputed part of every chunk, none if nothing is recomputed. With a number of
/// layers, stages that have no more of them are recomputed whole. Throws if only some chunks are
/// recomputed, or if no argument says it.
std::optional<RecomputeExtent> Recomputes(const Plan& plan) {
  int64_t count = 0;
  for (const Program& program : plan.programs) {
    count += std::count_if(program.begin(), program.end(),
                           [](const Instruction& i) { return i.op == Op::R; });
  }
  if (count == 0) return std::nullopt;
  if (count != int64_t{plan.stages} * plan.microbatches) {
    throw Error(
        "the plan recomputes some of its stages only, which Megatron-LM cannot say of stages; "
        "recompute all of them or none");
  }
  const RecomputedCells cells(plan);
  const std::vector<RecomputeExtent>& extents = cells.extents();
  const RecomputeExtent first = std::ranges::max(extents, {}, &RecomputeExtent::layers);
  for (const RecomputeExtent& extent : extents) {
    const bool full = extent.part == RecomputePart::kFull;
    if (full && (extent.layers == 0 || extent == first)) continue;
    throw Error("the plan recomputes " + ToString(extent) +
                " of stages, and what is written for Megatron-LM recomputes whole stages, or as "
                "many layers of each; compile it with `recompute` full, layers=N or none");
  }
  return first;
}

/// Throws unless Megatron-LM overlaps pairs in such a plan.
void CheckPairs(int expert_parallel, bool recomputes, int64_t mtp) {
  const auto refuse = [](const char* why) {
    throw Error(std::string("Megatron-LM overlaps pairs of a forward and a backward ") + why);
  };
  if (expert_parallel < 2) refuse("only with experts on several devices: give `expert_parallel`");
  if (recomputes) refuse("only where no forward runs again: compile without `recompute`");
  if (mtp > 1) refuse("only with at most one layer of multi-token prediction");
}

/// How many of them the layout has.
int64_t CountOf(const LayerLayout& layout, char letter) {
  int64_t count = 0;
  for (const std::string& stage : layout) count += std::count(stage.begin(), stage.end(), letter);
  return count;
}

/// Counts the transformer layers of each stage that run again, as Megatron-LM does, for the first
/// `count` layers of the costs. Throws Error if stages differ.
int64_t TransformerLayers(const Plan& plan, const LayerLayout& layout, int count) {
  const RecomputedCells cells(plan);
  std::optional<int64_t> of_all;
  int64_t of_whole = 0;  // most of a stage that is recomputed whole
  for (size_t s = 0; s < layout.size(); ++s) {
    const std::string& letters = layout[s];
    const int known = plan.costs ? plan.costs->LayersIn(static_cast<int>(s)) : 0;
    const auto transformers = std::count(letters.begin(), letters.end(), 't');
    if (cells.extent(static_cast<int>(s)).layers == 0) {
      of_whole = std::max<int64_t>(of_whole, transformers);
      continue;
    }
    // The costs list all layers of a stage, or its transformer layers alone.
    const bool all = std::cmp_equal(known, letters.size());
    const auto end = letters.begin() + std::min<ptrdiff_t>(count, std::ssize(letters));
    const int64_t again = all ? std::count(letters.begin(), end, 't') : count;
    if ((all || known == transformers) && again > 0 && again == of_all.value_or(again)) {
      of_all = again;
      continue;
    }
    throw Error("the plan recomputes the first " + std::to_string(count) +
                " layers of each stage; " +
                "Megatron-LM counts transformer layers, which must be as many of each stage, and " +
                "stage " + std::to_string(s) + " is " + letters +
                "; compile it with `recompute` full or none");
  }
  if (of_all && of_whole > *of_all) {
    throw Error("the plan recomputes " + std::to_string(of_whole) +
                " transformer layers of one stage and the first " + std::to_string(*of_all) +
                " of another; Megatron-LM recomputes as many of each; compile it with `recompute` "
                "full or none");
  }
  return of_all.value_or(count);
}

/// Counts the transformer layers that run again together, of which Megatron-LM keeps one input: all
/// of a stage, as in the plan, where stages are alike. It takes divisors of each stage alone, and 1
/// with multi-token prediction (MultiTokenPredictionLayer._checkpointed_forward).
int64_t UniformLayers(const LayerLayout& layout) {
  int64_t layers = CountOf(layout, 'm') > 0 ? 1 : 0;
  for (const std::string& stage : layout) {
    layers = std::gcd(layers, int64_t{std::count(stage.begin(), stage.end(), 't')});
  }
  return std::max<int64_t>(1, layers);
}

}  // namespace

std::string WriteMegatronLayout(const Plan& plan, const std::optional<std::string>& layers,
                                int micro_batch) {
  CheckPlacement(plan);
  if (plan.ranks == 1 && plan.stages > 1) {
    Refuse("it has chunks (" + std::to_string(plan.stages) + ") on one rank");
  }
  const std::vector<Program> order = ComputeOrder(plan);
  Spec spec;
  spec.schedule = "1f1b";
  spec.ranks = plan.ranks;
  spec.microbatches = plan.microbatches;
  spec.costs = UniformCosts(1, 1, 1);
  int round = 0;
  if (plan.stages == plan.ranks) {
    CheckOrder(order, GeneratePlan(spec));
  } else {
    round = CheckInterleaved(plan, order, spec);
  }
  const LayerLayout layout = LayersOfStages(plan, layers, UnknownLayers::kOneEach);
  const std::string flaw = FlawOf(layout, plan.ranks);
  if (!flaw.empty()) {
    throw Error("Megatron-LM does not take the layout " + FormatLayerLayout(layout) + ": " + flaw +
                "; compile with another `partition`");
  }
  std::string text;
  const auto add = [&](const char* name, const std::string& value) {
    text += name + (value.empty() ? "" : " " + value) + "\n";
  };
  add("--pipeline-model-parallel-size", std::to_string(plan.ranks));
  add("--pipeline-model-parallel-layout",
      "'" + FormatLayerLayout(layout) + "'");  // no quote is in it
  if (round > 0) {
    add("--microbatch-group-size-per-virtual-pipeline-stage", std::to_string(round));
  }
  add("--num-layers", std::to_string(CountOf(layout, 't')));
  const int64_t mtp = CountOf(layout, 'm');
  if (mtp > 0) add("--mtp-num-layers", std::to_string(mtp));
  const CostModel costs = plan.costs.value_or(CostModel());
  const Parallel parallel = ParallelOf(plan, costs);
  if (parallel.tp > 1) {
    add("--tensor-model-parallel-size", std::to_string(parallel.tp));
    add("--sequence-parallel", "");  // costs of tp are with it
  }
  if (parallel.cp > 1) add("--context-parallel-size", std::to_string(parallel.cp));
  if (parallel.ep > 1) add("--expert-model-parallel-size", std::to_string(parallel.ep));
  // Megatron's own default is tp.
  const bool experts = parallel.ep > 1 || (costs.memory && !costs.memory->parameter_rest.empty());
  if (costs.parallel && experts) {
    add("--expert-tensor-parallel-size", std::to_string(parallel.etp));
  }
  const std::optional<RecomputeExtent> extent = Recomputes(plan);
  if (HasPairs(order)) {
    CheckPairs(parallel.ep, extent.has_value(), mtp);
    add("--overlap-moe-expert-parallel-comm", "");
  }
  if (extent) {
    add("--recompute-granularity", "full");
    const bool block = extent->layers > 0;
    add("--recompute-method", block ? "block" : "uniform");
    add("--recompute-num-layers",
        std::to_string(block ? TransformerLayers(plan, layout, extent->layers)
                             : UniformLayers(layout)));
  }
  add("--micro-batch-size", std::to_string(micro_batch));
  add("--global-batch-size", std::to_string(int64_t{micro_batch} * plan.microbatches *
                                            plan.data_parallel * parallel.batches()));
  return text;
}

}  // namespace contraflow
