#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "compiler/plan/plan.h"

namespace contraflow {

/// An instruction of the plan at work.
struct Place {
  size_t rank, index;
};

/// A plan under the knife. Operators return false if they find nothing to work on.
class Knife {
 public:
  Knife(Plan* plan, std::mt19937_64* random) : plan_(*plan), random_(*random) {}

  std::string what;

  Plan& plan() { return plan_; }
  int Draw(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  template <typename Wanted>
  std::optional<Place> Pick(const Wanted& wanted) {
    std::vector<Place> places;
    for (size_t r = 0; r < plan_.programs.size(); ++r) {
      for (size_t k = 0; k < plan_.programs[r].size(); ++k) {
        if (wanted(plan_.programs[r][k])) places.push_back({r, k});
      }
    }
    if (places.empty()) return std::nullopt;
    const Place place = places[static_cast<size_t>(Draw(0, static_cast<int>(places.size()) - 1))];
    Note(place);
    return place;
  }

  /// The first instruction of a rank that is wanted.
  template <typename Wanted>
  std::optional<Place> Find(size_t rank, const Wanted& wanted) {
    const Program& program = plan_.programs[rank];
    const auto found = std::ranges::find_if(program, wanted);
    if (found == program.end()) return std::nullopt;
    return Place{rank, static_cast<size_t>(found - program.begin())};
  }

  Instruction& At(Place place) { return plan_.programs[place.rank][place.index]; }
  Program& ProgramOf(Place place) { return plan_.programs[place.rank]; }

  /// Gives a field another value below `size`.
  bool Change(int* field, int size) {
    if (size < 2) return false;
    const int value = Draw(0, size - 2);
    *field = value + (value >= *field ? 1 : 0);
    return true;
  }

  /// Remembers an instruction for the report.
  void Note(Place place) {
    what += (what.empty() ? "" : "; ") + ("rank " + std::to_string(place.rank)) + ", " +
            std::to_string(place.index) + " (" + ToString(At(place)) + ")";
  }

  void Drop(Place place) {
    ProgramOf(place).erase(ProgramOf(place).begin() + static_cast<std::ptrdiff_t>(place.index));
  }
  void Insert(size_t rank, size_t index, const Instruction& i) {
    Program& program = plan_.programs[rank];
    program.insert(program.begin() + static_cast<std::ptrdiff_t>(index), i);
  }
  /// Moves an instruction in front of the one at `to` (counted without it).
  void Move(Place place, size_t to) {
    const Instruction i = At(place);
    Drop(place);
    Insert(place.rank, to, i);
  }

 private:
  Plan& plan_;
  std::mt19937_64& random_;
};

inline bool IsCompute(const Instruction& i) { return WorkOf(i.op) == Work::kCompute; }
inline bool Sends(const Instruction& i) { return IsSend(i.op); }
inline bool Receives(const Instruction& i) { return IsRecv(i.op); }
inline bool IsTransfer(const Instruction& i) { return IsMessage(i.op); }
inline bool IsReduce(const Instruction& i) { return i.op == Op::REDUCE; }
inline bool IsStep(const Instruction& i) { return i.op == Op::STEP; }
inline bool IsAny(const Instruction&) { return true; }

/// Slots of a rank as a compiler would have them for the program there now: their uses, order and
/// numbers; offsets stay.
void RefreshSlots(Plan* plan, size_t rank);

using Wanted = bool (*)(const Instruction&);
using Operator = std::function<bool(Knife*)>;

/// An operator of the table, by name: what it does and which check must object.
struct MutantOperator {
  const char* name;
  Operator apply;
  std::vector<std::string> expected;
  bool may_be_sound = false;
};

/// Changes to any instruction: dropped, repeated, changed, moved.
std::vector<MutantOperator> GeneralOperators();
/// Changes that break one certain promise: of order, groups, reductions, routes.
std::vector<MutantOperator> AimedOperators();
/// Changes to plans with lanes. Events and slots follow instructions that move.
std::vector<MutantOperator> LaneOperators();
/// Changes to slots.
std::vector<MutantOperator> SlotOperators();

}  // namespace contraflow
