// A block is a table of slots for each rank, one instruction a slot. It is made denser twice: first
// with the weight gradients in place, then with F and B alone, where a weight gradient is thought
// to run in the first free slot after its B. Between the two and after them everything starts as
// soon as it can, in the order that was found. The authors leave the steady phase alone; where a
// block is denser if that moves, too, as in AMD's Primus, it does.

#include "schedules/published/v_shape.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "compiler/plan/error.h"
#include "schedules/published/placement.h"

namespace contraflow {
namespace {

constexpr int kFree = -1;
constexpr int kWeight = 4;      // of either pass, in the order of the backwards
constexpr int kLastWeight = 5;  // kWeight and this one: of pass 2 and of pass 3

struct Event {
  int slot, rank, kind, microbatch;
};

/// The slots of one rank.
class Line {
 public:
  /// Room for `count` of each of the first `kinds` kinds.
  Line(int kinds, int count) : at_(static_cast<size_t>(kinds)) {
    for (auto& slots : at_) slots.reserve(static_cast<size_t>(count));
  }

  int kinds() const { return static_cast<int>(at_.size()); }
  int length() const { return static_cast<int>(slots_.size()); }
  const std::vector<int>& at(int kind) const { return at_[static_cast<size_t>(kind)]; }
  int kind(int slot) const { return slots_[static_cast<size_t>(slot)]; }
  /// Slot of the n-th B of the rank.
  int backward(int n) const { return backwards_[static_cast<size_t>(n)]; }

  /// The next of its kind; not before the last one of its kind.
  void Append(int kind, int slot) {
    if (length() <= slot) slots_.resize(static_cast<size_t>(slot) + 1, kFree);
    CF_ASSERT(slots_[static_cast<size_t>(slot)] == kFree);
    slots_[static_cast<size_t>(slot)] = kind;
    at_[static_cast<size_t>(kind)].push_back(slot);
  }

  /// Weight gradients into free slots after their backwards, those of pass 2 first if `split`.
  void AddWeights(bool split) {
    at_.resize(split ? kLastWeight + 1 : kWeight + 1);
    int waiting[2] = {0, 0};
    const int end = length();
    for (int slot = 0; slot < end || waiting[0] + waiting[1] > 0; ++slot) {
      const int here = slot < end ? kind(slot) : kFree;
      if (here == 2 || here == 3) ++waiting[split ? here - 2 : 0];
      if (here != kFree) continue;
      for (const int which : {0, 1}) {
        if (waiting[which] == 0) continue;
        --waiting[which];
        Append(kWeight + which, slot);
        break;
      }
    }
  }

  /// Most activations held at once; from now on Move keeps account.
  int CountHeld() {
    backwards_ = at(2);
    backwards_.insert(backwards_.end(), at(3).begin(), at(3).end());
    std::sort(backwards_.begin(), backwards_.end());
    held_.clear();
    Held held;
    int most = 0;
    for (const int kind : slots_) {
      Step(kind, &held);
      held_.push_back(held);
      most = std::max(most, held.activations);
    }
    return most;
  }

  /// Moves what is in slot `from` to the first free slot in [low, from) that keeps the rank from
  /// holding more than `limit`, if there is one.
  void MoveForward(int low, int from, int microbatch, int limit) {
    for (int to = low; to < from; ++to) {
      if (kind(to) != kFree) continue;
      // In any slot up to the one that holds too much then, it would hold no less there.
      if (const std::optional<int> over = Move(from, to, limit)) {
        to = *over;
        continue;
      }
      const int moved = kind(to);
      at_[static_cast<size_t>(moved)][static_cast<size_t>(microbatch)] = to;
      if (moved == 2 || moved == 3) {
        const auto old = std::lower_bound(backwards_.begin(), backwards_.end(), from);
        const auto now = std::lower_bound(backwards_.begin(), old, to);
        *old = to;
        std::rotate(now, old, old + 1);
      }
      return;
    }
  }

 private:
  /// After a slot: activations, and backwards whose W has not run yet.
  struct Held {
    int activations = 0, waiting = 0;

    bool operator==(const Held&) const = default;
  };

  void Step(int kind, Held* held) const {
    const bool weights_placed = kinds() > kPasses;
    if (kind == 0 || kind == 1) ++held->activations;
    if (kind == 2 || kind == 3) ++held->waiting;
    if (kind >= kWeight || (kind == kFree && !weights_placed && held->waiting > 0)) {
      --held->activations;
      --held->waiting;
    }
  }

  /// The first slot that would hold more than `limit` then; nothing, and it is done, if none would.
  std::optional<int> Move(int from, int to, int limit) {
    const auto source = static_cast<size_t>(from), target = static_cast<size_t>(to);
    std::swap(slots_[source], slots_[target]);
    Held held = to > 0 ? held_[target - 1] : Held{};
    after_.clear();
    for (size_t slot = target; slot < slots_.size(); ++slot) {
      Step(slots_[slot], &held);
      if (held.activations > limit) {
        std::swap(slots_[source], slots_[target]);
        return static_cast<int>(slot);
      }
      if (slot > source && held == held_[slot]) break;  // the rest is as before
      after_.push_back(held);
    }
    std::copy(after_.begin(), after_.end(), held_.begin() + to);
    return std::nullopt;
  }

