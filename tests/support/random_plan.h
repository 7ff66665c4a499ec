#pragma once

#include <functional>
#include <random>

#include "compiler/plan/plan.h"
#include "schedules/registry.h"

namespace contraflow {

/// A plan of random shape whose instructions have every field a plan file can hold. It is well
/// formed, that is ReadPlan takes it, and hardly ever sound.
Plan RandomPlan(std::mt19937_64* random);

/// A sound plan of level comm and what it costs.
struct CommCase {
  Plan plan;
  CostModel costs;
};

/// One of a schedule, each in its turn, on up to this many ranks with up to this many
/// micro-batches; `choose` gives the spec its costs, and whatever else it likes.
CommCase DrawCommCase(std::mt19937_64* random, int round, int most_ranks, int most_microbatches,
                      const std::function<void(const Schedule&, Spec*)>& choose);

}  // namespace contraflow
