#include "compiler/simulate/waits.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace contraflow {
namespace {

/// RECV names the stage that takes, SEND the one that makes; messages are known by the latter.
int SenderOf(const Instruction& message) {
  if (IsSend(message.op)) return message.stage;
  return message.stage + (message.op == Op::RECV_F ? -1 : 1);
}

}  // namespace

Waits::Waits(const Plan& plan, const CostModel& costs, const Timeline& timeline)
    : plan_(plan),
      comm_(costs.comm),
      timeline_(timeline),
      lanes_(plan.level > Level::kComm),
      route_of_(RouteOfMicrobatch(plan)),
      forward_(plan.stages, plan.microbatches, -1),
      backward_(forward_),
      send_f_(forward_),
      send_b_(forward_),
      recv_f_(forward_),
      recv_b_(forward_),
      weights_(static_cast<size_t>(plan.stages)),
      reduces_(static_cast<size_t>(plan.stages)) {
  if (OffloadedCells(plan).any()) {
    reload_ = forward_;
    offload_before_.resize(plan.programs.size());
    compute_before_.resize(plan.programs.size());
  }
  lane_before_.resize(plan.programs.size());
  const bool queued = comm_.queued() && !lanes_;
  if (comm_.exclusive()) edge_before_.resize(plan.programs.size());
  if (queued) queue_before_.resize(plan.programs.size());
  for (int r = 0; r < plan.ranks; ++r) {
    Locate(r);
    Chain(r);
    if (comm_.exclusive()) QueueOnEdges(r);
    if (queued) Queue(r);
  }
}

/// An unsound plan may have cells on other ranks, too: nothing waits for those.
bool Waits::Runs(int rank, int stage, int microbatch) const {
  return Owner(stage, microbatch) == rank;
}

void Waits::Locate(int rank) {
  for (InstructionRef at{rank, 0}; at.index < static_cast<int>(plan_.program(rank).size());
       ++at.index) {
    const Instruction& i = At(at);
    if (IsMessage(i.op)) {
      const int sender = SenderOf(i);
      if (!Runs(rank, i.stage, i.microbatch) || sender < 0 || sender >= plan_.stages) continue;
      const bool forward = i.op == Op::SEND_F || i.op == Op::RECV_F;
      Grid<int>& messages =
          IsSend(i.op) ? (forward ? send_f_ : send_b_) : (forward ? recv_f_ : recv_b_);
      messages(sender, i.microbatch) = at.index;
      continue;
    }
    const auto back = [&] { return Runs(rank, BackStage(i), BackMicrobatch(i)); };
    if (i.op == Op::RELOAD && back()) reload_(i.stage, i.microbatch) = at.index;
    if (i.op == Op::REDUCE) reduces_[static_cast<size_t>(i.stage)].push_back(at);
    if (HasForward(i.op) && Runs(rank, i.stage, i.microbatch)) {
      forward_(i.stage, i.microbatch) = at.index;
    }
    if (HasBackward(i.op) && back()) backward_(BackStage(i), BackMicrobatch(i)) = at.index;
    if (HasWeight(i.op)) {
      std::vector<InstructionRef>& last = weights_[static_cast<size_t>(BackStage(i))];
      if (last.empty() || last.back().rank != rank) last.push_back(at);
      last.back() = at;
    }
  }
}

void Waits::Chain(int rank) {
  const Program& program = plan_.program(rank);
  const auto r = static_cast<size_t>(rank);
  lane_before_[r].resize(program.size(), -1);
  std::array<int, static_cast<size_t>(kLastLane) + 1> last;
  last.fill(-1);
  const auto last_of = [&](Lane lane) -> int& { return last[static_cast<size_t>(lane)]; };
  for (size_t i = 0; i < program.size(); ++i) {
    const Op op = program[i].op;
    if (!reload_.empty()) {
      offload_before_[r].push_back(last_of(Lane::kOffload));
      compute_before_[r].push_back(last_of(Lane::kCompute));
    }
    if (IsMessage(op)) continue;
    // A REDUCE that blocks its rank is on the compute lane as well.
    const bool reduce = op == Op::REDUCE;
    if (reduce && !comm_.reduce_blocks) continue;
    int& before = last_of(reduce ? Lane::kCompute : LaneOf(op));
    lane_before_[r][i] = before;
    before = static_cast<int>(i);
  }
}

