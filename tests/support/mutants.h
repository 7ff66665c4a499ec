#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compiler/plan/plan.h"

namespace contraflow {

/// A sound plan with one thing changed.
struct Mutant {
  std::string name;  ///< the operator: "drop RECV"
  std::string what;  ///< what it did: "rank 1, 4 (RECV_F s1 m2 from=0)"
  Plan plan;
  std::vector<std::string> expected;  ///< Verify must report one of these checks
  bool may_be_sound = false;          ///< the change can be harmless: then it must run right
};

/// `count` mutants of a plan, operators in turn; those that have nothing to work on are left out,
/// so there may be fewer. Same plan and seed, same mutants.
std::vector<Mutant> MakeMutants(const Plan& plan, int count, uint64_t seed);

/// One mutant by the operator of this number, counted round the list; nothing if it has nothing to
/// work on. Takes any plan, a mutant too.
std::optional<Mutant> MakeMutant(const Plan& plan, size_t operation, uint64_t seed);

/// The names of all operators for plans of a level.
std::vector<std::string> MutantOperators(Level level);

}  // namespace contraflow
