#pragma once

#include <vector>

#include "compiler/bound/work.h"

namespace contraflow {

/// Longest paths of one route (bound_positions.cc): `head` to the start of an operation, `left`
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
