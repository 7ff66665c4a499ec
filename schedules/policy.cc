#include "schedules/policy.h"

#include <string_view>
#include <utility>

#include "schedules/list_scheduler.h"
#include "schedules/search.h"

namespace contraflow {
namespace {

std::string_view Name(Turn turn) {
  switch (turn) {
    case Turn::kBackward:
      return "backward";
    case Turn::kAlternate:
      return "alternate";
    case Turn::kForward:
      return "forward";
  }
  return "";
}

std::string_view Name(Pick pick) {
  switch (pick) {
    case Pick::kDeep:
      return "deep";
    case Pick::kShallow:
      return "shallow";
    case Pick::kEarly:
      return "early";
    case Pick::kOld:
      return "old";
  }
  return "";
}

}  // namespace

std::string ToString(const Policy& policy) {
  std::string text = "policy ahead " + std::to_string(policy.ahead) +
                     (policy.depth == Depth::kLag ? " of lag" : "") + " fill " +
                     std::to_string(policy.fill) + " wait " + std::to_string(policy.wait);
  for (const std::string_view name :
       {Name(policy.turn), Name(policy.forward), Name(policy.backward)}) {
    text += ' ';
    text += name;
  }
  if (policy.fused) text += " fused";
  return text;
}

std::vector<Policy> PolicyGrid(const SearchProblem& problem) {
  bool several = false, fused = false;
  for (const std::vector<int>& lines : problem.lines_of) several = several || lines.size() > 1;
  for (const Line& line : problem.lines) fused = fused || line.cost.bw < line.cost.b + line.cost.w;
  std::vector<Policy> grid;
  for (const bool fuse : {false, true}) {
    if (fuse && !fused) continue;
    for (const int wait : {0, 50, 100}) {
      for (const int fill : {100, 50, 0, 25, 75}) {
        for (const Turn turn : {Turn::kBackward, Turn::kAlternate, Turn::kForward}) {
          for (const auto& [ahead, depth] :
               std::vector<std::pair<int, Depth>>{{0, Depth::kStages},
                                                  {100, Depth::kStages},
                                                  {125, Depth::kStages},
                                                  {150, Depth::kStages},
                                                  {200, Depth::kStages},
                                                  {100, Depth::kLag},
                                                  {125, Depth::kLag},
                                                  {150, Depth::kLag},
                                                  {175, Depth::kLag},
                                                  {200, Depth::kLag},
                                                  {250, Depth::kLag},
                                                  {300, Depth::kLag}}) {
            for (const Pick forward : {Pick::kDeep, Pick::kShallow, Pick::kOld}) {
              if (!several && forward != Pick::kDeep) continue;
              grid.push_back({.ahead = ahead,
                              .depth = depth,
                              .fill = fill,
                              .wait = wait,
                              .turn = turn,
                              .forward = forward,
                              .backward = Pick::kShallow,
                              .fused = fuse});
            }
          }
        }
      }
    }
  }
  return grid;
}

std::optional<Found> SearchPolicies(const SearchProblem& problem, Time bound, SearchWork* work) {
  work->Enter("policies");
  ListScheduler scheduler(problem);
  std::optional<Found> best;
  Time below = RankQueue::kNever;
  for (const Policy& policy : PolicyGrid(problem)) {
    const std::optional<Time> makespan = scheduler.Run(policy, below);
    const bool go_on = work->Spend(scheduler.started());
    if (makespan && *makespan < below) {
      below = *makespan;
      best = Found{scheduler.TakeOrder(), *makespan, ToString(policy)};
      work->Found(*makespan, bound);
    }
    if (!go_on || below <= bound) break;
  }
  return best;
}

}  // namespace contraflow
