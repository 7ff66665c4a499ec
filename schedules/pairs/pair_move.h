#pragma once

#include <cstddef>
#include <optional>
#include <random>

#include "schedules/search/search_problem.h"

namespace contraflow {

/// `piece` in place of the actions [from, to) of a list: the same work in another order or
/// otherwise paired.
struct PairMove {
  size_t from = 0, to = 0;
  ActionList piece;
};

/// Less than `count`, the same on every machine.
inline size_t Draw(std::mt19937_64* random, size_t count) { return (*random)() % count; }

/// A random change of a list, which need not be one that the rank can run; nothing where the
/// change that was drawn does not apply there. `split`: weight gradients may run apart.
std::optional<PairMove> DrawMove(const ActionList& list, std::mt19937_64* random);

}  // namespace contraflow
