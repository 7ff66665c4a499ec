#include "tests/support/random_plan.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "compiler/lower/passes.h"
#include "tests/support/support.h"

namespace contraflow {
namespace {

constexpr Op kOps[] = {
#define CF_OP(name, operands, work) Op::name,
    CF_OPS(CF_OP)
#undef CF_OP
};

class Generator {
 public:
  explicit Generator(std::mt19937_64* random) : random_(*random) {}

  Plan Make() {
    Plan plan;
    constexpr const char* kNames[] = {"1f1b", "zb-1p", "dualpipe", "my_own.2"};
    plan.schedule = kNames[Below(4)];
    plan.level = static_cast<Level>(Below(4));
    plan.ranks = 1 + Below(5);
    plan.stages = 1 + Below(6);
    plan.microbatches = 1 + Below(8);
    plan.data_parallel = Below(2) == 0 ? 1 : 1 + Below(100);
    plan.expert_parallel = Below(2) == 0 ? 1 : 1 + Below(kMaxExpertParallel);
    plan.layers = Below(2) == 0 ? 0 : 4 + Below(kMaxLayers - 3);
    if (plan.layers > 0 && Below(2) == 0) MakeStageLayers(&plan);
    plan.routes.resize(static_cast<size_t>(1 + Below(std::min(3, plan.microbatches))));
    for (Route& route : plan.routes) {
      for (int s = 0; s < plan.stages; ++s) route.ranks.push_back(Below(plan.ranks));
    }
    for (int m = 0; m < plan.microbatches; ++m) {
      plan.routes[Index(plan.routes.size())].microbatches.push_back(m);
    }
    if (Below(2) == 0) plan.costs = MakeCosts(plan);
    plan.programs.resize(static_cast<size_t>(plan.ranks));
    const int longest = plan.stages * (plan.microbatches * 7 + 2);
    for (Program& program : plan.programs) {
      const int size = Below(std::min(longest, 30) + 1);
      for (int i = 0; i < size; ++i) program.push_back(MakeInstruction(plan, i));
    }
    if (plan.level == Level::kBuffer) MakeSlots(&plan);
    return plan;
  }

 private:
  int Below(int bound) { return static_cast<int>(random_() % static_cast<uint64_t>(bound)); }
  size_t Index(size_t size) { return static_cast<size_t>(Below(static_cast<int>(size))); }

  /// Stages with unlike layers, one of them with the most.
  void MakeStageLayers(Plan* plan) {
    for (int s = 0; s < plan->stages; ++s) {
      StageLayers layers(static_cast<size_t>(s == 0 ? plan->layers : 1 + Below(plan->layers)));
      for (LayerKind& kind : layers) kind = static_cast<LayerKind>(Below(3));
      plan->stage_layers.push_back(std::move(layers));
    }
  }

  void MakeStageComponents(const Plan& plan, CostModel* costs) {
    costs->stages.resize(static_cast<size_t>(plan.stages), costs->stages.front());
    for (const StageLayers& kinds : plan.stage_layers) {
      MoeCost moe;
      moe.kinds = kinds;
      moe.layers_per_stage = static_cast<int>(kinds.size());
      for (const ComponentCost& component : kComponentCosts) {
        for (const LayerKind kind : kinds) {
          (moe.*component.times).push_back(Has(kind, component.op) ? Below(1000) : 0);
        }
      }
      costs->stage_moe.push_back(std::move(moe));
    }
  }

  CostModel MakeCosts(const Plan& plan) {
    CostModel costs;
    costs.unit = static_cast<Unit>(Below(5));
    costs.source = Below(2) == 0 ? "" : "made \"up\"";
    const int stages = Below(2) == 0 ? 1 : plan.stages;
    for (int s = 0; s < stages; ++s) {
      StageCost cost{.f = Below(1000), .b = Below(1000), .w = Below(1000)};
      cost.bw = cost.b + cost.w;
      cost.fb = cost.f + cost.bw - std::min(cost.f, cost.w);
      cost.step = Below(2) * 7;
      costs.stages.push_back(cost);
    }
    if (!plan.stage_layers.empty() && Below(2) == 0) MakeStageComponents(plan, &costs);
    costs.comm.latency = Below(100);
    if (Below(2) == 0) {
      std::vector<int64_t> optimizer(static_cast<size_t>(plan.stages), 7);
      optimizer[0] = Below(2);
      costs.memory = MemoryCost{1000, 450, {Below(2)}, {}, optimizer, {}};
    }
    if (Below(2) == 0) costs.microbatch_scale.assign(static_cast<size_t>(plan.microbatches), 1.25);
    return costs;
  }

