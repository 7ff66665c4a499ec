#include "runtime/core/value_places.h"

#include <utility>

#include "compiler/plan/error.h"

namespace contraflow {
namespace {

std::string Describe(const std::tuple<int, int, int, Value>& key) {
  const auto& [stage, layer, microbatch, value] = key;
  return "the " + std::string(Name(value)) + " of stage " + std::to_string(stage) +
         (layer < 0 ? "" : ", layer " + std::to_string(layer)) + ", micro-batch " +
         std::to_string(microbatch);
}

/// Values that only the instruction touches that makes them.
bool IsScratch(Value value) {
  return value == Value::dcombined || value == Value::ddispatched || value == Value::attention_work;
}

/// True for values that a part that runs again makes for one that does not, which has had them.
bool IsSent(Value value) { return value == Value::dispatched || value == Value::expert_out; }

bool IsMessage(Value value) {
  return value == Value::input || value == Value::output || value == Value::doutput ||
         value == Value::dinput;
}

}  // namespace

ValuePlaces::ValuePlaces(const Plan& plan, int rank, const ComponentWalk& walk,
                         const ValueBytes& bytes, const std::string& model,
                         const std::string& device)
    : ValuePlaces(plan, rank, walk, bytes, false, [&](Value value, int64_t has) {
        const int64_t needed = bytes[static_cast<size_t>(value)];
        if (has == needed) return;
        throw Error("this plan was compiled for another model or device: value " +
                    std::string(Name(value)) + " has " + std::to_string(has) + " bytes, model \"" +
                    model + "\" needs " + std::to_string(needed) + "; compile it with `model` " +
                    model + " `device` " + device + ", and with the `capacity` it is to run with");
      }) {}

ValuePlaces::ValuePlaces(const Plan& plan, int rank, const ComponentWalk& walk,
                         const ValueBytes& bytes, bool lanes)
    : ValuePlaces(plan, rank, walk, bytes, lanes, [&](Value value, int64_t has) {
        const auto needed = [&](Value v) { return bytes[static_cast<size_t>(v)]; };
        if (has >= needed(value)) return;
        const int64_t stash = needed(Value::stash), activation = stash + needed(Value::activation);
        throw Error("the plan has " + std::to_string(has) + " bytes for value " +
                    std::string(Name(value)) + ", the stages need " +
                    std::to_string(needed(value)) +
                    "; compile it for costs with \"memory\": {\"activation_bytes\": " +
                    std::to_string(activation) + ", \"w_stash_bytes\": " + std::to_string(stash) +
                    "} and \"comm\": {\"bytes\": " + std::to_string(needed(Value::input)) +
                    ", ..}, or with `level` comm");
      }) {}

ValuePlaces::ValuePlaces(const Plan& plan, int rank, const ComponentWalk& walk,
                         const ValueBytes& bytes, bool lanes, const Fit& fit) {
  FindUses(plan, rank, walk);
  plan.level == Level::kBuffer ? Follow(plan.slots[static_cast<size_t>(rank)], fit)
                               : Pack(bytes, lanes);
}

void ValuePlaces::FindUses(const Plan& plan, int rank, const ComponentWalk& walk) {
  std::vector<Access> accesses;
  size_t now = 0, offloads = 0;
  const auto touch = [&](const Instruction& i) {
    walk.AccessesOf(i, &accesses);
    for (const Access& access : accesses) {
      const ValueKey key = {access.stage, access.layer, access.microbatch, access.value};
      std::vector<Place*>& made = made_[key];
      if (access.makes) made.push_back(&places_.emplace_back(Place{access.value, now, now}));
      if (made.empty()) {
        throw Error("rank " + std::to_string(rank) + ", " + ToString(i) + ": " + Describe(key) +
                    " is not on this rank; verify the plan");
      }
      made.back()->last = now;
      made.back()->sent = made.back()->sent || IsSend(i.op);
      if (i.op == Op::OFFLOAD) made.back()->gone = offloads;
      const Value seen = IsHostCopy(i.op) ? access.value : SeenFrom(i, access);
      uses_[KeyOf(i)].push_back({seen, made.back(), now});
    }
    ++now;
  };
  for (const Instruction& i : plan.program(rank)) {
    if (i.op == Op::OFFLOAD) ++offloads;
    if (contraflow::IsMessage(i.op) || IsHostCopy(i.op)) {
      touch(i);
      continue;
    }
    if (OperandsOf(i.op) != Operands::kStage) walk.Each(i, touch);
  }
  for (const auto& [key, made] : made_) {
    // Before a chunk runs again not all that it has made need be used.
    const Place& last = *made.back();
    const bool again = made.size() > 1 && IsSent(last.value);
    if (last.first == last.last && !again && !IsScratch(last.value)) {
      throw Error("rank " + std::to_string(rank) + ": " + Describe(key) +
                  " is never used; verify the plan");
    }
  }
}

void ValuePlaces::Follow(const std::vector<Slot>& slots, const Fit& fit) {
  arena_bytes_ = ArenaBytes(slots);
  std::map<ValueKey, size_t> placed;
  for (const Slot& slot : slots) {
    fit(slot.value, slot.bytes);
    const ValueKey key = {slot.stage, slot.layer, slot.microbatch, slot.value};
    // Slots are in the order of first use: those of one value in the order in
    // which it is made.
    const std::vector<Place*>& made = made_[key];
    const size_t n = placed[key]++;
    if (n >= made.size()) {
      throw Error("the plan has a slot, \"" + ToString(slot) +
                  "\", which no instruction of the rank touches; verify the plan");
    }
    made[n]->arena = slot.arena;
    made[n]->offset = slot.offset;
  }
  for (Place& place : places_) {
    if (place.offset >= 0) continue;
    fit(place.value, 0);
    place.offset = 0;
  }
}

void ValuePlaces::Pack(const ValueBytes& bytes, bool lanes) {
  // Offsets, and the OFFLOADs to wait for.
  std::array<std::vector<std::pair<int64_t, size_t>>, kValueCount> free;
  std::multimap<size_t, const Place*> ending;
  for (Place& place : places_) {
    while (!ending.empty() && ending.begin()->first < place.first) {
      const Place& over = *ending.begin()->second;
      free[static_cast<size_t>(over.value)].push_back({over.offset, over.gone});
      ending.erase(ending.begin());
    }
    place.arena = ArenaOf(place.value);
    std::vector<std::pair<int64_t, size_t>>& offsets = free[static_cast<size_t>(place.value)];
    if (offsets.empty()) {
      int64_t& end = arena_bytes_[static_cast<size_t>(place.arena)];
      offsets.push_back({end, 0});
      end += (bytes[static_cast<size_t>(place.value)] + kSlotAlignment - 1) / kSlotAlignment *
             kSlotAlignment;
    }
    std::tie(place.offset, place.waits) = offsets.back();
    offsets.pop_back();
    if (!place.sent && !(lanes && IsMessage(place.value))) ending.emplace(place.last, &place);
  }
}

const std::vector<ValuePlaces::Use>& ValuePlaces::Of(const Instruction& i) const {
  const auto uses = uses_.find(KeyOf(i));
  if (uses == uses_.end()) throw Error(ToString(i) + " is not of this rank; verify the plan");
  return uses->second;
}

}  // namespace contraflow
