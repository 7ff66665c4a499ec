// A full backward may take less than its two parts (one launch, one pass over the inputs), but the
// stage before it waits for all of it. Which is better differs from chunk to chunk, and no single
// move of a token says it: so each backward is tried the other way, in turn, until none helps.

#include "schedules/search/join_backwards.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "schedules/search/evaluator.h"

namespace contraflow {
namespace {

class Joiner {
 public:
  Joiner(const SearchProblem& problem, Time bound, int64_t budget, SearchWork* work, Found* best)
      : problem_(problem),
        evaluator_(problem),
        bound_(bound),
        left_(budget),
        work_(work),
        best_(best) {}

  void Run() {
    Order all = best_->order;
    for (Word& word : all) word = AllJoined(word);
    Take(std::move(all));
    for (bool shorter = true; shorter && !Done();) {
      shorter = false;
      for (size_t r = 0; r < best_->order.size(); ++r) shorter = TryEach(r) || shorter;
    }
  }

 private:
  bool Done() const { return best_->makespan <= bound_ || left_ <= 0 || work_->spent(); }

  /// How many backwards and weight gradients of each line have come so far.
  struct Counts {
    explicit Counts(size_t lines) : backwards(lines, 0), weights(lines, 0) {}

    void Pass(const Token& token) {
      const auto line = static_cast<size_t>(token.op == Op::FB ? token.back : token.line);
      backwards[line] += HasBackward(token.op);
      weights[line] += HasWeight(token.op);
    }

    std::vector<int> backwards, weights;
  };

  /// True for a B that takes less with its W and is not behind a chunk whose W is still to come:
  /// these have to stay in order.
  bool Joins(const Token& token, const Counts& counts) const {
    if (token.op != Op::B) return false;
    const auto line = static_cast<size_t>(token.line);
    const StageCost& cost = problem_.lines[line].cost;
    return counts.weights[line] == counts.backwards[line] && cost.bw < cost.b + cost.w;
  }

  Word AllJoined(const Word& word) const {
    Counts counts(problem_.lines.size());
    std::vector<int> gone(problem_.lines.size(), 0);  // W that have been joined, still to come
    Word joined;
    for (Token token : word) {
      if (token.op == Op::W && gone[static_cast<size_t>(token.line)] > 0) {
        --gone[static_cast<size_t>(token.line)];
        continue;
      }
      if (Joins(token, counts)) {
        ++gone[static_cast<size_t>(token.line)];
        token.op = Op::BW;
      }
      counts.Pass(token);
      joined.push_back(token);
    }
    return joined;
  }

  /// Each backward of a rank the other way; true if one made the order shorter.
  bool TryEach(size_t r) {
    Counts counts(problem_.lines.size());
    bool shorter = false;
    for (size_t at = 0; at < best_->order[r].size() && !Done(); ++at) {
      const Token token = best_->order[r][at];
      if (token.op == Op::BW || Joins(token, counts)) {
        Order order = best_->order;
        Word& word = order[r];
        const auto here = word.begin() + static_cast<ptrdiff_t>(at);
        const Token weight = {Op::W, token.line};
        here->op = token.op == Op::BW ? Op::B : Op::BW;
        if (token.op == Op::BW) {
          word.insert(here + 1, weight);
        } else {
          word.erase(std::find(here, word.end(), weight));
        }
        shorter = Take(std::move(order)) || shorter;
      }
      counts.Pass(best_->order[r][at]);
    }
    return shorter;
  }

  bool Take(Order order) {
    int64_t tokens = 0;
    for (const Word& word : order) tokens += static_cast<int64_t>(word.size());
    left_ -= tokens;
    work_->Spend(tokens);
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
  Found* const best_;
};

}  // namespace

bool JoiningPays(const SearchProblem& problem) {
  return std::any_of(problem.lines.begin(), problem.lines.end(),
                     [](const Line& line) { return line.cost.bw < line.cost.b + line.cost.w; });
}

void JoinBackwards(const SearchProblem& problem, Time bound, int64_t budget, SearchWork* work,
                   Found* best) {
  if (best->makespan <= bound || !JoiningPays(problem)) return;
  const Time before = best->makespan;
  Joiner(problem, bound, budget, work, best).Run();
  if (best->makespan < before) best->from = "full backwards in " + best->from;
}

}  // namespace contraflow
