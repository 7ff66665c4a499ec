#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "compiler/plan/access.h"
#include "tests/support/knife.h"

namespace contraflow {
namespace {

/// A slot of any rank.
Slot* PickSlot(Knife* knife, size_t* rank) {
  Plan& plan = knife->plan();
  if (plan.slots.empty()) return nullptr;
  *rank = static_cast<size_t>(knife->Draw(0, plan.ranks - 1));
  std::vector<Slot>& slots = plan.slots[*rank];
  if (slots.empty()) return nullptr;
  Slot& slot = slots[static_cast<size_t>(knife->Draw(0, static_cast<int>(slots.size()) - 1))];
  knife->what = "rank " + std::to_string(*rank) + ", " + ToString(slot);
  return &slot;
}

Operator ChangeSlot(bool (*change)(Knife*, Slot*)) {
  return [change](Knife* knife) {
    size_t rank = 0;
    Slot* const slot = PickSlot(knife, &rank);
    return slot != nullptr && change(knife, slot);
  };
}

/// Another slot of the same arena.
Slot* Neighbour(Knife* knife, const Slot& slot, size_t rank) {
  std::vector<Slot>& slots = knife->plan().slots[rank];
  const int begin = knife->Draw(0, static_cast<int>(slots.size()) - 1);
  for (size_t k = 0; k < slots.size(); ++k) {
    Slot& other = slots[(static_cast<size_t>(begin) + k) % slots.size()];
    if (&other != &slot && other.arena == slot.arena && other.offset != slot.offset) return &other;
  }
  return nullptr;
}

bool OnAnother(Knife* knife) {
  size_t rank = 0;
  Slot* const slot = PickSlot(knife, &rank);
  const Slot* const other = slot == nullptr ? nullptr : Neighbour(knife, *slot, rank);
  if (other == nullptr) return false;
  slot->offset = other->offset;
  return true;
}

bool SwapOffsets(Knife* knife) {
  size_t rank = 0;
  Slot* const slot = PickSlot(knife, &rank);
  Slot* const other = slot == nullptr ? nullptr : Neighbour(knife, *slot, rank);
  if (other == nullptr) return false;
  std::swap(slot->offset, other->offset);
  return true;
}

bool ShiftOffset(Knife* knife) {
  return ChangeSlot([](Knife* k, Slot* slot) {
    const int64_t by = kSlotAlignment * k->Draw(1, 4);
    slot->offset += k->Draw(0, 1) == 0 && slot->offset >= by ? -by : by;
    return true;
  })(knife);
}

bool DropSlot(Knife* knife) {
  size_t rank = 0;
  const Slot* const slot = PickSlot(knife, &rank);
  if (slot == nullptr) return false;
  std::vector<Slot>& slots = knife->plan().slots[rank];
  slots.erase(slots.begin() + (slot - slots.data()));
  RefreshSlots(&knife->plan(), rank);
  return true;
}

bool RepeatSlot(Knife* knife) {
  size_t rank = 0;
  const Slot* const slot = PickSlot(knife, &rank);
  if (slot == nullptr) return false;
  const Slot copy = *slot;
  std::vector<Slot>& slots = knife->plan().slots[rank];
  slots.insert(slots.begin() + (slot - slots.data()), copy);
  return true;
}

bool SwapSlots(Knife* knife) {
  size_t rank = 0;
  Slot* const slot = PickSlot(knife, &rank);
  Slot* const other = slot == nullptr ? nullptr : Neighbour(knife, *slot, rank);
  if (other == nullptr) return false;
  std::swap(*slot, *other);
  return true;
}

bool WrongSlotOfMessage(Knife* knife) {
  const auto place = knife->Pick([](const Instruction& i) { return i.slot >= 0; });
  if (!place) return false;
  const auto count = static_cast<int>(knife->plan().slots[place->rank].size());
  return knife->Change(&knife->At(*place).slot, count);
}

bool NoSlots(Knife* knife) {
  if (knife->plan().slots.empty()) return false;
  knife->plan().slots.pop_back();
  knife->what = "slots";
  return true;
}

}  // namespace

void RefreshSlots(Plan* plan, size_t r) {
  if (plan->level != Level::kBuffer) return;
  std::vector<Slot>& slots = plan->slots[r];
  Program& program = plan->programs[r];
  const auto key = [](const auto& a) {
    return std::tuple(a.value, a.stage, static_cast<int>(a.layer), a.microbatch);
  };
  const Accesses accesses(*plan);
  std::vector<Access> touched;
  std::map<decltype(key(Slot())), std::pair<int, int>> uses;
  for (size_t i = 0; i < program.size(); ++i) {
    accesses.Of(program[i], &touched);
    for (const Access& a : touched) {
      const auto at = static_cast<int>(i);
      uses.try_emplace(key(a), at, at).first->second.second = at;
    }
  }
  for (Slot& slot : slots) {
    const auto use = uses.find(key(slot));
    if (use != uses.end()) std::tie(slot.first, slot.last) = use->second;
  }
  std::ranges::stable_sort(slots, [](const Slot& a, const Slot& b) {
    return std::tie(a.first, a.value, a.stage, a.layer, a.microbatch) <
           std::tie(b.first, b.value, b.stage, b.layer, b.microbatch);
  });
  std::map<decltype(key(Slot())), int> last;
  for (size_t s = 0; s < slots.size(); ++s) last[key(slots[s])] = static_cast<int>(s);
  for (Instruction& i : program) {
    if (!IsTransfer(i)) continue;
    accesses.Of(i, &touched);
    const auto slot = last.find(key(touched.front()));
    i.slot = slot == last.end() ? -1 : slot->second;
  }
}

std::vector<MutantOperator> SlotOperators() {
  return {
      {"shorten lifetime",
       ChangeSlot([](Knife* knife, Slot* slot) {
         if (slot->last == slot->first) return false;
         slot->last -= knife->Draw(1, slot->last - slot->first);
         return true;
       }),
       {"slot"}},
      {"begin later",
       ChangeSlot([](Knife*, Slot* slot) {
         ++slot->first;
         return true;
       }),
       {"slot"}},
      {"lie on another", OnAnother, {"sharing"}, true},
      {"swap offsets", SwapOffsets, {"sharing"}, true},
      {"shift", ShiftOffset, {"sharing"}, true},
      {"fewer bytes",
       ChangeSlot([](Knife*, Slot* slot) {
         --slot->bytes;
         return true;
       }),
       {"slot"}},
      {"drop slot", DropSlot, {"slot"}},
      {"repeat slot", RepeatSlot, {"slot"}},
      {"wrong arena",
       ChangeSlot([](Knife* knife, Slot* slot) {
         int arena = static_cast<int>(slot->arena);
         knife->Change(&arena, static_cast<int>(kArenaCount));
         slot->arena = static_cast<Arena>(arena);
         return true;
       }),
       {"slot"}},
      {"unaligned",
       ChangeSlot([](Knife* knife, Slot* slot) {
         slot->offset += knife->Draw(1, static_cast<int>(kSlotAlignment) - 1);
         return true;
       }),
       {"slot"}},
      {"other micro-batch",
       ChangeSlot([](Knife* knife, Slot* slot) {
         return knife->Change(&slot->microbatch, knife->plan().microbatches);
       }),
       {"slot"}},
      {"swap slots", SwapSlots, {"slot"}},
      {"wrong slot of message", WrongSlotOfMessage, {"slot"}},
      {"no slots of a rank", NoSlots, {"level"}},
  };
}

}  // namespace contraflow
