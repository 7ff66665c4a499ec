// Values are placed in program order, each into bytes that are free by then. Bytes are free once
// all that touched them is over: by the lanes and events there are, or by an event that is added
// where the simulated run has the old use end before the new one begins anyway. That run stays the
// earliest one, so no event costs time. Events lead from earlier to later instructions of one
// program, so they cannot hang it.

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>
#include <vector>

#include "compiler/lower/arena.h"
#include "compiler/lower/passes.h"
#include "compiler/plan/access.h"
#include "compiler/plan/error.h"
#include "compiler/plan/grid.h"
#include "compiler/plan/lanes.h"
#include "compiler/simulate/simulate.h"

namespace contraflow {
namespace {

/// The values of one rank, in the order of slots, and when they are touched.
struct Values {
  std::vector<Slot> slots;
  std::vector<LastUses> uses;           // of each slot
  std::vector<std::vector<int>> dying;  // slots that no later instruction touches, by instruction
};

/// Which kind of lane, of LastUses.
size_t KindOf(Op op) {
  if (IsHostCopy(op)) return 3;
  return IsMessage(op) ? 2 : WorkOf(op) == Work::kAllToAll ? 1 : 0;
}

/// Finds the values of one rank after the other and tells messages their slots.
class ValueFinder {
 public:
  ValueFinder(const Plan& plan, const CostModel& costs)
      : accesses_(plan),
        layers_(static_cast<size_t>(std::max(plan.layers, 1))),
        chunk_at_(plan.stages, plan.microbatches, -1) {
    for (int s = 0; s < plan.stages; ++s) bytes_.push_back(ValueBytesOf(costs, plan.layers, s));
  }

  Values Find(Program* program) {
    Values values;
    values.dying.resize(program->size());
    slot_at_.clear();
    for (size_t at = 0; at < program->size(); ++at) {
      Instruction& i = (*program)[at];
      accesses_.Of(i, &touched_);
      std::erase_if(touched_, [&](const Access& a) { return BytesOf(a) <= 0; });
      Make(static_cast<int32_t>(at), &values);
      for (const Access& access : touched_) {
        const int number = SlotAt(access);
        CF_ASSERT(number >= 0);
        const auto slot = static_cast<size_t>(number);
        values.slots[slot].last = static_cast<int32_t>(at);
        values.uses[slot][KindOf(i.op)] = static_cast<int32_t>(at);
        if (KindOf(i.op) == 2) i.slot = number;
      }
    }
    for (size_t slot = 0; slot < values.slots.size(); ++slot) {
      values.dying[static_cast<size_t>(values.slots[slot].last)].push_back(static_cast<int>(slot));
    }
    return values;
  }

 private:
  int64_t BytesOf(const Access& access) const {
    return bytes_[static_cast<size_t>(access.stage)][static_cast<size_t>(access.value)];
  }

  /// Slots for what an instruction makes.
  void Make(int32_t index, Values* values) {
    const size_t begin = values->slots.size();
    for (const Access& a : touched_) {
      if (!a.makes) continue;
      values->slots.push_back({.value = a.value,
                               .arena = ArenaOf(a.value),
                               .layer = a.layer,
                               .stage = a.stage,
                               .microbatch = a.microbatch,
                               .first = index,
                               .last = index,
                               .bytes = BytesOf(a)});
    }
    std::sort(values->slots.begin() + static_cast<std::ptrdiff_t>(begin), values->slots.end(),
              [](const Slot& a, const Slot& b) {
                return std::tie(a.value, a.stage, a.layer, a.microbatch) <
                       std::tie(b.value, b.stage, b.layer, b.microbatch);
              });
    values->uses.resize(values->slots.size(), LastUses{-1, -1, -1, -1});
    for (size_t slot = begin; slot < values->slots.size(); ++slot) {
      const Slot& s = values->slots[slot];
      SlotAt({s.value, s.layer, s.stage, s.microbatch, true}) = static_cast<int>(slot);
    }
  }

  int& SlotAt(const Access& a) {
    int& chunk = chunk_at_(a.stage, a.microbatch);
    if (chunk < 0) {
      chunk = static_cast<int>(slot_at_.size() / (layers_ * kValueCount));
      slot_at_.resize(slot_at_.size() + layers_ * kValueCount, -1);
    }
    const auto layer = static_cast<size_t>(std::max<int>(a.layer, 0));
    return slot_at_[(static_cast<size_t>(chunk) * layers_ + layer) * kValueCount +
                    static_cast<size_t>(a.value)];
  }

  std::vector<ValueBytes> bytes_;  // by stage
  const Accesses accesses_;
  const size_t layers_;
  Grid<int> chunk_at_;        // its number on its rank
  std::vector<int> slot_at_;  // by that number, layer and value
  std::vector<Access> touched_;
};

/// Packs the values of one rank.
class Packer {
 public:
  Packer(Program* program, const std::vector<Span>& spans)
      : program_(*program), spans_(spans), order_(*program) {}

  void Pack(Values* values) {
    size_t next = 0;
    for (size_t at = 0; at < program_.size(); ++at) {
      at_ = static_cast<int32_t>(at);
      order_.Begin(at_);
      KeepLatest(&program_[at]);
      for (; next < values->slots.size() && values->slots[next].first == at_; ++next) {
        Place(&values->slots[next]);
      }
      order_.End();
      for (const int number : values->dying[at]) {
        const auto slot = static_cast<size_t>(number);
        const Slot& s = values->slots[slot];
        arenas_[static_cast<size_t>(s.arena)].GiveBack(s.offset, s.bytes, Last(values->uses[slot]));
      }
    }
  }

