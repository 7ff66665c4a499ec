#include <algorithm>

#include "tests/support/knife.h"

namespace contraflow {
namespace {

bool SwapSends(Knife* knife) {
  const auto a = knife->Pick(Sends);
  if (!a) return false;
  const Instruction first = knife->At(*a);
  const auto b = knife->Find(a->rank, [&](const Instruction& i) {
    return Sends(i) && i.peer == first.peer && i != first;
  });
  if (!b) return false;
  knife->Note(*b);
  std::swap(knife->At(*a), knife->At(*b));
  return true;
}

/// A SEND and a RECV with the same peer, neighbours but for compute, change places on one side.
bool CrossExchange(Knife* knife) {
  const auto a = knife->Pick(IsTransfer);
  if (!a) return false;
  Program& program = knife->ProgramOf(*a);
  size_t b = a->index + 1;
  while (b < program.size() && !IsTransfer(program[b])) ++b;
  if (b == program.size()) return false;
  const Instruction first = program[a->index], second = program[b];
  if (Sends(first) == Sends(second) || first.peer != second.peer) return false;
  knife->Note({a->rank, b});
  std::swap(program[a->index], program[b]);
  return true;
}

/// Moves an instruction of the one kind right before the one of the other kind that it needs.
Operator MoveBefore(Wanted wanted, bool (*needs)(const Instruction&, const Instruction&)) {
  return [wanted, needs](Knife* knife) {
    const auto place = knife->Pick(wanted);
    if (!place) return false;
    const Instruction i = knife->At(*place);
    const auto to =
        knife->Find(place->rank, [&](const Instruction& other) { return needs(i, other); });
    if (!to || to->index >= place->index) return false;
    knife->Move(*place, to->index);
    return true;
  };
}

bool NeedsForward(const Instruction& i, const Instruction& other) {
  return HasForward(other.op) && other.stage == BackStage(i) &&
         other.microbatch == BackMicrobatch(i);
}
bool NeedsBackward(const Instruction& i, const Instruction& other) {
  return other.op == Op::B && other.stage == i.stage && other.microbatch == i.microbatch;
}
bool NeedsProducer(const Instruction& i, const Instruction& other) {
  if (i.op == Op::SEND_F) {
    return HasForward(other.op) && other.stage == i.stage && other.microbatch == i.microbatch;
  }
  return HasBackward(other.op) && BackStage(other) == i.stage &&
         BackMicrobatch(other) == i.microbatch;
}

/// Right after the compute instruction that needs it.
bool RecvTooLate(Knife* knife) {
  const auto place = knife->Pick(Receives);
  if (!place) return false;
  const Instruction i = knife->At(*place);
  const auto consumer = knife->Find(place->rank, [&](const Instruction& other) {
    return i.op == Op::RECV_F
               ? HasForward(other.op) && other.stage == i.stage && other.microbatch == i.microbatch
               : HasBackward(other.op) && BackStage(other) == i.stage &&
                     BackMicrobatch(other) == i.microbatch;
  });
  if (!consumer) return false;
  knife->Move(*place, consumer->index);
  return true;
}

/// Before the last weight gradient of its stage.
Operator StageOpTooEarly(Wanted wanted) {
  return [wanted](Knife* knife) {
    const auto place = knife->Pick(wanted);
    if (!place) return false;
    const Instruction i = knife->At(*place);
    const Program& program = knife->ProgramOf(*place);
    size_t to = place->index;
    while (to > 0 && !(HasWeight(program[to - 1].op) && BackStage(program[to - 1]) == i.stage)) {
      --to;
    }
    if (to == 0) return false;
    knife->Move(*place, static_cast<size_t>(knife->Draw(0, static_cast<int>(to) - 1)));
    return true;
  };
}

/// Two instructions of one kind and rank change places.
Operator SwapAlike(bool (*alike)(const Instruction&, const Instruction&)) {
  return [alike](Knife* knife) {
    const auto a = knife->Pick([&](const Instruction& i) { return alike(i, i); });
    if (!a) return false;
    const Instruction first = knife->At(*a);
    const auto b = knife->Find(
        a->rank, [&](const Instruction& other) { return other != first && alike(first, other); });
    if (!b) return false;
    knife->Note(*b);
    std::swap(knife->At(*a), knife->At(*b));
    return true;
  };
}

bool BothReduce(const Instruction& a, const Instruction& b) { return IsReduce(a) && IsReduce(b); }
bool BothWeights(const Instruction& a, const Instruction& b) {
  return a.op == Op::W && b.op == Op::W && a.stage == b.stage;
}

/// Neighbouring messages become one group: harmless, for nothing else happens between them.
bool GroupNeighbours(Knife* knife) {
  const auto place = knife->Pick(IsTransfer);
  if (!place) return false;
  Program& program = knife->ProgramOf(*place);
  for (size_t k = place->index; k < program.size() && IsTransfer(program[k]); ++k) {
    program[k].group = 0;
  }
  return true;
}

/// Crosses an exchange of neighbours whose messages are groups of their own, side by side.
bool CrossGroups(Knife* knife) {
  const auto a = knife->Pick(IsTransfer);
  if (!a) return false;
  Program& program = knife->ProgramOf(*a);
  const size_t b = a->index + 1;
  if (b == program.size() || !IsTransfer(program[b])) return false;
  Instruction &first = program[a->index], &second = program[b];
  if (Sends(first) == Sends(second) || first.peer != second.peer) return false;
  knife->Note({a->rank, b});
  std::swap(first, second);
  first.group = 0;
  second.group = 1;
  return true;
}

bool GroupStrangers(Knife* knife) {
  const auto a = knife->Pick(IsTransfer), b = knife->Pick(IsTransfer);
  if (!a || !b || a->rank != b->rank) return false;
  if (std::max(a->index, b->index) - std::min(a->index, b->index) < 2) return false;
  knife->At(*a).group = knife->At(*b).group = 3;
  return true;
}

/// A SEND joins a group with messages that come before its producer.
bool GroupTooEarly(Knife* knife) {
  const auto place = knife->Pick(Sends);
  if (!place) return false;
  const Instruction send = knife->At(*place);
  Program& program = knife->ProgramOf(*place);
  const auto producer = knife->Find(
      place->rank, [&](const Instruction& other) { return NeedsProducer(send, other); });
  if (!producer || producer->index == 0 || producer->index > place->index) return false;
  if (!IsTransfer(program[producer->index - 1])) return false;
  knife->Move(*place, producer->index);
  program[producer->index].group = program[producer->index - 1].group = 5;
  return true;
}

bool GroupCompute(Knife* knife) {
  const auto place = knife->Pick([](const Instruction& i) { return !IsTransfer(i); });
  if (place) knife->At(*place).group = 1;
  return place.has_value();
}

bool AddKey(Knife* knife) {
  const auto place = knife->Pick(IsAny);
  if (!place) return false;
  Instruction& i = knife->At(*place);
  switch (knife->Draw(0, 2)) {
    case 0:
      i.slot = knife->Draw(0, 3);
      break;
    case 1:
      i.lane = Lane::kCompute;
      break;
    default:
      i.after_count = 1;
      i.after[0] = 0;
  }
  return true;
}

bool AddComponent(Knife* knife) {
  const auto place = knife->Pick(IsCompute);
  if (!place) return false;
  const Instruction i = knife->At(*place);
  knife->Insert(place->rank, place->index,
                {.op = Op::ATTN_F, .layer = 0, .stage = i.stage, .microbatch = i.microbatch});
  return true;
}

/// A SEND and its RECV where both stages are on one rank.
bool SendToItself(Knife* knife) {
  const auto place = knife->Pick([&](const Instruction& i) { return HasForward(i.op); });
  if (!place) return false;
  const Instruction i = knife->At(*place);
  for (const Route& route : knife->plan().routes) {
    if (!std::ranges::count(route.microbatches, i.microbatch)) continue;
    const auto next = static_cast<size_t>(i.stage) + 1;
    if (next >= route.ranks.size() || route.ranks[next] != static_cast<int>(place->rank)) continue;
    const int rank = static_cast<int>(place->rank);
    knife->Insert(place->rank, place->index + 1,
                  Message(Op::RECV_F, i.stage + 1, i.microbatch, rank));
    knife->Insert(place->rank, place->index + 1, Message(Op::SEND_F, i.stage, i.microbatch, rank));
    return true;
  }
  return false;
}

bool Truncate(Knife* knife) {
  const auto place = knife->Pick(IsAny);
  if (place) knife->ProgramOf(*place).resize(place->index);
  return place.has_value();
}

bool MoveStageOfRoute(Knife* knife) {
  Plan& plan = knife->plan();
  Route& route =
      plan.routes[static_cast<size_t>(knife->Draw(0, static_cast<int>(plan.routes.size()) - 1))];
  const auto stage = static_cast<size_t>(knife->Draw(0, plan.stages - 1));
  knife->what = "stage " + std::to_string(stage);
  return knife->Change(&route.ranks[stage], plan.ranks);
}

bool MoveMicrobatchOfRoute(Knife* knife) {
  Plan& plan = knife->plan();
  if (plan.routes.size() < 2 || plan.routes[0].microbatches.size() < 2) return false;
  std::vector<int>& from = plan.routes[0].microbatches;
  std::vector<int>& to = plan.routes[1].microbatches;
  knife->what = "micro-batch " + std::to_string(from.back());
  to.insert(std::ranges::lower_bound(to, from.back()), from.back());
  from.pop_back();
  return true;
}

bool LoseMicrobatchOfRoute(Knife* knife) {
  std::vector<int>& list = knife->plan().routes[0].microbatches;
  if (list.empty()) return false;
  const int which = knife->Draw(0, static_cast<int>(list.size()) - 1);
  list.erase(list.begin() + which);
  return true;
}

bool OutOfRange(Knife* knife) {
  const auto place = knife->Pick(IsAny);
  if (!place) return false;
  Instruction& i = knife->At(*place);
  const Plan& plan = knife->plan();
  switch (knife->Draw(0, 2)) {
    case 0:
      i.stage = plan.stages;
      return true;
    case 1:
      if (i.microbatch < 0) return false;
      i.microbatch = plan.microbatches;
      return true;
    default:
      if (i.peer < 0) return false;
      i.peer = plan.ranks;
      return true;
  }
}

}  // namespace

std::vector<MutantOperator> AimedOperators() {
  return {
      {"swap two SENDs of an edge", SwapSends, {"message"}},
      {"cross an exchange", CrossExchange, {"deadlock"}},
      {"B before F",
       MoveBefore([](const Instruction& i) { return HasBackward(i.op); }, NeedsForward),
       {"order"}},
      {"W before B",
       MoveBefore([](const Instruction& i) { return i.op == Op::W; }, NeedsBackward),
       {"order"}},
      {"SEND before its producer", MoveBefore(Sends, NeedsProducer), {"producer"}},
      {"RECV after its consumer", RecvTooLate, {"consumer"}},
      {"swap two W of a stage", SwapAlike(BothWeights), {"order"}, true},
      {"swap two REDUCEs of a rank", SwapAlike(BothReduce), {"deadlock", "reduce", "step"}},
      {"REDUCE too early", StageOpTooEarly(IsReduce), {"reduce"}},
      {"STEP too early", StageOpTooEarly(IsStep), {"step"}},
      {"group neighbours", GroupNeighbours, {}, true},
      {"cross an exchange of two groups", CrossGroups, {"deadlock"}},
      {"group strangers", GroupStrangers, {"group"}},
      {"group before the producer", GroupTooEarly, {"producer"}},
      {"group on something else", GroupCompute, {"level"}},
      {"add slot, lane or after", AddKey, {"level"}},
      {"add a component", AddComponent, {"level"}},
      {"send to itself", SendToItself, {"message", "level"}},
      {"truncate a program", Truncate, {"complete", "message", "reduce", "step"}},
      {"move a stage of a route", MoveStageOfRoute, {"owner"}},
      {"move a micro-batch to the other route", MoveMicrobatchOfRoute, {"owner"}},
      {"lose a micro-batch of a route", LoseMicrobatchOfRoute, {"shape"}},
      {"out of range", OutOfRange, {"shape"}},
  };
}

}  // namespace contraflow
