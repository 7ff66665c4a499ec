#include "tests/support/support.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <sstream>
#include <utility>

#include "compiler/lower/interleave.h"
#include "compiler/lower/lower.h"
#include "compiler/plan/error.h"
#include "schedules/registry.h"

namespace contraflow {
namespace {

Route ParseRoute(std::istringstream* words) {
  Route route;
  std::vector<int>* list = &route.ranks;
  for (std::string word; *words >> word;) {
    if (word == ":") {
      list = &route.microbatches;
    } else {
      list->push_back(std::stoi(word));
    }
  }
  return route;
}

/// Sizes and the default route, from the instructions.
void Complete(Plan* plan) {
  plan->ranks = static_cast<int>(plan->programs.size());
  for (const Program& program : plan->programs) {
    for (const Instruction& i : program) {
      plan->microbatches = std::max({plan->microbatches, i.microbatch + 1, i.back_microbatch + 1});
    }
  }
  if (plan->routes.empty()) {
    plan->routes.resize(1);
    plan->routes[0].ranks.resize(plan->programs.size());
    std::iota(plan->routes[0].ranks.begin(), plan->routes[0].ranks.end(), 0);
    plan->routes[0].microbatches.resize(static_cast<size_t>(plan->microbatches));
    std::iota(plan->routes[0].microbatches.begin(), plan->routes[0].microbatches.end(), 0);
  }
  plan->stages = static_cast<int>(plan->routes[0].ranks.size());
  for (const Route& route : plan->routes) {
    for (const int m : route.microbatches) plan->microbatches = std::max(plan->microbatches, m + 1);
  }
}

}  // namespace

Plan PlanFromText(std::string_view text) {
  Plan plan;
  plan.schedule = "test";
  bool level_given = false;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    const size_t begin = line.find_first_not_of(' ');
    if (begin == std::string::npos) continue;
    line = line.substr(begin);
    std::istringstream words(line);
    std::string first;
    words >> first;
    if (first == "rank") {
      plan.programs.emplace_back();
    } else if (first == "level") {
      words >> first;
      plan.level = ParseLevel(first);
      level_given = true;
    } else if (first == "copies") {
      words >> plan.data_parallel;
    } else if (first == "route") {
      plan.routes.push_back(ParseRoute(&words));
    } else {
      if (plan.programs.empty()) throw Error("no \"rank\" before \"" + line + "\"");
      plan.programs.back().push_back(ParseInstruction(line));
      const Work work = WorkOf(plan.programs.back().back().op);
      const bool any_level =
          work == Work::kCompute || work == Work::kOffload || work == Work::kReload;
      if (!level_given && !any_level) plan.level = Level::kComm;
    }
  }
  Complete(&plan);
  return plan;
}

std::string FindingsText(const Plan& plan) {
  std::string text;
  for (const Finding& finding : Verify(plan)) {
    text += finding.check + ": " + ToString(finding, plan) + "\n";
  }
  return text;
}

std::vector<std::string> ChecksOf(const std::vector<Finding>& findings) {
  std::vector<std::string> checks;
  for (const Finding& finding : findings) {
    if (checks.empty() || checks.back() != finding.check) checks.push_back(finding.check);
  }
  return checks;
}

Spec MakeSpec(std::string_view schedule, int ranks, int microbatches, CostModel costs) {
  Spec spec;
  spec.schedule = schedule;
  spec.ranks = ranks;
  spec.microbatches = microbatches;
  spec.costs = std::move(costs);
  // Options of `auto`: many plans in little time, and of the stages that the costs have.
  spec.search.placement = Placement::kLinear;
  spec.search.budget = 1'000'000;
  return spec;
}

int FromEnvironment(const char* name, int otherwise) {
  const char* const value = std::getenv(name);
  return value == nullptr ? otherwise : std::atoi(value);
}

void SetSizes(std::mt19937_64* random, int stages, CommCost* comm) {
  if (stages < 2) return;
  for (int s = 0; s + 1 < stages; ++s) {
    const auto more = static_cast<int64_t>((*random)() % 10);
    comm->sizes.push_back({comm->bytes + more, comm->occupancy + more});
  }
  const auto least = std::ranges::min(comm->sizes, {}, &MessageSize::bytes);
  comm->bytes = least.bytes;
  comm->occupancy = least.occupancy;
}