  std::vector<int> slots_;            // kind of each
  std::vector<std::vector<int>> at_;  // by kind and micro-batch
  std::vector<int> backwards_;        // slots of every B, ascending
  std::vector<Held> held_;            // after each slot
  std::vector<Held> after_;           // Move: the same of some slots
};

/// Slots of the longest line.
int Length(const std::vector<Line>& lines) {
  int length = 0;
  for (const Line& line : lines) length = std::max(length, line.length());
  return length;
}

/// Visits everything in the order of slots, then ranks; meanwhile things may move to slots before.
template <typename Visit>
void InOrder(const std::vector<Line>& lines, const Visit& visit) {
  const int length = Length(lines);
  std::vector<std::array<int, kLastWeight + 1>> next(lines.size());
  for (int slot = 0; slot < length; ++slot) {
    for (size_t rank = 0; rank < lines.size(); ++rank) {
      const int kind = slot < lines[rank].length() ? lines[rank].kind(slot) : kFree;
      if (kind == kFree) continue;
      const int microbatch = next[rank][static_cast<size_t>(kind)]++;
      visit(Event{slot, static_cast<int>(rank), kind, microbatch});
    }
  }
}

/// The first slot that what an event waits for allows, for F and B.
int EarliestPass(const std::vector<Line>& lines, const Event& event) {
  const auto rank = static_cast<size_t>(event.rank), m = static_cast<size_t>(event.microbatch);
  const auto behind = [&](size_t other, int kind) { return lines[other].at(kind)[m] + 1; };
  int earliest = 0;
  const bool down = event.kind % 2 == 0;
  if (down && rank > 0) earliest = behind(rank - 1, event.kind);
  if (!down && rank + 1 < lines.size()) earliest = behind(rank + 1, event.kind);
  if (event.kind > 0) earliest = std::max(earliest, behind(rank, event.kind - 1));
  return earliest;
}

/// Every instruction as early as its order allows, in slots again.
std::vector<Line> Squeezed(const std::vector<Line>& lines, int count) {
  std::vector<Line> squeezed(lines.size(), Line(lines[0].kinds(), count));
  InOrder(lines, [&](const Event& event) {
    Line& line = squeezed[static_cast<size_t>(event.rank)];
    int slot = line.length();
    if (event.kind < kPasses) slot = std::max(slot, EarliestPass(squeezed, event));
    line.Append(event.kind, slot);
  });
  return squeezed;
}

/// Only F and B.
std::vector<Line> WithoutWeights(const std::vector<Line>& lines, int count) {
  std::vector<Line> passes(lines.size(), Line(kPasses, count));
  for (size_t rank = 0; rank < lines.size(); ++rank) {
    for (int slot = 0; slot < lines[rank].length(); ++slot) {
      const int kind = lines[rank].kind(slot);
      if (kind >= 0 && kind < kPasses) passes[rank].Append(kind, slot);
    }
  }
  return passes;
}

/// Moves instructions to earlier slots: those after the last micro-batch has entered and, with
/// weight gradients in place, those before the first is back, or all of them if `steady`.
void Fill(bool steady, std::vector<Line>* lines) {
  const bool weights_placed = lines->front().kinds() > kPasses;
  int limit = 0;
  for (Line& line : *lines) limit = std::max(limit, line.CountHeld());
  const int last = static_cast<int>(lines->front().at(0).size()) - 1;
  bool back = steady, entered = false;
  InOrder(*lines, [&](const Event& event) {
    back = back || (event.rank == 0 && event.kind == 3);
    const bool moves = entered || (weights_placed && (steady || !back));
    entered = entered || (back && event.kind == 0 && event.microbatch == last);
    if (!moves) return;
    Line& line = (*lines)[static_cast<size_t>(event.rank)];
    int low =
        event.kind == kWeight ? line.backward(event.microbatch) + 1 : EarliestPass(*lines, event);
    if (event.microbatch > 0) {
      low = std::max(low, line.at(event.kind)[static_cast<size_t>(event.microbatch) - 1] + 1);
    }
    CF_ASSERT(low <= event.slot);
    line.MoveForward(low, event.slot, event.microbatch, limit);
  });
}

/// The block once for each of `count` micro-batches, made denser (Fill).
std::vector<Line> Repeated(int count, const std::vector<PassSlots>& block, bool steady) {
  std::vector<Line> lines(block.size(), Line(kPasses, count));
  for (size_t rank = 0; rank < block.size(); ++rank) {
    for (int m = 0; m < count; ++m) {
      for (int pass = 0; pass < kPasses; ++pass) {
        lines[rank].Append(pass, block[rank][static_cast<size_t>(pass)] + 6 * m);
      }
    }
    lines[rank].AddWeights(false);
  }
  Fill(steady, &lines);
  lines = WithoutWeights(Squeezed(lines, count), count);
  Fill(steady, &lines);
  for (Line& line : lines) line.AddWeights(false);
  lines = WithoutWeights(Squeezed(lines, count), count);
  for (Line& line : lines) line.AddWeights(true);
  return lines;
}

}  // namespace

Instruction PassInstruction(int ranks, int rank, int pass, int microbatch) {
  const bool down = pass == 0 || pass == 3 || pass == 5;
  const Op op = pass < 2 ? Op::F : pass < kPasses ? Op::B : Op::W;
  return CellOp(op, down ? rank : 2 * ranks - 1 - rank, microbatch);
}

Plan BlockPlan(const Spec& spec, const std::vector<PassSlots>& block) {
  std::vector<Line> lines = Repeated(spec.microbatches, block, false);
  std::vector<Line> steady = Repeated(spec.microbatches, block, true);
  if (Length(steady) < Length(lines)) lines = std::move(steady);
  Plan plan = VPlan(spec);
  for (int rank = 0; rank < spec.ranks; ++rank) {
    const Line& line = lines[static_cast<size_t>(rank)];
    int next[kLastWeight + 1] = {};
    for (int slot = 0; slot < line.length(); ++slot) {
      const int kind = line.kind(slot);
      if (kind == kFree) continue;
      plan.program(rank).push_back(PassInstruction(spec.ranks, rank, kind, next[kind]++));
    }
  }
  return plan;
}

}  // namespace contraflow
