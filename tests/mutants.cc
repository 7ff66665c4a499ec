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

}  // namespace

std::vector<Mutant> MakeMutants(const Plan& plan, int count, uint64_t seed) {
  std::mt19937_64 random(seed);
  const std::vector<MutantOperator>& operators = Operators();
  std::vector<Mutant> mutants;
  for (int k = 0; k < count; ++k) {
    const MutantOperator& operation = operators[static_cast<size_t>(k) % operators.size()];
    // Most operators find something on the first try; the rarest placements need a few.
    for (int attempt = 0; attempt < 8; ++attempt) {
      Mutant mutant{operation.name, "", plan, operation.expected, operation.may_be_sound};
      Knife knife(&mutant.plan, &random);
      if (!operation.apply(&knife) || mutant.plan == plan) continue;
      mutant.what = knife.what;
      mutants.push_back(std::move(mutant));
      break;
    }
  }
  return mutants;
}

std::vector<std::string> MutantOperators() {
  std::vector<std::string> names;
  for (const MutantOperator& operation : Operators()) names.emplace_back(operation.name);
  return names;
}

}  // namespace contraflow
