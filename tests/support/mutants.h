#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "compiler/plan/plan.h"

namespace contraflow {

/// A sound plan with one thing changed.
struct Mutant {
  std::string name;  ///< the operator: "drop RECV"
  std::string what;  ///< description: "rank 1, 4 (RECV_F s1 m2 from=0)"
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

/// Counts what became of the mutants of each operator.
class MutantTally {
 public:
  int total = 0, sound = 0;
  std::set<std::string> needed = {};  ///< checks that alone catch some mutant

  /// False where the mutant is rejected by none of its expected checks, or is sound and may not be.
  bool Add(const Mutant& mutant, const std::vector<std::string>& checks);
  /// A line for each operator of a level. Throws if one of them made no mutant.
  std::string Table(Level level) const;

 private:
  struct Row {
    int made = 0, sound = 0;
    std::map<std::string, int> checks;
  };
  std::map<std::string, Row> rows_;
};

}  // namespace contraflow
