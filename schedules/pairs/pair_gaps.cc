// Ranks are taken up in the order of the times at which their lanes are free. Where what a rank
// waits for is not known by then, the wait is long enough for a weight gradient as a rule.

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "schedules/pairs/pair_run.h"
#include "schedules/pairs/pair_scheduler.h"

namespace contraflow {
namespace {

constexpr Time kUnknown = -1;

class Filling {
 public:
  Filling(const SearchProblem& problem, const Order& order, int percent)
      : problem_(problem),
        order_(order),
        percent_(percent),
        ranks_(order.size()),
        lines_(problem.lines.size()) {
    for (size_t line = 0; line < lines_.size(); ++line) {
      const auto count = static_cast<size_t>(problem.lines[line].count);
      lines_[line].f_end.assign(count, kUnknown);
      lines_[line].b_end.assign(count, kUnknown);
    }
  }

  std::optional<Order> Run() {
    Order filled(order_.size());
    while (true) {
      std::optional<size_t> next;
      bool left = false;
      for (size_t r = 0; r < ranks_.size(); ++r) {
        left = left || !Ended(r);
        if (!CanAct(r) || (next && ranks_[*next].lane <= ranks_[r].lane)) continue;
        next = r;
      }
      if (!left) return filled;
      if (!next) return std::nullopt;
      Act(*next, &filled[*next]);
    }
  }

 private:
  struct Rank {
    Time lane = 0;
    size_t next = 0;
    int64_t held = 0;
    std::vector<int32_t> waiting;  // lines of the weight gradients that wait, first in first out
  };
  struct Done {
    size_t f = 0, b = 0;
    int waiting = 0;
    std::vector<Time> f_end, b_end;
  };

  Done& At(int32_t line) { return lines_[static_cast<size_t>(line)]; }
  const Line& Of(int32_t line) const { return problem_.lines[static_cast<size_t>(line)]; }

  /// Weight gradients of the order are where this decides.
  void SkipWeights(size_t r) {
    while (ranks_[r].next < order_[r].size() && order_[r][ranks_[r].next].op == Op::W) {
      ++ranks_[r].next;
    }
  }
  bool Ended(size_t r) {
    SkipWeights(r);
    return ranks_[r].next == order_[r].size() && ranks_[r].waiting.empty();
  }

  /// When the next token has all it needs; nothing while that is not known.
  std::optional<Time> Ready(const Token& token) {
    Time ready = 0;
    if (HasForward(token.op)) {
      const Line& line = Of(token.line);
      const size_t k = At(token.line).f;
      if (line.before >= 0) {
        const Time end = At(line.before).f_end[k];
        if (end == kUnknown) return std::nullopt;
        ready = end + line.hop;
      }
    }
    if (HasBackward(token.op)) {
      const int32_t own = token.op == Op::FB ? token.back : token.line;
      const Line& line = Of(own);
      const size_t k = At(own).b;
      const Time end = line.after >= 0 ? At(line.after).b_end[k] : At(own).f_end[k];
      if (end == kUnknown) return std::nullopt;
      ready = std::max(ready, end + (line.after >= 0 ? Of(line.after).hop : 0));
    }
    return ready;
  }

  bool CanAct(size_t r) {
    if (Ended(r)) return false;
    if (!ranks_[r].waiting.empty() || ranks_[r].next == order_[r].size()) return true;
    return Ready(order_[r][ranks_[r].next]).has_value();
  }

  /// Runs a weight gradient that waits or the next token.
  void Act(size_t r, Word* word) {
    Rank& rank = ranks_[r];
    if (!rank.waiting.empty()) {
      const int32_t first = rank.waiting.front();
      const Time duration = problem_.Duration({Op::W, first}, 0);
      bool weight = rank.next == order_[r].size();
      if (!weight) {
        const Token& token = order_[r][rank.next];
        const std::optional<Time> ready = Ready(token);
        const bool waits = !ready || *ready - rank.lane >= duration * percent_ / 100 + 1;
        const bool full = HasForward(token.op) && problem_.limit &&
                          rank.held + Of(token.line).held > *problem_.limit;
        // Weight gradients of a line run in the order of its micro-batches.
        const bool before = token.op == Op::FB && At(token.back).waiting > 0;
        weight = waits || full || before;
      }
      if (weight) {
        rank.waiting.erase(rank.waiting.begin());
        --At(first).waiting;
        rank.lane += duration;
        rank.held -= Of(first).stash;
        word->push_back({Op::W, first});
        return;
      }
    }
    Token token = order_[r][rank.next++];
    if (token.op == Op::BW) token.op = Op::B;
    const Time start = std::max(rank.lane, *Ready(token));
    rank.lane = start + problem_.Duration(token, 0, 0);
    word->push_back(token);
    if (HasForward(token.op)) {
      Done& done = At(token.line);
      done.f_end[done.f++] = rank.lane;
      rank.held += Of(token.line).held;
    }
    if (!HasBackward(token.op)) return;
    const int32_t own = token.op == Op::FB ? token.back : token.line;
    Done& done = At(own);
    done.b_end[done.b++] = rank.lane;
    rank.held -= Of(own).held - Of(own).stash;
    if (token.op == Op::FB) {
      rank.held -= Of(own).stash;
    } else {
      rank.waiting.push_back(own);
      ++done.waiting;
    }
  }

  const SearchProblem& problem_;
  const Order& order_;
  const int percent_;
  std::vector<Rank> ranks_;
  std::vector<Done> lines_;
};

/// The last rank's first forward next to a backward becomes a pair with it.
Order WithFirstPair(const Order& order) {
  Order changed = order;
  Word& word = changed.back();
  for (size_t i = 0; i + 1 < word.size(); ++i) {
    if (word[i].op != Op::F || word[i + 1].op != Op::BW) continue;
    word[i] = {Op::FB, word[i].line, word[i + 1].line};
    word.erase(word.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    break;
  }
  return changed;
}

}  // namespace

std::optional<Order> FillGaps(const SearchProblem& problem, const Order& order, int percent) {
  if (!PairRun::Takes(problem)) return std::nullopt;
  return Filling(problem, order, percent).Run();
}

std::optional<Order> ScheduleInPhases(const SearchProblem& problem) {
  const std::optional<Order> phases = PhaseOrder(problem);
  if (!phases) return std::nullopt;
  std::optional<Order> best;
  Time least = std::numeric_limits<Time>::max();
  const auto offer = [&](std::optional<Order> order) {
    if (!order) return;
    const std::optional<PairRun> run = PairRun::Of(problem, *order);
    if (!run || run->makespan() >= least) return;
    least = run->makespan();
    best = std::move(order);
  };
  for (const Order& order : {*phases, WithFirstPair(*phases)}) {
    offer(order);
    for (const int percent : {0, 50, 100}) offer(FillGaps(problem, order, percent));
  }
  return best;
}

}  // namespace contraflow
