// A full backward may take less than its two parts (one launch, one pass over the inputs), but the
// stage before it waits for all of it. Which is better differs from chunk to chunk, and no single
// move of an action says it: so each backward is tried the other way, in turn, until none helps.

#include <algorithm>
#include <utility>
#include <vector>

#include "schedules/search/evaluator.h"
#include "schedules/search/search.h"

namespace contraflow {
namespace {

class Joiner {
 public:
  Joiner(const SearchProblem& problem, Time bound, int64_t budget, SearchWork* work,
         SearchResult* best)
      : problem_(problem),
        evaluator_(problem),
        bound_(bound),
        left_(budget),
        work_(work),
        best_(best) {}

  void Run() {
    Order all = best_->order;
    for (ActionList& list : all) list = AllJoined(list);
    Take(std::move(all));
    for (bool shorter = true; shorter && !Done();) {
      shorter = false;
      for (size_t r = 0; r < best_->order.size(); ++r) shorter = TryEach(r) || shorter;
    }
  }

 private:
  bool Done() const { return best_->makespan <= bound_ || left_ <= 0 || work_->spent(); }

  /// True for a B that takes less with its W and is not after a chunk whose W is still to come:
  /// these have to stay in order.
  bool Joins(const Action& action, const StageCounts& counts) const {
    const StageCost& cost = problem_.stage(action.stage).cost;
    const auto [f, b, w] = counts[action.stage];
    return action.op == Op::B && w == b && cost.bw < cost.b + cost.w;
  }

  ActionList AllJoined(const ActionList& list) const {
    StageCounts counts(problem_.stages.size());
    std::vector<int> gone(problem_.stages.size(), 0);  // W that have been joined, still to come
    ActionList joined;
    for (Action action : list) {
      int& left = gone[static_cast<size_t>(action.stage)];
      if (action.op == Op::W && left > 0) {
        --left;
        continue;
      }
      if (Joins(action, counts)) {
        ++left;
        action.op = Op::BW;
      }
      counts.Pass(action);
      joined.push_back(action);
    }
    return joined;
  }

  /// Each backward of a rank the other way; true if one made the order shorter.
  bool TryEach(size_t r) {
    StageCounts counts(problem_.stages.size());
    bool shorter = false;
    for (size_t at = 0; at < best_->order[r].size() && !Done(); ++at) {
      const Action action = best_->order[r][at];
      if (action.op == Op::BW || Joins(action, counts)) {
        Order order = best_->order;
        ActionList& list = order[r];
        const auto here = list.begin() + static_cast<ptrdiff_t>(at);
        const Action weight = {Op::W, action.stage};
        here->op = action.op == Op::BW ? Op::B : Op::BW;
        if (action.op == Op::BW) {
          list.insert(here + 1, weight);
        } else {
          list.erase(std::find(here, list.end(), weight));
        }
        shorter = Take(std::move(order)) || shorter;
      }
      counts.Pass(best_->order[r][at]);
    }
    return shorter;
  }

  bool Take(Order order) {
    const int64_t actions = ActionCount(order);
    left_ -= actions;
    work_->Spend(actions);
    const Evaluation& evaluation = evaluator_.Run(order);
    if (!evaluation.runs || !evaluation.fits || evaluation.makespan >= best_->makespan) {
      return false;
    }
    best_->order = std::move(order);
    best_->makespan = evaluation.makespan;
    work_->Found(best_->makespan, bound_);
    return true;
  }

  const SearchProblem& problem_;
  Evaluator evaluator_;
  const Time bound_;
  int64_t left_;
  SearchWork* const work_;
  SearchResult* const best_;
};

}  // namespace

bool JoiningPays(const SearchProblem& problem) {
  return std::any_of(problem.stages.begin(), problem.stages.end(), [](const RouteStage& stage) {
    return stage.cost.bw < stage.cost.b + stage.cost.w;
  });
}

void JoinBackwards(const SearchProblem& problem, Time bound, int64_t budget, SearchWork* work,
                   SearchResult* best) {
  if (best->makespan <= bound || !JoiningPays(problem)) return;
  const Time before = best->makespan;
  Joiner(problem, bound, budget, work, best).Run();
  if (best->makespan < before) best->from = "full backwards in " + best->from;
}

}  // namespace contraflow