void Waits::QueueOnEdges(int rank) {
  const Program& program = plan_.program(rank);
  std::vector<std::tuple<int, Time, int>> sends;
  for (InstructionRef at{rank, 0}; at.index < static_cast<int>(program.size()); ++at.index) {
    if (IsSend(At(at).op)) sends.emplace_back(At(at).peer, SpanOf(at).start, at.index);
  }
  std::sort(sends.begin(), sends.end());
  std::vector<int>& before = edge_before_[static_cast<size_t>(rank)];
  before.resize(program.size(), -1);
  for (size_t k = 1; k < sends.size(); ++k) {
    const auto& [peer, start, index] = sends[k];
    if (std::get<0>(sends[k - 1]) == peer) {
      before[static_cast<size_t>(index)] = std::get<2>(sends[k - 1]);
    }
  }
}

void Waits::Queue(int rank) {
  struct Place {
    int before = -1, last = -1;  // that passed last of the entry before and of this one
    int group = -1;
  };
  const Program& program = plan_.program(rank);
  std::map<int, Place> queues;  // by peer
  for (InstructionRef at{rank, 0}; at.index < static_cast<int>(program.size()); ++at.index) {
    const Instruction& i = At(at);
    int before = -1;
    if (IsMessage(i.op)) {
      Place& queue = queues[comm_.queues == Semantics::kRank ? 0 : i.peer];
      if (i.group < 0 || i.group != queue.group) queue.before = std::exchange(queue.last, -1);
      queue.group = i.group;
      before = queue.before;
      if (queue.last < 0 || SpanOf(at).end > SpanOf({rank, queue.last}).end) queue.last = at.index;
    }
    queue_before_[static_cast<size_t>(rank)].push_back(before);
  }
}

std::optional<Wait> Waits::Last(InstructionRef at) const {
  std::optional<Wait> last = OnLane(at);
  for (const Wait& wait : Others(at)) {
    if (!last || wait.until > last->until) last = wait;
  }
  return last;
}

std::vector<Wait> Waits::Back(InstructionRef at) const {
  std::vector<Wait> chain;
  // In an unsound plan, instructions of no time may wait in a circle.
  std::set<std::pair<int, int>> passed = {{at.rank, at.index}};
  // A RECV that is posted at 0 still waits.
  while (IsRecv(At(at).op) || SpanOf(at).start > 0) {
    const std::optional<Wait> wait = Last(at);
    if (!wait || !passed.emplace(wait->on.rank, wait->on.index).second) break;
    chain.push_back(*wait);
    at = wait->on;
  }
  return chain;
}

std::optional<Wait> Waits::OnLane(InstructionRef at) const {
  const int before = lane_before_[static_cast<size_t>(at.rank)][static_cast<size_t>(at.index)];
  if (before < 0) return std::nullopt;
  const InstructionRef on{at.rank, before};
  return Wait{on, SpanOf(on).end};
}

std::vector<Wait> Waits::Others(InstructionRef at) const {
  std::vector<Wait> waits;
  const Op op = At(at).op;
  if (op == Op::REDUCE) {
    OfReduce(At(at).stage, &waits);
  } else if (IsSend(op)) {
    OfSend(at, &waits);
  } else if (IsRecv(op)) {
    AddSent(At(at), &waits);
  } else if (lanes_) {
    After(at, &waits);
  } else {
    OfCompute(at, &waits);
  }
  return waits;
}

void Waits::OfCompute(InstructionRef at, std::vector<Wait>* waits) const {
  const Instruction& i = At(at);
  const auto before = [&](const Indices& indices) {
    if (indices.empty()) return;
    Add(at.rank, indices[static_cast<size_t>(at.rank)][static_cast<size_t>(at.index)], waits);
  };
  if (i.op == Op::OFFLOAD) return AddCell(forward_, i.stage, i.microbatch, waits);
  if (i.op == Op::RELOAD) {
    before(compute_before_);
    return before(offload_before_);
  }
  if (i.op == Op::STEP) {
    const auto s = static_cast<size_t>(i.stage);
    for (const InstructionRef& ref : reduces_[s].empty() ? weights_[s] : reduces_[s]) {
      if (reduces_[s].empty() || ref.rank == at.rank) Add(ref.rank, ref.index, waits);
    }
    return;
  }
  if (HasForward(i.op)) {
    AddOutput(Op::SEND_F, at.rank, i.stage - 1, i.microbatch, waits);
  }
  // An instruction that takes memory begins when all before it that leave are gone.
  if (HasForward(i.op) || i.op == Op::R) before(offload_before_);
  if (HasBackward(i.op)) {
    const int stage = BackStage(i), m = BackMicrobatch(i);
    AddOutput(Op::SEND_B, at.rank, stage + 1, m, waits);
    AddCell(forward_, stage, m, waits);
    if (!reload_.empty()) AddCell(reload_, stage, m, waits);
  }
  if (i.op == Op::W) AddCell(backward_, i.stage, i.microbatch, waits);
  if (i.op == Op::R) AddCell(forward_, i.stage, i.microbatch, waits);
}

