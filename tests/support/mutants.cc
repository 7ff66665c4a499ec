#include "tests/support/mutants.h"

#include <algorithm>
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

bool MutantTally::Add(const Mutant& mutant, const std::vector<std::string>& checks) {
  Row& row = rows_[mutant.name];
  ++row.made;
  ++total;
  for (const std::string& check : checks) ++row.checks[check];
  if (checks.size() == 1) needed.insert(checks[0]);
  if (checks.empty()) {
    ++row.sound;
    ++sound;
    return mutant.may_be_sound;
  }
  return std::ranges::any_of(checks, [&](const std::string& check) {
    return std::ranges::count(mutant.expected, check) > 0;
  });
}

std::string MutantTally::Table(Level level) const {
  std::string table;
  for (const std::string& name : MutantOperators(level)) {
    const Row& row = rows_.at(name);
    table += name + ": " + std::to_string(row.made);
    if (row.sound > 0) table += ", sound " + std::to_string(row.sound);
    for (const auto& [check, count] : row.checks) {
      table += ", " + check + " " + std::to_string(count);
    }
    table += "\n";
  }
  return table;
}

}  // namespace contraflow
