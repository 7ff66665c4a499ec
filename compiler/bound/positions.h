#pragma once

#include <cstddef>
#include <vector>

#include "compiler/bound/work.h"

namespace contraflow {

/// `from` of a stage, k - shift, ends before F of another stage, k, starts.
struct Precedence {
  Pass from;
  size_t from_stage, to_stage;
  size_t shift;
  Time delay;  ///< from the start of the one to the start of the other
};

/// Before F of stages[j] of one rank, and after its B, come all but this many of what the first j +
/// 1 stages have done before, or have to do after.
struct Together {
  std::vector<size_t> stages;  ///< the first j + 1
  size_t backwards = 0;        ///< that need not have ended, and forwards that need not come after
  size_t rests = 0;            ///< that need not have ended; without a stash none need
};

/// Rules of a memory limit on the positions of one route; none without a limit.
struct MemoryRules {
  std::vector<Precedence> precedences;
  std::vector<std::vector<Precedence>> before;  ///< the same, by the stage whose F comes after
  std::vector<Together> together;               ///< by the last of its stages
};

MemoryRules RulesOf(const BoundInput& input, const RouteWork& route);

/// Work of a rank between two operations of one route, numbered by position (order.cc): from the
/// start of `from`, i, to the start of `to`, k, it works for `once` + (k - i) `each`, or longer,
/// for any k >= i.
struct WorkBetween {
  Pass from, to;
  size_t from_stage, to_stage;
  Time once, each;
};

/// None where a pair may be shorter than its parts.
std::vector<WorkBetween> WorkBetweenOf(const BoundInput& input, const RouteWork& route);

/// Work left to a rank when an operation of a route starts: of each position from its own on, at
/// least so much. One a stage; 0 if a pair may be shorter than its parts.
struct Remainder {
  std::vector<Time> forward, backward;
};

Remainder RemainderOf(const BoundInput& input, const RouteWork& route);

/// Longest paths of one route (positions.cc): `head` to the start of an operation, `left`
/// from its start to the end of the step; by stage, and within it by position.
class Positions {
 public:
  /// Time and memory linear in chunks, as long as a rank has few stages.
  Positions(const BoundInput& input, const RouteWork& route);

  std::vector<Time> f_head, b_head, w_head, f_left, b_left, w_left;

  const RouteWork& route() const { return *route_; }
  size_t size() const { return route_->count; }
  size_t At(size_t s, size_t k) const { return s * size() + k; }

 private:
  const RouteWork* route_;
};

}  // namespace contraflow