void Waits::OfSend(InstructionRef at, std::vector<Wait>* waits) const {
  const Instruction& send = At(at);
  const bool forward = send.op == Op::SEND_F;
  if (lanes_) {
    // Under way when both sides have posted it.
    After(at, waits);
    const int receive = (forward ? recv_f_ : recv_b_)(send.stage, send.microbatch);
    const int receiver = Owner(send.stage + (forward ? 1 : -1), send.microbatch);
    if (receive >= 0) After({receiver, receive}, waits);
  } else {
    AddCell(forward ? forward_ : backward_, send.stage, send.microbatch, waits);
  }
  const auto queue = [&](int rank, int index) {
    if (index < 0) return;
    Add(rank, queue_before_[static_cast<size_t>(rank)][static_cast<size_t>(index)], waits);
  };
  if (!queue_before_.empty()) {
    queue(at.rank, at.index);
    queue(send.peer, (forward ? recv_f_ : recv_b_)(send.stage, send.microbatch));
  }
  if (edge_before_.empty()) return;
  const int before = edge_before_[static_cast<size_t>(at.rank)][static_cast<size_t>(at.index)];
  if (before < 0) return;
  const InstructionRef on{at.rank, before};
  waits->push_back({on, SpanOf(on).start + comm_.SizeOf(At(on)).occupancy});
}

std::optional<Wait> Waits::Made(InstructionRef at) const {
  if (queue_before_.empty() || !IsSend(At(at).op)) return std::nullopt;
  std::vector<Wait> made;
  const Grid<int>& cells = At(at).op == Op::SEND_F ? forward_ : backward_;
  AddCell(cells, At(at).stage, At(at).microbatch, &made);
  if (made.empty()) return std::nullopt;
  return made.front();
}

void Waits::OfReduce(int stage, std::vector<Wait>* waits) const {
  const auto s = static_cast<size_t>(stage);
  for (const InstructionRef& reduce : reduces_[s]) {
    if (lanes_) After(reduce, waits);
    if (const std::optional<Wait> lane = OnLane(reduce)) waits->push_back(*lane);
  }
  if (lanes_) return;
  for (const InstructionRef& weight : weights_[s]) Add(weight.rank, weight.index, waits);
}

void Waits::After(InstructionRef at, std::vector<Wait>* waits) const {
  const Instruction& i = At(at);
  for (size_t k = 0; k < i.after_count; ++k) {
    const Instruction& before = At({at.rank, i.after[k]});
    if (IsRecv(before.op)) {
      AddSent(before, waits);
    } else {
      Add(at.rank, i.after[k], waits);
    }
  }
}

void Waits::AddSent(const Instruction& recv, std::vector<Wait>* waits) const {
  const int sender = SenderOf(recv);
  if (sender < 0 || sender >= plan_.stages) return;
  AddCell(recv.op == Op::RECV_F ? send_f_ : send_b_, sender, recv.microbatch, waits);
}

void Waits::Add(int rank, int index, std::vector<Wait>* waits) const {
  if (index < 0) return;
  const InstructionRef on{rank, index};
  waits->push_back({on, SpanOf(on).end});
}

void Waits::AddCell(const Grid<int>& cells, int stage, int microbatch,
                    std::vector<Wait>* waits) const {
  Add(Owner(stage, microbatch), cells(stage, microbatch), waits);
}

/// Adds the output of a neighbouring stage for a micro-batch: its message or, on the same rank, its
/// cell.
void Waits::AddOutput(Op send, int rank, int stage, int microbatch,
                      std::vector<Wait>* waits) const {
  if (stage < 0 || stage >= plan_.stages) return;
  const bool forward = send == Op::SEND_F;
  const int owner = Owner(stage, microbatch);
  const bool cell = owner == rank || plan_.level == Level::kCompute;
  const Grid<int>& made = cell ? (forward ? forward_ : backward_) : (forward ? send_f_ : send_b_);
  AddCell(made, stage, microbatch, waits);
}

/// -1 of a stage that there is not.
int Waits::Owner(int stage, int microbatch) const {
  if (stage < 0 || stage >= plan_.stages) return -1;
  const auto route = static_cast<size_t>(route_of_[static_cast<size_t>(microbatch)]);
  return plan_.routes[route].ranks[static_cast<size_t>(stage)];
}

}  // namespace contraflow
