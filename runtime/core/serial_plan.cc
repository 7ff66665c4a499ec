#include "runtime/core/serial_plan.h"

#include <algorithm>
#include <vector>

#include "compiler/plan/lanes.h"
#include "runtime/core/serial_order.h"
#include "runtime/core/walk.h"

namespace contraflow {
namespace {

/// Hands an activation or a gradient from the stage that makes it to the next one on the route.
void HandOn(Op send, Op receive, int from, int to, int microbatch, const Route& route,
            Plan* serial) {
  const int sender = route.ranks[static_cast<size_t>(from)],
            receiver = route.ranks[static_cast<size_t>(to)];
  if (sender == receiver) return;
  serial->program(sender).push_back(Message(send, from, microbatch, receiver));
  serial->program(receiver).push_back(Message(receive, to, microbatch, sender));
}

/// The components of all chunks, each instruction after the one before it.
Program WithComponents(const ComponentWalk& walk, const Program& chunks) {
  Program program;
  const auto add = [&](Instruction i) {
    i.lane = LaneOf(i.op);
    if (!program.empty() && (i.lane != program.back().lane || i.peer != program.back().peer)) {
      AddEvent(static_cast<int32_t>(program.size()) - 1, &i);
    }
    program.push_back(i);
  };
  for (const Instruction& i : chunks) {
    WorkOf(i.op) == Work::kCompute ? walk.Each(i, add) : add(i);
  }
  return program;
}

}  // namespace

Plan SerialPlan(const Plan& plan) {
  Plan serial = FrameOf(plan);
  serial.level = Level::kComm;
  const std::vector<int> route_of = RouteOfMicrobatch(plan);
  const SerialOrder order(plan);
  for (const SerialOrder::Pass& pass : order.passes()) {
    const int m = pass.microbatch, last = plan.stages - 1;
    const Route& route = plan.routes[static_cast<size_t>(route_of[static_cast<size_t>(m)])];
    const auto add = [&](Op op, int s) {
      serial.program(route.ranks[static_cast<size_t>(s)]).push_back(CellOp(op, s, m));
    };
    for (int s = 0; s <= last && !pass.again; ++s) {
      add(Op::F, s);
      if (s < last) HandOn(Op::SEND_F, Op::RECV_F, s, s + 1, m, route, &serial);
    }
    for (int s = last; s >= 0 && !pass.again; --s) {
      add(Op::B, s);
      if (s > 0) HandOn(Op::SEND_B, Op::RECV_B, s, s - 1, m, route, &serial);
    }
    for (const int s : pass.stages) add(Op::W, s);
  }
  // All ranks in one order of the stages, so that none waits for another in a circle.
  for (int s = 0; s < plan.stages; ++s) {
    for (int rank = 0; rank < plan.ranks; ++rank) {
      for (const Instruction& i : plan.program(rank)) {
        if (OperandsOf(i.op) == Operands::kStage && i.stage == s) {
          serial.program(rank).push_back(StageOp(i.op, s));
        }
      }
    }
  }
  if (plan.layers == 0) return serial;
  serial.level = Level::kComponent;
  serial.layers = plan.layers;
  serial.stage_layers = plan.stage_layers;
  std::vector<int> layers;
  for (int s = 0; s < plan.stages; ++s) layers.push_back(plan.LayersOf(s));
  const ComponentWalk walk(serial, layers, plan.schedule);
  for (Program& program : serial.programs) program = WithComponents(walk, program);
  return serial;
}

}  // namespace contraflow
