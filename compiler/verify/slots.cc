// Checks of level buffer: one slot for every value that the programs touch, as large as it is, and
// no bytes that two values hold at once.
//
// Lifetimes are those of the program order, but lanes run concurrently: a range may be used again
// only when, by lanes and `after`, every access of the value it held is over before the first
// access of the next one begins. The values of one range follow each other like that, so it is
// enough to compare each with the last one before it, range by range in program order: near linear.

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

#include "compiler/verify/checks.h"

namespace contraflow::check {
namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 50;
constexpr int32_t kNoSlot = -1, kReported = -2;

/// Columns of the table of slots: all values of a layer, or the few of an opaque stage.
constexpr size_t kNoColumn = kValueCount;
size_t ColumnOf(Value value, bool layered) {
  if (layered) return static_cast<size_t>(value);
  constexpr Value kOpaque[] = {Value::input,  Value::output,     Value::doutput,
                               Value::dinput, Value::activation, Value::stash};
  const auto* const found = std::find(std::begin(kOpaque), std::end(kOpaque), value);
  return found == std::end(kOpaque) ? kNoColumn : static_cast<size_t>(found - kOpaque);
}

/// When a value is touched: by the program the first and last time, and last on each lane that
/// touches it. The lanes are compute, all-to-all, one edge and one way to the host: a value is
/// received or sent, not both, and by one peer; and what is reloaded is another value than what was
/// offloaded.
struct Use {
  int32_t first = -1, last = -1;
  std::array<int32_t, 4> last_on = {-1, -1, -1, -1};
};

class SlotCheck {
 public:
  SlotCheck(const Tables& tables, std::vector<ValueBytes> bytes, Findings* findings)
      : tables_(tables),
        plan_(tables.plan),
        bytes_(std::move(bytes)),
        findings_(*findings),
        columns_(plan_.layers > 0 ? kValueCount : 6),
        slot_at_((plan_.layers > 0 ? tables.Layers() : tables.At(plan_.stages, 0)) * columns_,
                 kNoSlot),
        touches_(tables),
        clocks_(plan_) {}

  void Run() {
    for (rank_ = 0; rank_ < plan_.ranks; ++rank_) {
      found_ = false;
      uses_.assign(Slots().size(), {});
      second_.clear();
      CheckSlots();
      CheckUses();
      CheckLifetimes();
      // With wrong slots it would not be known who is where.
      if (found_) continue;
      clocks_.Turn(rank_);
      for (size_t arena = 0; arena < kArenaCount; ++arena) CheckSharing(static_cast<Arena>(arena));
    }
  }

 private:
  const std::vector<Slot>& Slots() const { return plan_.slots[static_cast<size_t>(rank_)]; }
  const Program& Instructions() const { return plan_.program(rank_); }

  void Add(Check check, int32_t index, const std::string& what) {
    found_ = true;
    findings_.Add(check, rank_, index, what);
  }
  std::string Text(size_t number) const {
    return "slot " + std::to_string(number) + " (" + ToString(Slots()[number]) + ")";
  }

  bool Known(const Slot& slot) const {
    return static_cast<size_t>(slot.value) < kValueCount &&
           static_cast<size_t>(slot.arena) < kArenaCount;
  }
  /// True if it is of this rank and within the plan's sizes: it has a place in the table.
  bool Placed(const Slot& slot) const {
    const bool layer = plan_.layers > 0 ? slot.layer >= 0 : slot.layer == -1;
    return layer && slot.stage >= 0 && slot.stage < plan_.stages && slot.microbatch >= 0 &&
           (plan_.layers == 0 || slot.layer < plan_.LayersOf(slot.stage)) &&
           slot.microbatch < plan_.microbatches &&
           tables_.Owner(slot.stage, slot.microbatch) == rank_ &&
           ColumnOf(slot.value, plan_.layers > 0) != kNoColumn;
  }
  int32_t& SlotAt(Value value, int stage, int layer, int microbatch) {
    const size_t row = plan_.layers > 0 ? tables_.LayerAt(stage, layer, microbatch)
                                        : tables_.At(stage, microbatch);
    return slot_at_[row * columns_ + ColumnOf(value, plan_.layers > 0)];
  }

