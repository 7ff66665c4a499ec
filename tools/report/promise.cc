#include "tools/report/promise.h"

namespace contraflow {
namespace {

constexpr std::string_view kWords[] = {"with one queue per rank", "with a queue per pair of ranks",
                                       "with a queue per directed edge",
                                       "with unlimited buffering"};

/// The stricter neighbour of one that is not the strictest.
Semantics StricterThan(Semantics semantics) {
  return kEverySemantics[static_cast<size_t>(semantics) - 1];
}

}  // namespace

std::string_view QueuesOf(Semantics semantics) { return kWords[static_cast<size_t>(semantics)]; }

Promise PromiseOf(const Plan& plan) {
  Promise promise;
  // Gloo has a queue for each directed edge, and a WAIT_SEND there waits for the receiver: nothing
  // of PyTorch's buffers without limit.
  for (const Semantics semantics : {Semantics::kRank, Semantics::kPair, Semantics::kEdge}) {
    promise.findings = Verify(plan, semantics);
    if (promise.findings.empty()) {
      promise.needs = semantics;
      return promise;
    }
    const Finding& last = promise.findings.back();
    promise.circle = last.message.substr(0, last.message.find("; change the order"));
    if (plan.level == Level::kCompute) break;
  }
  promise.circle.clear();
  return promise;
}

Plan WithPromise(Plan plan, const CostModel& costs) {
  CheckCosts(costs, plan.stages, plan.microbatches);
  plan.costs = costs;
  plan.semantics = PromiseOf(plan).needs.value_or(Semantics::kEdge);
  return plan;
}

std::string CircleText(const Promise& promise) {
  return std::string(QueuesOf(StricterThan(*promise.needs))) +
         " these wait in a circle: " + promise.circle;
}

}  // namespace contraflow
