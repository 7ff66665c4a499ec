#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "compiler/plan/plan.h"
#include "runtime/core/walk.h"

namespace contraflow {

/// Places of the values that the instructions of one rank touch, and when they begin and end. The
/// same in every step, so it is found before the first. Below level buffer values are packed in the
/// order of the program: where one has ended the next of its kind may lie, but for what is sent, as
/// nothing says when that has left.
class ValuePlaces {
 public:
  /// Place of a value, from its making to its last use. Components and messages count from 0.
  struct Place {
    Value value;
    size_t first, last;
    bool sent = false;
    /// How many OFFLOADs have ended when this one's has; 0 unless that is its end.
    size_t gone = 0;
    /// How many must have ended before its bytes may be touched; 0 where slots say where they lie,
    /// for then the plan says what waits for what.
    size_t waits = 0;
    Arena arena = {};
    int64_t offset = -1;
  };
  /// An instruction touching a value.
  struct Use {
    Value value;  ///< its role for the layer of the instruction (SeenFrom)
    const Place* place;
    size_t now;

    bool begins() const { return now == place->first; }
    bool ends() const { return now == place->last; }
  };

  /// The plan is sound (Verify); `bytes` are those of each value. Throws Error,
  /// with the remedy, if the plan's slots are for another model (its name) or
  /// device ("cpu", "cuda"), and if a value is touched that was not made, or
  /// made and not used.
  ValuePlaces(const Plan& plan, int rank, const ComponentWalk& walk, const ValueBytes& bytes,
              const std::string& model, const std::string& device);
  /// Like the overload above, for opaque stages, whose slots may also have more bytes than they
  /// need. With `lanes` messages move while the rank computes: below level buffer they share no
  /// bytes then.
  ValuePlaces(const Plan& plan, int rank, const ComponentWalk& walk, const ValueBytes& bytes,
              bool lanes);
  ValuePlaces(const ValuePlaces&) = delete;

  /// Uses of a component or message of the rank.
  const std::vector<Use>& Of(const Instruction& i) const;
  /// Bytes that each arena needs.
  const std::array<int64_t, kArenaCount>& arena_bytes() const { return arena_bytes_; }

 private:
  using Key = std::tuple<Op, int, int, int>;  // stage, layer, micro-batch
  static Key KeyOf(const Instruction& i) { return {i.op, i.stage, i.layer, i.microbatch}; }

  /// Throws Error if a slot has not the bytes that its value needs.
  using Fit = std::function<void(Value value, int64_t has)>;

  ValuePlaces(const Plan& plan, int rank, const ComponentWalk& walk, const ValueBytes& bytes,
              bool lanes, const Fit& fit);
  void FindUses(const Plan& plan, int rank, const ComponentWalk& walk);
  void Follow(const std::vector<Slot>& slots, const Fit& fit);
  void Pack(const ValueBytes& bytes, bool lanes);

  using ValueKey = std::tuple<int, int, int, Value>;  // stage, layer, micro-batch

  std::deque<Place> places_;                      // in the order in which they begin
  std::map<ValueKey, std::vector<Place*>> made_;  // once for every time that a value is made
  std::map<Key, std::vector<Use>> uses_;
  std::array<int64_t, kArenaCount> arena_bytes_{};
};

}  // namespace contraflow