  void CheckSlots() {
    const auto order = [](const Slot& s) {
      return std::tie(s.first, s.value, s.stage, s.layer, s.microbatch);
    };
    const Slot* before = nullptr;
    for (size_t number = 0; number < Slots().size(); ++number) {
      const Slot& slot = Slots()[number];
      if (!Known(slot)) {
        Add(Check::kSlot, -1, "slot " + std::to_string(number) + " has an unknown value or arena");
        continue;
      }
      if (!Placed(slot)) {
        AddUntouched(number);
        continue;
      }
      int32_t& place = SlotAt(slot.value, slot.stage, slot.layer, slot.microbatch);
      if (place >= 0 && !AddSecond(static_cast<size_t>(place), number)) {
        Add(Check::kSlot, -1,
            Text(number) + " repeats " + Text(static_cast<size_t>(place)) + "; drop one");
        uses_[number].first = kReported;
        continue;
      }
      if (place < 0) place = static_cast<int32_t>(number);
      CheckPlace(number);
      if (before != nullptr && order(slot) < order(*before)) {
        Add(Check::kSlot, -1,
            Text(number) + " stands after " + ToString(*before) +
                "; slots are in the order of first use, value, stage, layer, micro-batch");
      }
      before = &slot;
    }
  }

  /// Notes the slot of what is made again, after the one of what was made first; false if it is
  /// not that.
  bool AddSecond(size_t first, size_t number) {
    const Slot& slot = Slots()[number];
    const bool kept = slot.value == Value::input && slot.layer <= 0;
    const bool again = tables_.HostCopiesOf(slot.stage, slot.microbatch).reload >= 0 ||
                       (!kept && tables_.Recomputed(slot.stage, slot.microbatch));
    return again && second_.try_emplace(first, static_cast<int32_t>(number)).second;
  }

  int64_t BytesOf(Value value, int stage) const {
    return bytes_[static_cast<size_t>(stage)][static_cast<size_t>(value)];
  }

  void AddUntouched(size_t number) {
    Add(Check::kSlot, -1, Text(number) + ": nothing on this rank touches it; drop it");
    uses_[number].first = kReported;
  }

  void CheckPlace(size_t number) {
    const Slot& slot = Slots()[number];
    const auto add = [&](const std::string& what) { Add(Check::kSlot, -1, Text(number) + what); };
    const int64_t bytes = BytesOf(slot.value, slot.stage);
    if (slot.arena != ArenaOf(slot.value)) {
      add(": the arena of " + std::string(Name(slot.value)) + " is " +
          std::string(Name(ArenaOf(slot.value))));
    }
    if (slot.bytes != bytes) {
      add(": by the costs " + std::string(Name(slot.value)) + " has " + std::to_string(bytes) +
          " bytes");
    }
    if (slot.offset < 0) {
      add(": begins before its arena");
    } else if (slot.offset > kMaxBytes || slot.bytes > kMaxBytes) {
      add(": ends after 2^50, which no memory has");
    } else if (slot.offset % kSlotAlignment != 0) {
      add(": its offset must be a multiple of " + std::to_string(kSlotAlignment));
    }
  }

  /// Walks the program and notes when each value is touched.
  void CheckUses() {
    std::vector<Touch> touches;
    for (size_t at = 0; at < Instructions().size(); ++at) {
      const Instruction& i = Instructions()[at];
      const auto index = static_cast<int32_t>(at);
      touches_.Of(i, &touches);
      int32_t slot_of_message = kNoSlot;
      for (const Touch& touch : touches) {
        if (BytesOf(touch.value, touch.stage) <= 0) continue;
        int32_t& number = SlotAt(touch.value, touch.stage, touch.layer, touch.microbatch);
        if (number >= 0 && touch.makes && uses_[static_cast<size_t>(number)].first >= 0) {
          const auto second = second_.find(static_cast<size_t>(number));
          number = second == second_.end() ? kNoSlot : second->second;
        }
        if (number == kNoSlot) {
          AddMissing(touch, index);
          number = kReported;
        }
        // Reported once; the expected content of its message is then unknown.
        slot_of_message = number < 0 ? i.slot : number;
        if (number < 0) continue;
        Note(&uses_[static_cast<size_t>(number)], i.op, index);
      }
      if (IsMessage(i.op) && i.slot != slot_of_message) AddMessage(i, index, slot_of_message);
    }
  }

  static void Note(Use* use, Op op, int32_t index) {
    if (use->first < 0) use->first = index;
    use->last = index;
    const Lane lane = LaneOf(op);
    const size_t kind = lane == Lane::kCompute ? 0 : lane == Lane::kAllToAll ? 1 : 2;
    use->last_on[IsHostCopy(op) ? 3 : kind] = index;
  }

