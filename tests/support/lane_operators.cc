#include <algorithm>
#include <numeric>
#include <utility>

#include "tests/support/knife.h"

namespace contraflow {
namespace {

bool IsWork(const Instruction& i) {
  const Work work = WorkOf(i.op);
  return work == Work::kComponent || work == Work::kAllToAll || work == Work::kCompute;
}
bool IsComponent(const Instruction& i) { return i.layer >= 0; }
bool IsAllToAll(const Instruction& i) { return WorkOf(i.op) == Work::kAllToAll; }
bool OnComputeLane(const Instruction& i) { return i.lane == Lane::kCompute; }
bool HasAfter(const Instruction& i) { return i.after_count > 0; }

/// The program becomes the instructions of these old numbers, in this order. Events stay with the
/// instructions they name, as far as those are still there.
void Reorder(Knife* knife, size_t r, const std::vector<size_t>& order) {
  Program& program = knife->plan().programs[r];
  std::vector<int> now(program.size(), -1);
  for (size_t k = order.size(); k-- > 0;) now[order[k]] = static_cast<int>(k);
  Program next;
  for (const size_t old : order) {
    Instruction i = program[old];
    std::vector<int> after;
    for (int k = 0; k < i.after_count; ++k) {
      const int on = now[static_cast<size_t>(i.after[static_cast<size_t>(k)])];
      if (on >= 0) after.push_back(on);
    }
    std::ranges::sort(after);
    i.after = {};
    i.after_count = static_cast<uint8_t>(after.size());
    std::copy(after.begin(), after.end(), i.after.begin());
    next.push_back(i);
  }
  program = std::move(next);
  RefreshSlots(&knife->plan(), r);
}

std::vector<size_t> Identity(const Program& program) {
  std::vector<size_t> order(program.size());
  std::iota(order.begin(), order.end(), size_t{0});
  return order;
}

void MoveTo(Knife* knife, Place place, size_t to) {
  std::vector<size_t> order = Identity(knife->ProgramOf(place));
  order.erase(order.begin() + static_cast<std::ptrdiff_t>(place.index));
  order.insert(order.begin() + static_cast<std::ptrdiff_t>(to), place.index);
  Reorder(knife, place.rank, order);
}

Operator Drop(Wanted wanted) {
  return [wanted](Knife* knife) {
    const auto place = knife->Pick(wanted);
    if (!place) return false;
    std::vector<size_t> order = Identity(knife->ProgramOf(*place));
    order.erase(order.begin() + static_cast<std::ptrdiff_t>(place->index));
    Reorder(knife, place->rank, order);
    return true;
  };
}

Operator Duplicate(Wanted wanted) {
  return [wanted](Knife* knife) {
    const auto place = knife->Pick(wanted);
    if (!place) return false;
    std::vector<size_t> order = Identity(knife->ProgramOf(*place));
    const int to = knife->Draw(static_cast<int>(place->index), static_cast<int>(order.size()));
    order.insert(order.begin() + to, place->index);
    Reorder(knife, place->rank, order);
    return true;
  };
}

/// One and the next of its kind on the rank change places.
Operator SwapWithNext(Wanted wanted) {
  return [wanted](Knife* knife) {
    const auto place = knife->Pick(wanted);
    if (!place) return false;
    const Program& program = knife->ProgramOf(*place);
    size_t other = place->index + 1;
    while (other < program.size() && !wanted(program[other])) ++other;
    if (other == program.size()) return false;
    knife->Note({place->rank, other});
    std::vector<size_t> order = Identity(program);
    std::swap(order[place->index], order[other]);
    Reorder(knife, place->rank, order);
    return true;
  };
}

Operator MoveAnywhere(Wanted wanted) {
  return [wanted](Knife* knife) {
    const auto place = knife->Pick(wanted);
    if (!place) return false;
    const int to = knife->Draw(0, static_cast<int>(knife->ProgramOf(*place).size()) - 1);
    if (to == static_cast<int>(place->index)) return false;
    MoveTo(knife, *place, static_cast<size_t>(to));
    return true;
  };
}

/// A few places up or down.
bool MoveNear(Knife* knife) {
  const auto place = knife->Pick(IsAny);
  if (!place) return false;
  const int to = static_cast<int>(place->index) + knife->Draw(-4, 4);
  const int size = static_cast<int>(knife->ProgramOf(*place).size());
  if (to < 0 || to >= size || to == static_cast<int>(place->index)) return false;
  MoveTo(knife, *place, static_cast<size_t>(to));
  return true;
}

/// A SEND in front of the last instruction it waits for.
bool SendTooEarly(Knife* knife) {
  const auto place =
      knife->Pick([](const Instruction& i) { return Sends(i) && i.after_count > 0; });
  if (!place) return false;
  const Instruction& i = knife->At(*place);
  MoveTo(knife, *place, static_cast<size_t>(i.after[i.after_count - size_t{1}]));
  return true;
}

/// A RECV after the first instruction that waits for it.
bool RecvTooLate(Knife* knife) {
  const auto place = knife->Pick(Receives);
  if (!place) return false;
  const auto consumer = knife->Find(place->rank, [&](const Instruction& i) {
    return std::count(i.after.begin(), i.after.begin() + i.after_count,
                      static_cast<int>(place->index)) > 0;
  });
  if (!consumer) return false;
  MoveTo(knife, *place, consumer->index);
  return true;
}

Operator ChangeField(Wanted wanted, int32_t Instruction::*field, int Plan::*size) {
  return [wanted, field, size](Knife* knife) {
    const auto place = knife->Pick(wanted);
    return place && knife->Change(&(knife->At(*place).*field), knife->plan().*size);
  };
}

bool ChangeLayer(Knife* knife) {
  const auto place = knife->Pick(IsComponent);
  if (!place) return false;
  int layer = knife->At(*place).layer;
  if (!knife->Change(&layer, knife->plan().layers)) return false;
  knife->At(*place).layer = static_cast<int16_t>(layer);
  return true;
}

bool LayerOutOfRange(Knife* knife) {
  const auto place = knife->Pick(IsComponent);
  if (!place) return false;
  knife->At(*place).layer = static_cast<int16_t>(knife->plan().layers + knife->Draw(0, 3));
  return true;
}

bool ChangeComponent(Knife* knife) {
  constexpr Op kOps[] = {Op::ATTN_F, Op::DISPATCH_F, Op::MLP_F,  Op::COMBINE_F, Op::COMBINE_B,
                         Op::MLP_B,  Op::DISPATCH_B, Op::ATTN_B, Op::MLP_W,     Op::ATTN_W};
  const auto place = knife->Pick(IsComponent);
  if (!place) return false;
  Instruction& i = knife->At(*place);
  i.op = kOps[static_cast<size_t>(knife->Draw(0, 9))];
  i.lane = LaneOf(i.op);
  return true;
}

bool SwapWeights(Knife* knife) {
  const auto is_weight = [](const Instruction& i) {
    return i.op == Op::MLP_W || i.op == Op::ATTN_W || i.op == Op::W;
  };
  const auto a = knife->Pick(is_weight);
  if (!a) return false;
  const Instruction first = knife->At(*a);
  const auto b = knife->Find(a->rank, [&](const Instruction& i) {
    return i.op == first.op && i.stage == first.stage && i.layer == first.layer &&
           i.microbatch != first.microbatch;
  });
  if (!b) return false;
  knife->Note(*b);
  std::swap(knife->At(*a).microbatch, knife->At(*b).microbatch);
  RefreshSlots(&knife->plan(), a->rank);
  return true;
}

bool OtherRank(Knife* knife) {
  const auto place = knife->Pick(IsAny);
  int rank = place ? static_cast<int>(place->rank) : 0;
  if (!place || !knife->Change(&rank, knife->plan().ranks)) return false;
  Instruction i = knife->At(*place);
  std::vector<size_t> order = Identity(knife->ProgramOf(*place));
  order.erase(order.begin() + static_cast<std::ptrdiff_t>(place->index));
  Reorder(knife, place->rank, order);
  i.after = {};
  i.after_count = 0;
  knife->plan().programs[static_cast<size_t>(rank)].push_back(i);
  RefreshSlots(&knife->plan(), static_cast<size_t>(rank));
  return true;
}

// Lanes and events.

bool WrongLane(Knife* knife) {
  const auto place = knife->Pick(IsAny);
  int lane = place ? static_cast<int>(knife->At(*place).lane) : 0;
  if (!place || !knife->Change(&lane, static_cast<int>(Lane::kReduce) + 1)) return false;
  knife->At(*place).lane = static_cast<Lane>(lane);
  return true;
}

bool DropEvent(Knife* knife) {
  const auto place = knife->Pick(HasAfter);
  if (!place) return false;
  Instruction& i = knife->At(*place);
  const int k = knife->Draw(0, i.after_count - 1);
  std::move(i.after.begin() + k + 1, i.after.end(), i.after.begin() + k);
  i.after.back() = 0;
  --i.after_count;
  return true;
}

bool DropAllEvents(Knife* knife) {
  const auto place = knife->Pick(HasAfter);
  if (!place) return false;
  knife->At(*place).after = {};
  knife->At(*place).after_count = 0;
  return true;
}

/// Waits for something earlier than it did.
bool RetargetEvent(Knife* knife) {
  const auto place = knife->Pick(HasAfter);
  if (!place) return false;
  Instruction& i = knife->At(*place);
  int& on = i.after[static_cast<size_t>(knife->Draw(0, i.after_count - 1))];
  if (on == 0) return false;
  on = knife->Draw(0, on - 1);
  std::sort(i.after.begin(), i.after.begin() + i.after_count);
  return std::adjacent_find(i.after.begin(), i.after.begin() + i.after_count) ==
         i.after.begin() + i.after_count;
}

bool EventForward(Knife* knife) {
  const auto place = knife->Pick(HasAfter);
  if (!place) return false;
  Instruction& i = knife->At(*place);
  const int size = static_cast<int>(knife->ProgramOf(*place).size());
  i.after[i.after_count - size_t{1}] = knife->Draw(static_cast<int>(place->index), size - 1);
  return true;
}

bool RepeatEvent(Knife* knife) {
  const auto place = knife->Pick(
      [](const Instruction& i) { return i.after_count > 0 && i.after_count < kMaxAfter; });
  if (!place) return false;
  Instruction& i = knife->At(*place);
  i.after[i.after_count] = i.after[i.after_count - size_t{1}];
  ++i.after_count;
  return true;
}

// The plan's head.

bool MoreLayers(Knife* knife) {
  Plan& plan = knife->plan();
  if (plan.layers == 0) return false;
  knife->what = "layers";
  if (plan.stage_layers.empty()) {
    ++plan.layers;
    return true;
  }
  StageLayers& layers = plan.stage_layers[static_cast<size_t>(knife->Draw(0, plan.stages - 1))];
  layers.push_back(LayerKind::kMoe);
  plan.layers = std::max(plan.layers, static_cast<int>(layers.size()));
  return true;
}

/// One layer is said to be of another kind than it is.
bool OtherKind(Knife* knife) {
  Plan& plan = knife->plan();
  if (plan.stage_layers.empty()) return false;
  StageLayers& layers = plan.stage_layers[static_cast<size_t>(knife->Draw(0, plan.stages - 1))];
  LayerKind& kind =
      layers[static_cast<size_t>(knife->Draw(0, static_cast<int>(layers.size()) - 1))];
  kind = static_cast<LayerKind>((static_cast<int>(kind) + knife->Draw(1, 2)) % 3);
  knife->what = "the kind of a layer";
  return true;
}

bool OtherGroup(Knife* knife) {
  Plan& plan = knife->plan();
  plan.expert_parallel = plan.expert_parallel == 1 ? 2 : 1;
  knife->what = "expert_parallel";
  return true;
}

}  // namespace

std::vector<MutantOperator> LaneOperators() {
  const std::vector<std::string> any_order = {"order",    "weight-order", "message", "producer",
                                              "consumer", "reduce",       "step",    "deadlock",
                                              "event",    "slot",         "sharing"};
  const std::vector<std::string> lost = {"complete", "owner", "shape"};
  return {
      {"drop work", Drop(IsWork), {"complete"}},
      {"drop SEND", Drop(Sends), {"message"}},
      {"drop RECV", Drop(Receives), {"message"}},
      {"drop REDUCE", Drop(IsReduce), {"reduce"}},
      {"drop STEP", Drop(IsStep), {"step"}},
      {"duplicate work", Duplicate(IsWork), {"complete"}},
      {"duplicate message", Duplicate(IsTransfer), {"message"}},
      {"swap all-to-alls", SwapWithNext(IsAllToAll), any_order, true},
      {"swap on the compute lane", SwapWithNext(OnComputeLane), any_order, true},
      {"swap SENDs", SwapWithNext(Sends), any_order, true},
      {"swap neighbours", SwapWithNext(IsAny), any_order, true},
      {"move", MoveAnywhere(IsAny), any_order, true},
      {"move near", MoveNear, any_order, true},
      {"SEND too early", SendTooEarly, {"producer", "event"}},
      {"RECV too late", RecvTooLate, {"consumer", "order", "event"}},
      {"change stage of work", ChangeField(IsWork, &Instruction::stage, &Plan::stages), lost},
      {"change micro-batch of work",
       ChangeField(IsWork, &Instruction::microbatch, &Plan::microbatches), lost},
      {"change layer", ChangeLayer, {"complete", "shape"}},
      {"layer out of range", LayerOutOfRange, {"shape"}},
      {"change component", ChangeComponent, {"complete", "shape"}},
      // Sound where a chunk has one W: it says the order, and only its values may lie elsewhere.
      {"swap weights", SwapWeights, {"weight-order", "order", "event", "slot", "sharing"}, true},
      {"move to other rank", OtherRank, {"owner", "message", "reduce", "step"}},
      {"wrong lane", WrongLane, {"lane"}},
      {"drop event", DropEvent, {"event", "sharing"}, true},
      {"drop all events", DropAllEvents, {"event", "sharing"}, true},
      {"wait for something earlier", RetargetEvent, {"event", "sharing"}, true},
      {"event forward", EventForward, {"event"}},
      {"repeat event", RepeatEvent, {"event"}},
      {"more layers", MoreLayers, {"complete"}},
      {"other kind of layer", OtherKind, {"complete", "shape", "level"}},
      {"other expert group", OtherGroup, {"reduce"}, true},
  };
}

}  // namespace contraflow
