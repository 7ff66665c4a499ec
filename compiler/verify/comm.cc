// Checks of level comm: every message that the routes demand, once, with the right peer, in one
// order on both sides, after its producer and before its consumer; reductions and steps.

#include <algorithm>

#include "compiler/verify/checks.h"

namespace contraflow::check {
namespace {

Op PartnerOp(Op op) {
  return static_cast<Op>(static_cast<int>(Op::SEND_F) + (static_cast<int>(MessageKind(op)) ^ 1));
}

/// Walks the programs and notes where messages, reductions and steps stand.
class MessagePlacer : Placing {
 public:
  using Placing::Placing;

  void Run() {
    PlaceAll([this](const Instruction& i) {
      if (IsMessage(i.op)) {
        PlaceMessage(i);
      } else if (i.op == Op::REDUCE || i.op == Op::STEP) {
        PlaceStageOp(i);
      }
    });
  }

 private:
  void PlaceMessage(const Instruction& i) {
    const int other = OtherStage(i);
    if (other < 0 || other >= plan_.stages) {
      return Add(Check::kMessage, i,
                 " has no other side: stage " + std::to_string(i.stage) + " is the " +
                     (other < 0 ? "first" : "last") + "; drop it");
    }
    int32_t& place = tables_.messages[tables_.At(i.stage, i.microbatch)][MessageKind(i.op)];
    const int owner = tables_.Owner(i.stage, i.microbatch);
    const int peer = tables_.Owner(other, i.microbatch);
    if (owner == peer) {
      return Add(Check::kMessage, i,
                 ": stages " + std::to_string(i.stage) + " and " + std::to_string(other) +
                     " of micro-batch " + std::to_string(i.microbatch) + " are both on rank " +
                     std::to_string(owner) + ", nothing is sent between them; drop it");
    }
    if (owner != rank_ || i.peer != peer) {
      if (place == kMissing) place = kMisplaced;
      Instruction right = i;
      right.peer = peer;
      return Add(Check::kMessage, i,
                 " has the wrong " + std::string(owner != rank_ ? "rank" : "peer") +
                     ": the route of micro-batch " + std::to_string(i.microbatch) + " wants " +
                     ToString(right) + " on rank " + std::to_string(owner));
    }
    if (place >= 0) {
      return Add(Check::kMessage, i, " repeats " + tables_.Place(rank_, place) + "; drop one");
    }
    place = index_;
    CheckSide(i);
  }

  /// The message against the work on its own rank.
  void CheckSide(const Instruction& i) {
    const int32_t at = tables_.Side(i);
    if (at < 0) return;
    if (IsSend(i.op) && index_ < at) {
      Add(Check::kProducer, i,
          " comes before its producer at " + tables_.Place(rank_, at) + "; move it after");
    } else if (!IsSend(i.op) && index_ > at) {
      Add(Check::kConsumer, i,
          " comes after its consumer at " + tables_.Place(rank_, at) + "; move it before");
    }
  }

