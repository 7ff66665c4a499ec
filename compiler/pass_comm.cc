#include "compiler/error.h"
#include "compiler/passes.h"

namespace contraflow {
namespace {

/// How many instructions each rank will have: large plans are grown once.
std::vector<size_t> ProgramSizes(const std::vector<Event>& order,
                                 const std::vector<std::vector<int>>& holders, size_t ranks) {
  std::vector<size_t> sizes(ranks, 0);
  for (const Event& event : order) {
    if (event.rank >= 0) ++sizes[static_cast<size_t>(event.rank)];
    if (event.kind == Event::Kind::kTransfer) ++sizes[static_cast<size_t>(event.peer)];
    if (event.kind == Event::Kind::kReduce) {
      for (const int holder : holders[static_cast<size_t>(event.stage)]) {
        ++sizes[static_cast<size_t>(holder)];
      }
    }
  }
  return sizes;
}

}  // namespace

Plan InsertCommunication(const Plan& plan, const std::vector<Event>& order) {
  CF_ASSERT(plan.level == Level::kCompute);
  const std::vector<std::vector<int>> holders = HoldersOfStage(plan);
  Plan result;
  result.schedule = plan.schedule;
  result.level = Level::kComm;
  result.ranks = plan.ranks;
  result.stages = plan.stages;
  result.microbatches = plan.microbatches;
  result.data_parallel = plan.data_parallel;
  result.routes = plan.routes;
  result.costs = plan.costs;
  result.programs.resize(plan.programs.size());
  const std::vector<size_t> sizes = ProgramSizes(order, holders, plan.programs.size());
  for (size_t r = 0; r < sizes.size(); ++r) result.programs[r].reserve(sizes[r]);
  const auto program = [&result](int rank) -> Program& {
    return result.programs[static_cast<size_t>(rank)];
  };
  for (const Event& event : order) {
    switch (event.kind) {
      case Event::Kind::kCompute:
        program(event.rank)
            .push_back(
                plan.programs[static_cast<size_t>(event.rank)][static_cast<size_t>(event.index)]);
        break;
      case Event::Kind::kTransfer: {
        const bool forward = event.op == Op::SEND_F;
        program(event.rank).push_back(Message(event.op, event.stage, event.microbatch, event.peer));
        program(event.peer)
            .push_back(Message(forward ? Op::RECV_F : Op::RECV_B, event.stage + (forward ? 1 : -1),
                               event.microbatch, event.rank));
        break;
      }
      case Event::Kind::kReduce:
        for (const int holder : holders[static_cast<size_t>(event.stage)]) {
          program(holder).push_back(StageOp(Op::REDUCE, event.stage));
        }
        break;
      case Event::Kind::kStep:
        program(event.rank).push_back(StageOp(Op::STEP, event.stage));
        break;
    }
  }
  return result;
}

}  // namespace contraflow
