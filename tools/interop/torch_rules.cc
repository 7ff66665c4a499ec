// Rules of PyTorch's runtime about the plans it runs, and plans and costs adapted to it.

#include "compiler/plan/error.h"
#include "compiler/plan/layer_cost.h"
#include "tools/interop/interop.h"

namespace contraflow {

CostModel CostsOfForwards(CostModel costs, const std::string& place) {
  const auto refuse = [&](bool components) {
    if (!components) return;
    throw Error(place +
                ": has forwards alone, and these costs are of components; give costs of stages");
  };
  const auto leave = [](StageCost* cost) {
    cost->b = cost->w = cost->bw = 0;
    cost->reduce = cost->step = 0;
    cost->fb = cost->f;
  };
  refuse(costs.moe || !costs.stage_moe.empty());
  for (StageCost& stage : costs.stages) leave(&stage);
  for (LayerCost& layer : costs.layers) {
    refuse(layer.moe.has_value());
    leave(&layer.cost);
  }
  return costs;
}

Plan WithoutMessages(Plan plan) {
  for (Program& program : plan.programs) {
    std::erase_if(program, [](const Instruction& i) { return WorkOf(i.op) != Work::kCompute; });
  }
  plan.level = Level::kCompute;
  plan.semantics = Semantics::kRank;
  plan.marks.clear();
  return plan;
}

std::optional<Finding> LossOutOfTurn(const Plan& plan) {
  for (int r = 0; r < plan.ranks; ++r) {
    int next = 0;
    for (size_t at = 0; at < plan.program(r).size(); ++at) {
      const Instruction& i = plan.program(r)[at];
      if (!HasForward(i.op) || i.stage + 1 != plan.stages || i.microbatch == next++) continue;
      return Finding{"order", r, static_cast<int>(at),
                     ToString(i) +
                         " is out of turn: PyTorch takes the losses of the last stage by position, "
                         "so its forwards must ascend"};
    }
  }
  return std::nullopt;
}

void RequireLossesInTurn(const Plan& plan, const std::string& place) {
  const std::optional<Finding> found = LossOutOfTurn(plan);
  if (!found) return;
  throw Error(place + ": " + CsvPlace(plan, found->rank, found->index) + ": " + found->message);
}

}  // namespace contraflow
