// Orders of the same makespan differ in how they take noise: one whose messages arrive just in time
// hands on every delay. Which is best is seen on sampled draws. Local search moves tokens in
// several draws at once (the sample average of stochastic programming), and only as long as the
// order's makespan without noise does not grow.

#include <algorithm>
#include <bit>
#include <string>
#include <utility>
#include <vector>

#include "schedules/move_proposal.h"
#include "schedules/noise.h"
#include "schedules/order_graph.h"

namespace contraflow {
namespace {

/// Draws that local search improves on, those that choose its start and those that choose between
/// its start and its end. No draw serves two purposes.
constexpr int kTrained = 12, kChosen = 30;
constexpr uint64_t kTrainSeed = 1'000'000, kPoolSeed = 2'000'000, kChoiceSeed = 3'000'000;
/// Above this the graphs of all draws together take too much memory.
constexpr int64_t kMostTokens = 200'000;

class SampledSearch {
 public:
  SampledSearch(const SearchProblem& problem, const Order& order, double sigma, uint64_t seed,
                SearchWork* work)
      : graph_(problem, order), proposals_(graph_, seed), work_(work), most_(graph_.makespan()) {
    for (int i = 0; i < kTrained; ++i) {
      const NoiseDraw draw(problem, sigma, kTrainSeed + static_cast<uint64_t>(i));
      draws_.emplace_back(problem, order, &draw);
    }
    sum_ = Sum();
    least_ = sum_;
    order_ = order;
  }

  /// The best order found on the draws it was trained on.
  Order Run() {
    const Time hottest = sum_ / kTrained / 2000;
    const int64_t budget = work_->left();
    for (;;) {
      int64_t spent = graph_.TakeWork() + 64;
      for (OrderGraph& draw : draws_) spent += draw.TakeWork();
      if (!work_->Spend(spent)) return order_;
      heat_ = hottest * (work_->left() / (budget / 1024 + 1)) / 1024;
      for (int i = 0; i < 32; ++i) Try();
    }
  }

 private:
  Time Sum() const {
    Time sum = 0;
    for (const OrderGraph& draw : draws_) sum += draw.makespan();
    return sum;
  }

  void Try() {
    // Along a longest path of some draw.
    const auto drawn = static_cast<size_t>(proposals_.Below(draws_.size()));
    const OrderGraph::Move move = proposals_.Next(draws_[drawn]);
    if (move.to == move.from || !graph_.Fits(move)) return;
    if (graph_.Estimate(move) > most_) return;
    const auto worse = [&](const OrderGraph& of) {
      return std::max<Time>(of.Estimate(move) - of.makespan(), 0);
    };
    const Time threshold = heat_ * std::countr_zero(proposals_.Bits() | uint64_t{1} << 32);
    Time estimate = 0;
    for (const OrderGraph& of : draws_) estimate += worse(of);
    if (estimate > threshold + sum_ / kTrained / 500) return;
    if (!graph_.Apply(move)) return;
    if (graph_.makespan() > most_) {
      graph_.TakeBack();
      return;
    }
    // What runs without noise runs with it: the same waits for the same.
    for (OrderGraph& each : draws_) each.Apply(move);
    const Time sum = Sum();
    const bool kept = sum <= sum_ + threshold;
    for (OrderGraph& each : draws_) kept ? each.Keep() : each.TakeBack();
    kept ? graph_.Keep() : graph_.TakeBack();
    if (!kept) return;
    sum_ = sum;
    if (sum >= least_) return;
    least_ = sum;
    order_ = graph_.ToOrder();
  }

  OrderGraph graph_;
  std::vector<OrderGraph> draws_;
  MoveProposals proposals_;
  SearchWork* const work_;
  const Time most_;
  Time sum_ = 0, least_ = 0, heat_ = 0;
  Order order_;
};

}  // namespace

void LowerExpected(const SearchProblem& problem, std::span<const Found> pool,
                   const SearchOptions& options, SearchWork* work, Found* best) {
  if (!(options.noise > 0)) return;
  work->Enter("noise");
  int64_t tokens = 0;
  for (const Word& word : best->order) tokens += static_cast<int64_t>(word.size());
  const auto expected = [&](const Found& found, uint64_t seed) {
    work->Spend(tokens * kChosen);
    return ExpectedMakespan(problem, found.order, options.noise, options.seed + seed, kChosen);
  };
  Found chosen = *best;
  Time least = expected(chosen, kPoolSeed);
  for (const Found& found : pool) {
    if (found.makespan > best->makespan) continue;
    const Time mean = expected(found, kPoolSeed);
    if (mean >= least) continue;
    least = mean;
    chosen = found;
  }
  if (tokens <= kMostTokens && OrderGraph::Exact(problem) && work->left() > 0) {
    chosen.order = SampledSearch(problem, chosen.order, options.noise, options.seed, work).Run();
    chosen.from += ", steadied";
  }
  const Time now = expected(chosen, kChoiceSeed);
  if (now < expected(*best, kChoiceSeed)) *best = std::move(chosen);
}

}  // namespace contraflow