  void PlaceStageOp(const Instruction& i) {
    const int32_t found = tables_.FindCopy(i.stage, rank_);
    if (found < 0) {
      return Add(Check::kOwner, i,
                 " is on rank " + std::to_string(rank_) + ", which has no copy of stage " +
                     std::to_string(i.stage) + "; drop it");
    }
    Copy& copy = tables_.copies[static_cast<size_t>(found)];
    int32_t& place = i.op == Op::REDUCE ? copy.reduce : copy.step;
    if (place >= 0) {
      return Add(i.op == Op::REDUCE ? Check::kReduce : Check::kStep, i,
                 " repeats " + tables_.Place(rank_, place) + "; drop one");
    }
    place = index_;
  }
};

void AddMissing(const Tables& tables, Op op, int stage, int other, int m, Findings* findings) {
  const int rank = tables.Owner(stage, m);
  const Op partner = PartnerOp(op);
  const int peer = tables.Owner(other, m);
  const int32_t there = tables.messages[tables.At(other, m)][MessageKind(partner)];
  const std::string text = ToString(Message(op, stage, m, peer));
  std::string why = "rank " + std::to_string(peer);
  if (there >= 0) {
    why += " waits for it at " + tables.Place(peer, there);
  } else {
    why += IsSend(op) ? " needs it for stage " : " makes it in stage ";
    why += std::to_string(other);
  }
  findings->Add(Check::kMessage, rank, -1, "no " + text + "; " + why);
}

/// Every boundary of a route between two ranks, each micro-batch, both directions.
void CheckMissing(const Tables& tables, Findings* findings) {
  for (int s = 0; s + 1 < tables.plan.stages; ++s) {
    for (int m = 0; m < tables.plan.microbatches; ++m) {
      if (tables.Owner(s, m) == tables.Owner(s + 1, m)) continue;
      const ChunkMessages& near = tables.messages[tables.At(s, m)];
      const ChunkMessages& far = tables.messages[tables.At(s + 1, m)];
      const auto demand = [&](Op op, const ChunkMessages& side, int stage, int other) {
        if (side[MessageKind(op)] == kMissing) AddMissing(tables, op, stage, other, m, findings);
      };
      demand(Op::SEND_F, near, s, s + 1);
      demand(Op::RECV_F, far, s + 1, s);
      demand(Op::SEND_B, far, s + 1, s);
      demand(Op::RECV_B, near, s, s + 1);
    }
  }
}

/// The k-th SEND of a directed edge is the k-th RECV. If everything is matched one to one, that is:
/// the partners of the SENDs of an edge ascend.
void CheckEdgeOrder(const Tables& tables, Findings* findings) {
  struct Edge {
    int from = -1;         // the sender it was last used by
    int32_t send = -1;     // its latest SEND
    int32_t partner = -1;  // and where that is received
  };
  const Plan& plan = tables.plan;
  std::vector<Edge> edges(static_cast<size_t>(plan.ranks));  // of one sender, by receiver
  ForEachInstruction(plan, [&](int r, int32_t index, const Instruction& i) {
    if (!IsSend(i.op)) return;
    const int32_t partner = Partner(tables, r, index);
    if (partner < 0) return;
    Edge& edge = edges[static_cast<size_t>(i.peer)];
    if (edge.from == r && partner < edge.partner) {
      findings->Add(Check::kMessage, r, index,
                    ToString(i) + " leaves after " + tables.Place(r, edge.send) + ", but rank " +
                        std::to_string(i.peer) + " receives it before, at " +
                        std::to_string(partner) + " and " + std::to_string(edge.partner) +
                        "; both sides of an edge must have one order");
    } else {
      edge = {r, index, partner};
    }
  });
}

/// Messages of one group are neighbours: no group begins twice on a rank.
void CheckGroups(const Plan& plan, Findings* findings) {
  struct Run {
    int group;
    int32_t begin, end;
  };
  std::vector<Run> runs;
  for (int r = 0; r < plan.ranks; ++r) {
    const Program& program = plan.program(r);
    runs.clear();
    for (size_t at = 0; at < program.size(); ++at) {
      const int group = IsMessage(program[at].op) ? program[at].group : -1;
      if (group < 0) continue;
      const auto index = static_cast<int32_t>(at);
      if (!runs.empty() && runs.back().group == group && runs.back().end == index) {
        ++runs.back().end;
      } else {
        runs.push_back({group, index, index + 1});
      }
    }
    std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) {
      return a.group != b.group ? a.group < b.group : a.begin < b.begin;
    });
    for (size_t k = 1; k < runs.size(); ++k) {
      if (runs[k].group != runs[k - 1].group) continue;
      findings->Add(Check::kGroup, r, runs[k].begin,
                    ToString(program[static_cast<size_t>(runs[k].begin)]) + " begins group " +
                        std::to_string(runs[k].group) + " again, which ended at " +
                        std::to_string(runs[k - 1].end - 1) +
                        "; the messages of a group must be neighbours");
    }
  }
}

/// Every copy is stepped once, after all its weight gradients, and where there are several copies
/// after their sum.
void CheckCopies(const Tables& tables, Findings* findings) {
  for (const Copy& copy : tables.copies) {
    const std::string stage = "s" + std::to_string(copy.stage);
    const auto behind = [&](Check check, int32_t at, int32_t input) {
      if (at < 0 || input < 0 || at > input) return;
      findings->Add(check, copy.rank, at,
                    ToString(tables.InstructionAt(copy.rank, at)) + " stands before " +
                        tables.Place(copy.rank, input) + ", which it needs; move it after");
    };
    const int holders = tables.Holders(copy.stage);
    const bool alone = !NeedsReduce(tables.plan, static_cast<size_t>(holders));
    if (alone && copy.reduce >= 0) {
      findings->Add(Check::kReduce, copy.rank, copy.reduce,
                    "REDUCE " + stage + ": the stage has a single copy, nothing to sum; drop it");
    } else if (!alone && copy.reduce < 0) {
      findings->Add(
          Check::kReduce, copy.rank, -1,
          "no REDUCE " + stage + "; the stage has " +
              std::to_string(int64_t{holders} * tables.plan.data_parallel *
                             tables.plan.expert_parallel) +
              " copies, each rank that holds one must run it once after its last weight gradient");
    }
    behind(Check::kReduce, copy.reduce, copy.last_weight);
    if (copy.step < 0) {
      findings->Add(Check::kStep, copy.rank, -1,
                    "no STEP " + stage + "; each rank that holds the stage must run it once");
    }
    behind(Check::kStep, copy.step, copy.last_weight);
    behind(Check::kStep, copy.step, copy.reduce);
  }
}

}  // namespace

int32_t Partner(const Tables& tables, int rank, int32_t index) {
  const Instruction& i = tables.InstructionAt(rank, index);
  const int other = OtherStage(i);
  if (other < 0 || other >= tables.plan.stages) return kMissing;
  // Only the one in the table of repeated or misplaced messages has a partner.
  const size_t own = tables.At(i.stage, i.microbatch);
  if (tables.messages[own][MessageKind(i.op)] != index ||
      tables.Owner(i.stage, i.microbatch) != rank) {
    return kMissing;
  }
  return tables.messages[tables.At(other, i.microbatch)][MessageKind(PartnerOp(i.op))];
}

void CheckComm(Tables* tables, Findings* findings) {
  ChunkMessages none;
  none.fill(kMissing);
  tables->messages.assign(tables->At(tables->plan.stages, 0), none);
  MessagePlacer(tables, findings).Run();
  CheckMissing(*tables, findings);
  CheckEdgeOrder(*tables, findings);
  CheckGroups(tables->plan, findings);
  CheckCopies(*tables, findings);
}

}  // namespace contraflow::check