  void MakeSlots(Plan* plan) {
    for (Program& program : plan->programs) {
      const int size = static_cast<int>(program.size());
      const int count = size == 0 ? 0 : Below(std::min(4 * size, 30) + 1);
      plan->slots.emplace_back();
      for (int i = 0; i < count; ++i) {
        const auto value = static_cast<Value>(Below(kValueCount));
        const int layer = plan->layers == 0 ? -1 : Below(plan->layers);
        const int first = Below(size);
        plan->slots.back().push_back({.value = value,
                                      .arena = static_cast<Arena>(Below(kArenaCount)),
                                      .layer = static_cast<int16_t>(layer),
                                      .stage = Below(plan->stages),
                                      .microbatch = Below(plan->microbatches),
                                      .first = first,
                                      .last = first + Below(size - first),
                                      .offset = static_cast<int64_t>(random_() >> 4),
                                      .bytes = static_cast<int64_t>(random_() >> 4)});
      }
      for (Instruction& i : program) i.slot = count > 0 && Below(4) == 0 ? Below(count) : -1;
    }
  }

  Instruction MakeInstruction(const Plan& plan, int index) {
    Instruction i;
    i.op = kOps[Index(std::size(kOps))];
    i.stage = Below(plan.stages);
    const Operands operands = OperandsOf(i.op);
    if (operands != Operands::kStage) i.microbatch = Below(plan.microbatches);
    if (operands == Operands::kPair) {
      i.back_stage = Below(plan.stages);
      i.back_microbatch = Below(plan.microbatches);
    }
    if (operands == Operands::kMessage) i.peer = Below(plan.ranks);
    if (operands == Operands::kLayer) i.layer = static_cast<int16_t>(Below(4));
    if (i.op == Op::R && Below(2) == 0) i.part = kParts[Index(std::size(kParts))];
    if (i.op == Op::R && Below(2) == 0) i.layers = static_cast<int16_t>(Below(5));
    if (Below(4) == 0) i.slot = Below(9);
    if (Below(4) == 0) i.group = Below(9);
    if (Below(4) == 0) i.lane = static_cast<Lane>(Below(6));
    if (Below(4) == 0) {
      std::vector<int> earlier(static_cast<size_t>(index));
      std::iota(earlier.begin(), earlier.end(), 0);
      std::shuffle(earlier.begin(), earlier.end(), random_);
      earlier.resize(std::min(earlier.size(), Index(kMaxAfter + 1)));
      std::ranges::sort(earlier);
      std::copy(earlier.begin(), earlier.end(), i.after.begin());
      i.after_count = static_cast<uint8_t>(earlier.size());
    }
    return i;
  }

  std::mt19937_64& random_;
};

}  // namespace

Plan RandomPlan(std::mt19937_64* random) { return Generator(random).Make(); }

CommCase DrawCommCase(std::mt19937_64* random, int round, int most_ranks, int most_microbatches,
                      const std::function<void(const Schedule&, Spec*)>& choose) {
  const auto draw = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(*random);
  };
  const auto schedules = Schedules();
  const Schedule& schedule = *schedules[static_cast<size_t>(round) % schedules.size()];
  for (;;) {
    const int ranks = draw(1, most_ranks);
    Spec spec = MakeSpec(schedule.name, ranks, draw(1, most_microbatches), {});
    if (!schedule.reject(spec).empty()) continue;
    spec.data_parallel = draw(1, 2);
    choose(schedule, &spec);
    Plan plan = InsertCommunication(GeneratePlan(spec), spec.costs);
    plan.costs = spec.costs;
    return {std::move(plan), spec.costs};
  }
}

}  // namespace contraflow
