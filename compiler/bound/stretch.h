#pragma once

#include <vector>

#include "compiler/bound/work.h"

namespace contraflow {

/// What a rank has to do between two operations of one route, numbered by position
/// (bound_order.cc): from the start of `from`, i, to the start of `to`, k, it works for `once` + (k
/// - i) `each`, or longer, for any k >= i.
struct Stretch {
  Pass from, to;
  size_t from_stage, to_stage;
  Time once, each;
};

/// None where a pair may be shorter than its parts.
std::vector<Stretch> StretchesOf(const BoundInput& input, const RouteWork& route);

/// What a rank has still to do when an operation of a route starts: of each position from its own
/// on, at least so much. By stage; 0 where a pair may be shorter than its parts.
struct Remainder {
  std::vector<Time> forward, backward;
};

Remainder RemainderOf(const BoundInput& input, const RouteWork& route);

}  // namespace contraflow