 private:
  void Place(Slot* slot) {
    before_.clear();
    slot->offset = arenas_[static_cast<size_t>(slot->arena)].Take(
        slot->bytes, [this](const LastUses& uses) { return Price(uses); }, &before_);
    for (const LastUses& uses : before_) {
      for (const int32_t use : uses) {
        if (use >= 0 && !order_.Over(use)) Add(use);
      }
    }
  }

  /// Returns the last uses that no other one waited for.
  LastUses Last(const LastUses& uses) const {
    LastUses last = uses;
    for (size_t kind = 0; kind < uses.size(); ++kind) {
      for (const int32_t other : uses) {
        if (uses[kind] >= 0 && other > uses[kind] && order_.Over(uses[kind], other)) {
          last[kind] = -1;
        }
      }
    }
    return last;
  }

  /// Events to add before the instruction at hand may use the bytes; -1 if that would cost time, or
  /// there is no room for them.
  int Price(const LastUses& uses) const {
    int events = 0;
    for (const int32_t use : uses) {
      if (use < 0 || order_.Over(use)) continue;
      const Time end = spans_[static_cast<size_t>(use)].end;
      if (end > spans_[static_cast<size_t>(at_)].start || !HasRoom(use)) return -1;
      ++events;
    }
    return events;
  }

  /// An instruction waits for one of every other lane at most. If a rank has so many peers that
  /// even these are too many, only waits for the compute and all-to-all lane are added.
  bool HasRoom(int32_t use) const {
    constexpr int kLocal = 2;
    if (order_.lanes() <= static_cast<size_t>(kMaxAfter) + 1) return true;
    return order_.LaneAt(use) < kLocal &&
           program_[static_cast<size_t>(at_)].after_count + kLocal <= kMaxAfter;
  }

  /// The last of the waits for one lane says all.
  void KeepLatest(Instruction* i) const {
    const auto begin = i->after.begin();
    const auto end = begin + i->after_count;
    const auto last = std::remove_if(begin, end, [&, now = *i](const int32_t& on) {
      return std::any_of(
          now.after.begin(), now.after.begin() + now.after_count,
          [&](int32_t other) { return other > on && order_.LaneAt(other) == order_.LaneAt(on); });
    });
    i->after_count = static_cast<uint8_t>(last - begin);
    std::fill(last, i->after.end(), 0);
  }

  /// Makes the instruction at hand wait for `use`, in place of an earlier one of that lane.
  void Add(int32_t use) {
    Instruction& i = program_[static_cast<size_t>(at_)];
    const auto begin = i.after.begin();
    const auto end = begin + i.after_count;
    const auto kept = std::remove_if(begin, end, [&](int32_t on) {
      return on <= use && order_.LaneAt(on) == order_.LaneAt(use);
    });
    std::fill(kept, end, 0);
    i.after_count = static_cast<uint8_t>(kept - begin);
    AddEvent(use, &i);
    order_.Wait(use);
  }

  Program& program_;
  const std::vector<Span>& spans_;
  LaneOrder order_;
  std::array<ArenaPacker, kArenaCount> arenas_;
  std::vector<LastUses> before_;
  int32_t at_ = 0;
};

}  // namespace

ValueBytes ValueBytesOf(const CostModel& costs, int layers, int s) {
  ValueBytes bytes{};
  if (layers > 0) {
    if (!costs.memory || costs.memory->values.empty()) {
      throw Error(
          "the costs do not say how large the values of a layer are; give \"memory\": "
          "{\"values\": {..}}, or compile with `model`");
    }
    CF_ASSERT(costs.memory->values.size() == kValueCount);
    std::copy(costs.memory->values.begin(), costs.memory->values.end(), bytes.begin());
    return bytes;
  }
  if (!costs.memory) {
    throw Error("the costs do not say how large activations are; give " +
                MemoryKeys(costs, {"activation_bytes", "w_stash_bytes"}));
  }
  const auto at = [&](Value value) -> int64_t& { return bytes[static_cast<size_t>(value)]; };
  at(Value::activation) = costs.memory->activation(s) - costs.memory->stash(s);
  at(Value::stash) = costs.memory->stash(s);
  for (const Value message : {Value::input, Value::dinput}) {
    at(message) = costs.comm.SizeBetween(s - 1).bytes;
  }
  for (const Value message : {Value::output, Value::doutput}) {
    at(message) = costs.comm.SizeBetween(s).bytes;
  }
  return bytes;
}

Plan AssignBuffers(const Plan& plan, const CostModel& costs) {
  CF_ASSERT(plan.level == (plan.layers > 0 ? Level::kComponent : Level::kComm));
  if (!plan.AllMoe()) {
    throw Error(
        "level buffer places the values of MoE layers, and this plan has others as components of "
        "their own; compile to level component, or with `model`, which runs them with a layer "
        "beside them");
  }
  Plan result = plan;
  if (plan.layers == 0) AddLanes(&result);
  result.level = Level::kBuffer;
  ValueFinder finder(result, costs);
  const Simulation simulation = Simulate(result, costs);
  result.slots.resize(result.programs.size());
  for (size_t r = 0; r < result.programs.size(); ++r) {
    Values values = finder.Find(&result.programs[r]);
    Packer(&result.programs[r], simulation.timeline.ranks[r]).Pack(&values);
    result.slots[r] = std::move(values.slots);
  }
  return result;
}

}  // namespace contraflow
