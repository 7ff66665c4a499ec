#include "compiler/lower/lower.h"

#include <utility>
#include <vector>

#include "compiler/lower/passes.h"
#include "compiler/plan/error.h"
#include "compiler/verify/verify.h"

namespace contraflow {
namespace {

constexpr std::string_view kPasses[] = {"comm", "component", "buffer"};

/// Checks what a pass made; if that does not hold, the pass is wrong and not the user.
void Demand(std::string_view pass, const Plan& plan) {
  const std::vector<Finding> findings = Verify(plan);
  if (findings.empty()) return;
  throw InternalError("internal error: pass " + std::string(pass) + " made an unsound plan of " +
                      plan.schedule + ": " + ToString(findings.front(), plan) +
                      "; this is a bug in contraflow, please report it");
}

/// The marks of a compute order, at the same compute instructions of what became of it.
std::vector<std::vector<Mark>> MarksIn(const Plan& plan, std::vector<std::vector<Mark>> marks) {
  for (size_t r = 0; r < marks.size(); ++r) {
    const Program& program = plan.programs[r];
    size_t at = 0;
    int32_t passed = 0;  // compute instructions before `at`
    for (Mark& mark : marks[r]) {
      for (; at < program.size(); ++at) {
        if (WorkOf(program[at].op) != Work::kCompute) continue;
        if (passed == mark.before) break;
        ++passed;
      }
      mark.before = static_cast<int32_t>(at);
    }
  }
  return marks;
}

}  // namespace

std::span<const std::string_view> PassNames() { return kPasses; }

void RefuseComponents() {
  throw Error(
      "level component needs the costs of the components of a layer; give costs with \"moe\", such "
      "as `costs` deepseek-v3-h800");
}

Plan Lower(Plan plan, const CostModel& costs, const LowerOptions& options,
           const PassObserver& observer) {
  const Level target = options.target;
  if (plan.level != Level::kCompute) {
    throw Error("only a plan of level compute can be lowered, this one is of level " +
                std::string(Name(plan.level)));
  }
  if (target == Level::kComponent && !costs.components()) RefuseComponents();
  CheckCosts(costs, plan.stages, plan.microbatches);
  if (options.verify) {
    const std::vector<Finding> findings = Verify(plan);
    if (!findings.empty()) throw UnsoundOrder("cannot lower: " + ToString(findings.front(), plan));
  }
  plan.costs = costs;
  const std::optional<Provenance> provenance = plan.provenance;
  const std::vector<std::vector<Mark>> marks = std::exchange(plan.marks, {});
  const auto pass = [&](std::string_view name, Plan next) {
    if (options.verify) Demand(name, next);
    next.provenance = provenance;
    plan = std::move(next);
    if (observer) observer(name, plan);
  };
  if (target >= Level::kComm) {
    pass("comm", InsertCommunication(std::exchange(plan, Plan()), costs));
  }
  if (target >= Level::kComponent && costs.components()) {
    pass("component", ExpandComponents(plan, costs, options.overlap, options.limits));
  }
  if (target >= Level::kBuffer) {
    pass("buffer", AssignBuffers(plan, costs));
  }
  if (target <= Level::kComm) plan.marks = MarksIn(plan, marks);
  return plan;
}

}  // namespace contraflow