  void AddMissing(const Touch& touch, int32_t index) {
    std::string text(Name(touch.value));
    text += " s" + std::to_string(touch.stage);
    if (touch.layer >= 0) text += " l" + std::to_string(touch.layer);
    text += " m" + std::to_string(touch.microbatch);
    Add(Check::kSlot, index,
        ToString(Instructions()[static_cast<size_t>(index)]) + " touches " + text +
            ", which has no slot; add one of " + std::to_string(BytesOf(touch.value, touch.stage)) +
            " bytes");
  }

  void AddMessage(const Instruction& i, int32_t index, int32_t number) {
    if (number < 0) {
      Add(Check::kSlot, index, ToString(i) + " moves what has no slot; drop the key \"slot\"");
      return;
    }
    Add(Check::kSlot, index,
        ToString(i) + " moves " + Text(static_cast<size_t>(number)) +
            "; it must have slot=" + std::to_string(number));
  }

  void CheckLifetimes() {
    for (size_t number = 0; number < Slots().size(); ++number) {
      const Use& use = uses_[number];
      if (use.first == kReported || !Known(Slots()[number])) continue;
      if (use.first < 0) {
        AddUntouched(number);
      } else if (use.first != Slots()[number].first || use.last != Slots()[number].last) {
        Add(Check::kSlot, -1,
            Text(number) + " is used from " + tables_.Place(rank_, use.first) + " to " +
                tables_.Place(rank_, use.last));
      }
    }
  }

  /// The ranges of one arena, by their begin, and the slot that had each last.
  struct Range {
    int64_t end;
    size_t slot;
  };

  void CheckSharing(Arena arena) {
    std::map<int64_t, Range> ranges;
    for (size_t number = 0; number < Slots().size(); ++number) {
      const Slot& slot = Slots()[number];
      if (slot.arena != arena) continue;
      const int64_t begin = slot.offset, end = slot.offset + slot.bytes;
      auto at = ranges.lower_bound(begin);
      if (at != ranges.begin() && std::prev(at)->second.end > begin) {
        // The one that reaches in keeps what lies before.
        const auto reaching = std::prev(at);
        at = ranges.emplace_hint(at, begin, reaching->second);
        reaching->second.end = begin;
      }
      size_t compared = number;
      while (at != ranges.end() && at->first < end) {
        if (at->second.slot != compared) Compare(at->second.slot, number);
        compared = at->second.slot;
        if (at->second.end > end) {
          ranges.emplace_hint(std::next(at), end, at->second);
        }
        at = ranges.erase(at);
      }
      ranges.emplace_hint(at, begin, Range{end, number});
    }
  }

  void Compare(size_t old, size_t next) {
    const int32_t first = uses_[next].first;
    for (const int32_t use : uses_[old].last_on) {
      if (use < 0 || clocks_.Before(use, first)) continue;
      Add(Check::kSharing, first,
          Text(next) + " lies on bytes of " + Text(old) + ", but " + tables_.Place(rank_, first) +
              " does not wait until " + tables_.Place(rank_, use) +
              " is done with them; move one of them, or add the event");
      return;
    }
  }

  const Tables& tables_;
  const Plan& plan_;
  const std::vector<ValueBytes> bytes_;  // by stage
  Findings& findings_;
  size_t columns_;
  std::vector<int32_t> slot_at_;  // by stage, micro-batch, layer, value: of the rank at work
  const Touches touches_;
  Clocks clocks_;
  std::vector<Use> uses_;  // by slot
  std::map<size_t, int32_t>
      second_;  // of what is made twice: the slots of the first and the second
  int rank_ = 0;
  bool found_ = false;
};

}  // namespace

void CheckSlots(const Tables& tables, Findings* findings) {
  const Plan& plan = tables.plan;
  if (!plan.costs) {
    findings->Add(
        Check::kSlot, -1, -1,
        "the plan has no costs, which say how large its values are; compile it with costs");
    return;
  }
  std::string missing;
  std::vector<ValueBytes> bytes;
  for (int s = 0; s < plan.stages; ++s) {
    const std::optional<ValueBytes> of_stage = SizesOf(*plan.costs, plan.layers, &missing, s);
    if (!of_stage) return findings->Add(Check::kSlot, -1, -1, missing);
    bytes.push_back(*of_stage);
  }
  SlotCheck(tables, std::move(bytes), findings).Run();
}

}  // namespace contraflow::check
