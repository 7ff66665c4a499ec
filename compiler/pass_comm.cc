#include "compiler/error.h"
#include "compiler/passes.h"

namespace contraflow {

Plan InsertCommunication(const Plan& plan, const std::vector<Event>& order) {
  CF_ASSERT(plan.level == Level::kCompute);
  Plan result = plan;
  result.level = Level::kComm;
  for (Program& program : result.programs) program.clear();
  const std::vector<std::vector<int>> holders = HoldersOfStage(plan);
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
