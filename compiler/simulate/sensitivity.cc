#include "compiler/simulate/sensitivity.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "compiler/simulate/simulate.h"

namespace contraflow {
namespace {

/// Instructions to be simulated in all; where more would be, not all costs are tried.
constexpr int64_t kMostSimulated = 10'000'000;

/// One cost, where it is in a copy of its model, and the instructions that take it.
struct Knob {
  std::string name;
  std::function<std::vector<Time*>(CostModel*)> places;
  Op op;
  int stage;  ///< -1: of any stage
};

struct StageField {
  const char* name;
  Time StageCost::*field;
  Op op;
};
constexpr StageField kStageFields[] = {
    {"f", &StageCost::f, Op::F},          {"b", &StageCost::b, Op::B},
    {"w", &StageCost::w, Op::W},          {"bw", &StageCost::bw, Op::BW},
    {"fb", &StageCost::fb, Op::FB},       {"r", &StageCost::r, Op::R},
    {"step", &StageCost::step, Op::STEP}, {"reduce", &StageCost::reduce, Op::REDUCE},
};

/// The costs that instructions of the plan take.
std::vector<Knob> KnobsOf(const Plan& plan, const CostModel& costs) {
  std::map<Op, std::set<int>> used;
  for (const Program& program : plan.programs) {
    for (const Instruction& i : program) used[i.op].insert(i.stage);
  }
  std::vector<Knob> knobs;
  for (const ComponentCost& component : kComponentCosts) {
    if (!used.contains(component.op)) continue;
    const auto places = [&component](CostModel* model) {
      std::vector<Time*> times;
      if (model->moe) {
        for (Time& time : (*model->moe).*component.times) times.push_back(&time);
      }
      for (MoeCost& moe : model->stage_moe) {
        for (int l = 0; l < moe.layers_per_stage; ++l) {
          if (!Has(moe.KindOf(l), component.op)) continue;
          std::vector<Time>& all = moe.*component.times;
          if (all.size() > 1 || l == 0) times.push_back(&all[static_cast<size_t>(l)]);
        }
      }
      return times;
    };
    knobs.push_back({component.key, places, component.op, -1});
  }
  for (const StageField& field : kStageFields) {
    const bool alike = costs.stages.size() == 1;
    for (const int s : alike&& used.contains(field.op) ? std::set<int>{0} : used[field.op]) {
      const auto places = [field, s](CostModel* model) {
        StageCost& stage = model->stages[static_cast<size_t>(s)];
        if (field.op == Op::R) stage.r = stage.recompute();
        return std::vector<Time*>{&(stage.*field.field)};
      };
      knobs.push_back(
          {field.name + (alike ? "" : " s" + std::to_string(s)), places, field.op, alike ? -1 : s});
    }
  }
  if (used.contains(Op::SEND_F) || used.contains(Op::SEND_B)) {
    const auto add = [&](const char* name, Time CommCost::*field) {
      const auto places = [field](CostModel* model) {
        std::vector<Time*> times = {&(model->comm.*field)};
        if (field == &CommCost::occupancy) {
          for (MessageSize& size : model->comm.sizes) times.push_back(&size.occupancy);
        }
        return times;
      };
      knobs.push_back({name, places, Op::SEND_F, -1});
    };
    add(costs.comm.exclusive() ? "latency" : "comm", &CommCost::latency);
    if (costs.comm.exclusive()) add("occupancy", &CommCost::occupancy);
  }
  return knobs;
}

/// Keeps the costs on the critical path, those that stand there most often first, at most `most`.
void KeepCritical(const Plan& plan, const CostModel& costs, size_t most, std::vector<Knob>* knobs) {
  std::map<std::pair<Op, int>, int> taken;
  for (const InstructionRef& ref : CriticalPath(plan, costs, Simulate(plan, costs).timeline)) {
    const Instruction& i = plan.program(ref.rank)[static_cast<size_t>(ref.index)];
    const Op op = IsSend(i.op) ? Op::SEND_F : i.op;
    ++taken[{op, i.stage}];
    ++taken[{op, -1}];
  }
  const auto count = [&](const Knob& knob) { return taken[{knob.op, knob.stage}]; };
  std::erase_if(*knobs, [&](const Knob& knob) { return count(knob) == 0; });
  std::stable_sort(knobs->begin(), knobs->end(),
                   [&](const Knob& a, const Knob& b) { return count(a) > count(b); });
  if (knobs->size() > most) knobs->resize(most);
}

/// With the cost changed by this many thousandths; nothing if it cannot be.
std::optional<Sensitivity> Try(const Plan& plan, const CostModel& costs, const Knob& knob,
                               int thousandths, Time makespan) {
  CostModel changed = costs;
  Sensitivity sensitivity{.cost = knob.name};
  Time added = 0;
  for (Time* const time : knob.places(&changed)) {
    const Time step = std::max<Time>(*time / 1000, *time > 0 ? 1 : 0) * thousandths;
    sensitivity.value += *time;
    *time += step;
    added += step;
  }
  if (added == 0) return std::nullopt;
  for (const StageCost& stage : changed.stages) {
    if (!FlawOf(stage, costs.unit).empty()) return std::nullopt;
  }
  const Time after = Simulate(plan, changed, Keep::kFigures).makespan;
  sensitivity.slope = static_cast<double>(after - makespan) / static_cast<double>(added);
  return sensitivity;
}

}  // namespace

std::vector<Sensitivity> Sensitivities(const Plan& plan, const CostModel& costs, size_t most) {
  std::vector<Knob> knobs = KnobsOf(plan, costs);
  const auto affordable =
      static_cast<size_t>(kMostSimulated / std::max<int64_t>(1, InstructionCount(plan)) + 1);
  if (knobs.size() > affordable) KeepCritical(plan, costs, affordable, &knobs);
  const Time makespan = Simulate(plan, costs, Keep::kFigures).makespan;
  std::vector<Sensitivity> all;
  for (const Knob& knob : knobs) {
    std::optional<Sensitivity> found = Try(plan, costs, knob, 1, makespan);
    if (!found) found = Try(plan, costs, knob, -1, makespan);
    if (found && found->slope > 0) all.push_back(*found);
  }
  std::stable_sort(all.begin(), all.end(), [](const Sensitivity& a, const Sensitivity& b) {
    return a.PerCent() > b.PerCent();
  });
  if (all.size() > most) all.resize(most);
  return all;
}

}  // namespace contraflow
