#include "tests/mutants.h"

#include <random>
#include <utility>

#include "tests/knife.h"

namespace contraflow {
namespace {

const std::vector<MutantOperator>& Operators() {
  static const std::vector<MutantOperator> operators = [] {
    std::vector<MutantOperator> all = GeneralOperators();
    for (MutantOperator& aimed : AimedOperators()) all.push_back(std::move(aimed));
    return all;
  }();
  return operators;
}

std::optional<Mutant> Apply(const Plan& plan, size_t operation, std::mt19937_64* random) {
  const MutantOperator& chosen = Operators()[operation % Operators().size()];
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

std::vector<std::string> MutantOperators() {
  std::vector<std::string> names;
  for (const MutantOperator& operation : Operators()) names.emplace_back(operation.name);
  return names;
}

}  // namespace contraflow