CostModel RandomCosts(std::mt19937_64* random, int stages, int microbatches) {
  const auto draw = [&](Time low, Time high) {
    return std::uniform_int_distribution<Time>(low, high)(*random);
  };
  CostModel costs;
  const int entries = draw(0, 1) == 0 ? 1 : stages;
  for (int s = 0; s < entries; ++s) {
    StageCost stage{.f = draw(0, 20), .b = draw(0, 20), .w = draw(0, 20)};
    stage.bw = std::max(stage.b, stage.w) + draw(0, std::min(stage.b, stage.w));
    stage.fb = std::max(stage.f, stage.bw) + draw(0, std::min(stage.f, stage.bw));
    stage.reduce = draw(0, 3) == 0 ? draw(1, 9) : 0;
    stage.step = draw(0, 3) == 0 ? draw(1, 9) : 0;
    costs.stages.push_back(stage);
  }
  if (draw(0, 1) == 0) costs.comm.latency = draw(0, 9);
  if (draw(0, 2) == 0) {
    costs.comm.bytes = 1;
    costs.comm.bandwidth = 1;
    costs.comm.occupancy = draw(0, 15);
  }
  if (draw(0, 2) == 0) {
    for (int m = 0; m < microbatches; ++m) {
      costs.microbatch_scale.push_back(static_cast<double>(draw(1, 30)) / 10);
    }
  }
  return costs;
}

CostModel RandomUnlikeCosts(std::mt19937_64* random, int stages, int max_layers, bool kinds,
                            Overlap overlap) {
  const auto draw = [&](Time low, Time high) {
    return std::uniform_int_distribution<Time>(low, high)(*random);
  };
  CostModel costs;
  costs.comm.latency = draw(0, 1) * draw(0, 30);
  const Time least = draw(0, 4) == 0 ? 0 : 1;
  for (int s = 0; s < stages; ++s) {
    MoeCost moe;
    moe.layers_per_stage = static_cast<int>(draw(1, max_layers));
    for (int l = 0; l < moe.layers_per_stage; ++l) {
      moe.kinds.push_back(kinds ? static_cast<LayerKind>(draw(0, 2)) : LayerKind::kMoe);
      for (const ComponentCost& component : kComponentCosts) {
        const Time time = draw(least, 25);
        (moe.*component.times).push_back(Has(moe.kinds.back(), component.op) ? time : 0);
      }
    }
    CostModel stage;
    stage.moe = moe;
    DeriveChunkCosts(&stage, overlap);
    costs.stages.push_back(stage.stages.front());
    costs.stages.back().reduce = draw(0, 1) * draw(0, 9);
    costs.stage_moe.push_back(std::move(moe));
  }
  costs.derived = overlap;
  return costs;
}

CostModel RandomMoeCosts(std::mt19937_64* random, int max_layers, Overlap overlap) {
  const auto draw = [&](Time low, Time high) {
    return std::uniform_int_distribution<Time>(low, high)(*random);
  };
  MoeCost moe;
  moe.layers_per_stage = static_cast<int>(draw(1, max_layers));
  const bool each = draw(0, 2) == 0;
  const Time least = draw(0, 4) == 0 ? 0 : 1;
  const auto times = [&](Time most) {
    std::vector<Time> result;
    for (int l = 0; l < (each ? moe.layers_per_stage : 1); ++l) {
      result.push_back(draw(least, most));
    }
    return result;
  };
  const Time kind = draw(0, 2);
  const Time compute = kind == 0 ? 40 : 12, exchange = kind == 1 ? 40 : 12;
  for (auto* part : {&moe.attn_f, &moe.mlp_f, &moe.mlp_b, &moe.attn_b, &moe.mlp_w, &moe.attn_w}) {
    *part = times(compute);
  }
  for (auto* part : {&moe.dispatch_f, &moe.combine_f, &moe.dispatch_b, &moe.combine_b}) {
    *part = times(exchange);
  }
  CostModel costs;
  costs.moe = moe;
  DeriveChunkCosts(&costs, overlap);
  if (draw(0, 2) == 0) {
    costs.stages.front().reduce = draw(0, 9);
    costs.stages.front().step = draw(0, 9);
  }
  if (draw(0, 1) == 0) costs.comm.latency = draw(0, 30);
  if (draw(0, 2) == 0) {
    costs.comm.bytes = 1;
    costs.comm.bandwidth = 1;
    costs.comm.occupancy = draw(0, 15);
  }
  return costs;
}

std::vector<Spec> RandomSpecs(std::mt19937_64* random, int count, int max_ranks,
                              int max_microbatches) {
  const auto draw = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(*random);
  };
  std::vector<Spec> specs;
  for (size_t next = 0; specs.size() < static_cast<size_t>(count); ++next) {
    const Schedule& schedule = *Schedules()[next % Schedules().size()];
    // Schedules that take few shapes must not end up with few specs.
    for (;;) {
      Spec spec = MakeSpec(schedule.name, draw(1, max_ranks), draw(1, max_microbatches), {});
      if (!schedule.reject(spec).empty()) continue;
      spec.data_parallel = draw(1, 2);
      spec.costs = RandomCosts(random, schedule.stages(spec), spec.microbatches);
      specs.push_back(std::move(spec));
      break;
    }
  }
  return specs;
}

}  // namespace contraflow
