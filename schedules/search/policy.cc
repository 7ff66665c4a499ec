#include "schedules/search/policy.h"

#include <algorithm>

#include "schedules/search/search.h"

namespace contraflow {
namespace {

std::string Name(Turn turn) {
  constexpr const char* kNames[] = {"backward", "alternate", "forward"};
  return kNames[static_cast<size_t>(turn)];
}

std::string Name(Pick pick) {
  constexpr const char* kNames[] = {"deep", "shallow", "early", "old"};
  return kNames[static_cast<size_t>(pick)];
}

}  // namespace

std::string ToString(const Policy& policy) {
  return "policy ahead " + std::to_string(policy.ahead) +
         (policy.depth == Depth::kLag ? " of lag" : "") + " fill " + std::to_string(policy.fill) +
         " wait " + std::to_string(policy.wait) + " " + std::to_string(policy.wait_forward) + " " +
         std::to_string(policy.wait_backward) + " " + Name(policy.turn) + " " +
         Name(policy.forward) + " " + Name(policy.backward) + (policy.fused ? " fused" : "");
}

Rules RulesOf(const SearchProblem& problem, const Policy& policy) {
  Rules rules;
  rules.fused = policy.fused;
  rules.ranks.assign(problem.stages_of.size(), {.fill = policy.fill,
                                                .wait = policy.wait,
                                                .wait_forward = policy.wait_forward,
                                                .wait_backward = policy.wait_backward,
                                                .turn = policy.turn,
                                                .forward = policy.forward,
                                                .backward = policy.backward});
  Time busiest = 1;
  for (const std::vector<int>& here : problem.stages_of) {
    Time one = 0;
    for (const int index : here) {
      const RouteStage& stage = problem.stage(index);
      if (stage.count > 0) one += stage.cost.f + stage.cost.b + stage.cost.w;
    }
    busiest = std::max(busiest, one);
  }
  rules.ahead.resize(problem.stages.size());
  // The stages of a route are in order.
  Time lag = 0;
  for (size_t i = problem.stages.size(); i-- > 0;) {
    const RouteStage& stage = problem.stages[i];
    if (stage.after < 0) lag = 0;
    const auto here = static_cast<Time>(problem.stages_of[static_cast<size_t>(stage.rank)].size());
    const bool by_lag = policy.depth == Depth::kLag;
    const Time depth = by_lag ? lag : problem.frame.stages - 1 - stage.number;
    const Time whole = 100 * (by_lag ? busiest : here);
    Time ahead = stage.count;
    if (policy.ahead > 0) {
      ahead = std::min(ahead, 1 + (depth * policy.ahead + whole - 1) / whole);
    }
    rules.ahead[i] = static_cast<int32_t>(std::max<Time>(ahead, 1));
    lag += stage.cost.f + stage.cost.b + 2 * stage.hop;
  }
  rules.ahead_first = rules.ahead;
  return rules;
}

// Choices that turned out to matter, most of all: how many micro-batches a stage may be ahead, from
// 1F1B to as many as memory holds; whether weight gradients run in gaps that are too short for
// them; and on ranks with several stages that a forward waits. The first of each list is the most
// successful.
std::vector<Policy> PolicyGrid(const SearchProblem& problem) {
  struct Ahead {
    int percent;
    Depth depth;
  };
  constexpr Ahead kAhead[] = {{0, Depth::kStages},   {100, Depth::kStages}, {125, Depth::kStages},
                              {150, Depth::kStages}, {200, Depth::kStages}, {100, Depth::kLag},
                              {125, Depth::kLag},    {150, Depth::kLag},    {175, Depth::kLag},
                              {200, Depth::kLag},    {250, Depth::kLag},    {300, Depth::kLag}};
  const bool several = problem.several(), faster = JoiningPays(problem);
  std::vector<Policy> grid;
  const auto add = [&](Policy policy) {
    for (const int fill : {100, 50, 0, 25, 75}) {
      policy.fill = fill;
      for (const Turn turn : {Turn::kBackward, Turn::kAlternate, Turn::kForward}) {
        policy.turn = turn;
        for (const Ahead& ahead : kAhead) {
          policy.ahead = ahead.percent;
          policy.depth = ahead.depth;
          grid.push_back(policy);
        }
      }
    }
  };
  for (const bool fused : {false, true}) {
    if (fused && !faster) continue;
    for (const int wait : {0, 50, 100}) {
      for (const int wait_forward : {0, 50, 100}) {
        for (const Pick backward : {Pick::kShallow, Pick::kDeep, Pick::kEarly}) {
          if (!several && (wait_forward > 0 || backward != Pick::kShallow)) continue;
          Policy policy;
          policy.wait = wait;
          policy.wait_forward = wait_forward;
          policy.backward = backward;
          policy.fused = fused;
          add(policy);
        }
      }
    }
  }
  return grid;
}

}  // namespace contraflow
