#include "tests/support/knife.h"

namespace contraflow {
namespace {

Operator Drop(Wanted wanted) {
  return [wanted](Knife* knife) {
    const auto place = knife->Pick(wanted);
    if (place) knife->Drop(*place);
    return place.has_value();
  };
}

Operator Duplicate(Wanted wanted) {
  return [wanted](Knife* knife) {
    const auto place = knife->Pick(wanted);
    if (!place) return false;
    const int size = static_cast<int>(knife->ProgramOf(*place).size());
    const Instruction copy = knife->At(*place);
    knife->Insert(place->rank, static_cast<size_t>(knife->Draw(0, size)), copy);
    return true;
  };
}

bool SwapNeighbours(Knife* knife) {
  const auto place = knife->Pick(IsAny);
  if (!place || place->index == 0) return false;
  std::swap(knife->At(*place), knife->At({place->rank, place->index - 1}));
  return true;
}

bool SwapAny(Knife* knife) {
  const auto a = knife->Pick(IsAny);
  if (!a) return false;
  const int size = static_cast<int>(knife->ProgramOf(*a).size());
  const Place b{a->rank, static_cast<size_t>(knife->Draw(0, size - 1))};
  if (knife->At(*a) == knife->At(b)) return false;
  knife->Note(b);
  std::swap(knife->At(*a), knife->At(b));
  return true;
}

bool Move(Knife* knife) {
  const auto place = knife->Pick(IsAny);
  if (!place) return false;
  const auto to =
      static_cast<size_t>(knife->Draw(0, static_cast<int>(knife->ProgramOf(*place).size()) - 1));
  if (to == place->index) return false;
  knife->Move(*place, to);
  return true;
}

bool Retarget(Knife* knife) {
  const auto place = knife->Pick(IsTransfer);
  return place && knife->Change(&knife->At(*place).peer, knife->plan().ranks);
}

Operator ChangeStage(Wanted wanted) {
  return [wanted](Knife* knife) {
    const auto place = knife->Pick(wanted);
    return place && knife->Change(&knife->At(*place).stage, knife->plan().stages);
  };
}

Operator ChangeMicrobatch(Wanted wanted) {
  return [wanted](Knife* knife) {
    const auto place = knife->Pick(wanted);
    return place && knife->Change(&knife->At(*place).microbatch, knife->plan().microbatches);
  };
}

/// An FB's backward becomes that of another micro-batch.
bool ChangeBackMicrobatch(Knife* knife) {
  const auto place = knife->Pick([](const Instruction& i) { return i.op == Op::FB; });
  return place && knife->Change(&knife->At(*place).back_microbatch, knife->plan().microbatches);
}

/// An FB takes its own forward's backward, whose separate instruction or pair takes the other's.
bool PairWithItself(Knife* knife) {
  const auto place = knife->Pick([](const Instruction& i) { return i.op == Op::FB; });
  if (!place) return false;
  Instruction& fb = knife->At(*place);
  fb.back_stage = fb.stage;
  fb.back_microbatch = fb.microbatch;
  return true;
}

Operator ChangeOp(Wanted wanted, std::vector<Op> ops) {
  return [wanted, ops](Knife* knife) {
    const auto place =
        knife->Pick([&](const Instruction& i) { return wanted(i) && i.op != Op::FB; });
    if (!place) return false;
    Instruction& i = knife->At(*place);
    const Op op = ops[static_cast<size_t>(knife->Draw(0, static_cast<int>(ops.size()) - 1))];
    if (op == i.op) return false;
    i.op = op;
    return true;
  };
}

Operator MoveToOtherRank(Wanted wanted) {
  return [wanted](Knife* knife) {
    const auto place = knife->Pick(wanted);
    int rank = place ? static_cast<int>(place->rank) : 0;
    if (!place || !knife->Change(&rank, knife->plan().ranks)) return false;
    const Instruction i = knife->At(*place);
    knife->Drop(*place);
    const auto to = static_cast<size_t>(rank);
    const int size = static_cast<int>(knife->plan().programs[to].size());
    knife->Insert(to, static_cast<size_t>(knife->Draw(0, size)), i);
    return true;
  };
}

}  // namespace

std::vector<MutantOperator> GeneralOperators() {
  const std::vector<std::string> any_order = {"order",    "weight-order", "message", "producer",
                                              "consumer", "reduce",       "step",    "deadlock"};
  const std::vector<Op> compute = {Op::F, Op::B, Op::W, Op::BW};
  const std::vector<Op> messages = {Op::SEND_F, Op::RECV_F, Op::SEND_B, Op::RECV_B};
  return {
      {"drop compute", Drop(IsCompute), {"complete"}},
      {"drop SEND", Drop(Sends), {"message"}},
      {"drop RECV", Drop(Receives), {"message"}},
      {"drop REDUCE", Drop(IsReduce), {"reduce"}},
      {"drop STEP", Drop(IsStep), {"step"}},
      {"duplicate compute", Duplicate(IsCompute), {"complete"}},
      {"duplicate message", Duplicate(IsTransfer), {"message"}},
      {"duplicate REDUCE", Duplicate(IsReduce), {"reduce"}},
      {"duplicate STEP", Duplicate(IsStep), {"step"}},
      {"swap neighbours", SwapNeighbours, any_order, true},
      {"swap any two", SwapAny, any_order, true},
      {"move", Move, any_order, true},
      {"retarget peer", Retarget, {"message"}},
      {"change stage of compute", ChangeStage(IsCompute), {"owner", "complete"}},
      {"change stage of message", ChangeStage(IsTransfer), {"message"}},
      {"change stage of REDUCE", ChangeStage(IsReduce), {"owner", "reduce"}},
      {"change stage of STEP", ChangeStage(IsStep), {"owner", "step"}},
      {"change micro-batch of compute", ChangeMicrobatch(IsCompute), {"owner", "complete"}},
      {"change micro-batch of message", ChangeMicrobatch(IsTransfer), {"message"}},
      {"change micro-batch of FB's backward", ChangeBackMicrobatch, {"owner", "complete"}},
      {"pair FB with itself", PairWithItself, {"order"}},
      {"change operation of compute", ChangeOp(IsCompute, compute), {"complete"}},
      {"change operation of message", ChangeOp(IsTransfer, messages), {"message"}},
      {"change REDUCE to STEP", ChangeOp(IsReduce, {Op::STEP}), {"reduce", "step"}},
      {"change STEP to REDUCE", ChangeOp(IsStep, {Op::REDUCE}), {"reduce", "step"}},
      {"move compute to other rank", MoveToOtherRank(IsCompute), {"owner"}},
      {"move message to other rank", MoveToOtherRank(IsTransfer), {"message"}},
      {"move REDUCE to other rank", MoveToOtherRank(IsReduce), {"owner", "reduce"}},
      {"move STEP to other rank", MoveToOtherRank(IsStep), {"owner", "step"}},
  };
}

}  // namespace contraflow
