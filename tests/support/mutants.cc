#include "tests/support/mutants.h"

#include <random>
#include <utility>

#include "tests/support/knife.h"

namespace contraflow {
namespace {

std::vector<MutantOperator> Join(std::vector<MutantOperator> first,
                                 std::vector<MutantOperator> second) {
  for (MutantOperator& operation : second) first.push_back(std::move(operation));
  return first;
}

const std::vector<MutantOperator>& Operators(Level level) {
  static const std::vector<MutantOperator> chunks = Join(GeneralOperators(), AimedOperators());
  static const std::vector<MutantOperator> lanes = LaneOperators();
  static const std::vector<MutantOperator> buffers = Join(LaneOperators(), SlotOperators());
  return level == Level::kBuffer ? buffers : level == Level::kComponent ? lanes : chunks;
}

std::optional<Mutant> Apply(const Plan& plan, size_t operation, std::mt19937_64* random) {
  const MutantOperator& chosen = Operators(plan.level)[operation % Operators(plan.level).size()];
  Mutant mutant{chosen.name, "", plan, chosen.expected, chosen.may_be_sound};
  Knife knife(&mutant.plan, random);
  if (!chosen.apply(&knife) || mutant.plan == plan) return std::nullopt;
  mutant.what = knife.what;
  return mutant;
}

}  // namespace

std::vector<Mutant> MakeMutants(const Plan& plan, int count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Mutant> mutants;
  for (size_t k = 0; k < static_cast<size_t>(count); ++k) {
    // Most operators find something on the first try; the rarest placements need a few.
    for (int attempt = 0; attempt < 8; ++attempt) {
      std::optional<Mutant> mutant = Apply(plan, k, &random);
      if (!mutant) continue;
      mutants.push_back(*std::move(mutant));
      break;
    }
  }
  return mutants;
}

std::optional<Mutant> MakeMutant(const Plan& plan, size_t operation, uint64_t seed) {
  std::mt19937_64 random(seed);
  return Apply(plan, operation, &random);
}

std::vector<std::string> MutantOperators(Level level) {
  std::vector<std::string> names;
  for (const MutantOperator& operation : Operators(level)) names.emplace_back(operation.name);
  return names;
}

}  // namespace contraflow
