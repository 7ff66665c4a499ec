#pragma once

#include <random>

#include "compiler/plan/plan.h"

namespace contraflow {

/// A plan of random shape whose instructions have every field a plan file can hold. It is well
/// formed, that is ReadPlan takes it, and hardly ever sound.
Plan RandomPlan(std::mt19937_64* random);

}  // namespace contraflow
