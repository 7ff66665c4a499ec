#include "compiler/plan/plan.h"

#include <algorithm>

#include "compiler/plan/error.h"

namespace contraflow {
namespace {

constexpr std::string_view kLevels[] = {"compute", "comm", "component", "buffer"};

}  // namespace

Plan::Plan() = default;
Plan::Plan(const Plan&) = default;
Plan::Plan(Plan&&) noexcept = default;
Plan& Plan::operator=(const Plan&) = default;
Plan& Plan::operator=(Plan&&) noexcept = default;
Plan::~Plan() = default;
bool Plan::operator==(const Plan&) const = default;

std::string_view Name(Level level) {
  CF_ASSERT(static_cast<size_t>(level) < std::size(kLevels));
  return kLevels[static_cast<size_t>(level)];
}

Level ParseLevel(std::string_view name) {
  for (size_t i = 0; i < std::size(kLevels); ++i) {
    if (kLevels[i] == name) return static_cast<Level>(i);
  }
  const std::string text(name.substr(0, 32));
  throw Error("unknown level \"" + text + "\"" + DidYouMean(text, kLevels) +
              "; levels are compute, comm, component, buffer");
}

std::vector<int> RouteOfMicrobatch(const Plan& plan) {
  std::vector<int> route_of(static_cast<size_t>(plan.microbatches), -1);
  for (size_t route = 0; route < plan.routes.size(); ++route) {
    for (const int m : plan.routes[route].microbatches) {
      route_of[static_cast<size_t>(m)] = static_cast<int>(route);
    }
  }
  return route_of;
}

std::vector<std::vector<int>> HoldersOfStage(const Plan& plan) {
  std::vector<std::vector<int>> holders(static_cast<size_t>(plan.stages));
  for (const Route& route : plan.routes) {
    for (size_t s = 0; s < holders.size(); ++s) {
      const int rank = route.ranks[s];
      if (std::find(holders[s].begin(), holders[s].end(), rank) == holders[s].end()) {
        holders[s].push_back(rank);
      }
    }
  }
  return holders;
}

bool NeedsReduce(const Plan& plan, size_t copies) {
  return copies > 1 || plan.data_parallel > 1 || plan.expert_parallel > 1;
}

int64_t InstructionCount(const Plan& plan) {
  int64_t count = 0;
  for (const Program& program : plan.programs) count += static_cast<int64_t>(program.size());
  return count;
}

RecomputedCells::RecomputedCells(const Plan& plan) : microbatches_(plan.microbatches) {
  for (const Program& program : plan.programs) {
    for (const Instruction& i : program) {
      if (!IsRecompute(i.op)) continue;
      if (cells_.empty()) cells_ = Grid<bool>(plan.stages, microbatches_);
      cells_(i.stage, i.microbatch) = true;
    }
  }
}

bool RecomputedCells::HasStage(int stage) const {
  for (int m = 0; m < microbatches_; ++m) {
    if (Has(stage, m)) return true;
  }
  return false;
}

}  // namespace contraflow
