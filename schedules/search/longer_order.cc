// A good order begins in its own way and ends in its own way, and in between does the same again
// and again. So one for many micro-batches is one for few with more of what is between: a stretch
// of a rank's list with q forwards and q backwards of each stage takes q more micro-batches through
// the rank, and leaves it as it was. Weight gradients, which nobody waits for, are left out: they
// go where there is room. Stretches of different ranks that begin at about the same time fit each
// other best; how well shows when the order is run, and a local search closes what gaps they leave.

#include "schedules/search/longer_order.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <utility>

#include "compiler/simulate/simulate.h"

namespace contraflow {
namespace {

/// Where ranks begin to repeat is tried at so many parts of the step.
constexpr int kParts = 16;

/// Forwards and backwards of a rank, and when they start.
struct Guide {
  ActionList list;
  std::vector<Time> starts;
};

/// Begin and end of a stretch of a list.
using Stretch = std::pair<size_t, size_t>;

/// All stretches with q forwards and q backwards of each of so many stages.
std::vector<Stretch> StretchesOf(const ActionList& list, size_t stages_here, size_t stages, int32_t q) {
  std::vector<Stretch> stretches;
  std::vector<int32_t> counts(2 * stages, 0);
  size_t right = 0;  // how many counts are q
  const auto change = [&](const Action& action, int32_t by) {
    int32_t& count = counts[2 * static_cast<size_t>(action.stage) + (action.op == Op::F ? 0 : 1)];
    right -= count == q;
    count += by;
    right += count == q;
  };
  const size_t wanted = 2 * static_cast<size_t>(q) * stages_here;
  for (size_t end = 0; end < list.size(); ++end) {
    change(list[end], 1);
    if (end >= wanted) change(list[end - wanted], -1);
    if (end + 1 >= wanted && right == 2 * stages_here) {
      stretches.emplace_back(end + 1 - wanted, end + 1);
    }
  }
  return stretches;
}

/// The list with a stretch `times` more often.
ActionList Repeated(const ActionList& list, const Stretch& stretch, int32_t times) {
  const auto begin = list.begin() + static_cast<ptrdiff_t>(stretch.first);
  const auto end = list.begin() + static_cast<ptrdiff_t>(stretch.second);
  ActionList longer(list.begin(), end);
  for (int32_t i = 0; i < times; ++i) longer.insert(longer.end(), begin, end);
  longer.insert(longer.end(), end, list.end());
  return longer;
}

/// Adds the orders in which all ranks repeat what they do from about the same time on, for some
/// such times before the end.
void AddOrders(const SearchProblem& small, const std::vector<Guide>& guides, Time end, int32_t q,
               int32_t times, std::vector<Order>* orders) {
  std::vector<std::vector<Stretch>> stretches;
  for (size_t r = 0; r < guides.size(); ++r) {
    const size_t here = small.stages_of[r].size();
    stretches.push_back(StretchesOf(guides[r].list, here, small.stages.size(), q));
    if (stretches.back().empty() && here > 0) return;
  }
  for (int part = 1; part < kParts; ++part) {
    const Time from = end / kParts * part;
    Order longer(guides.size());
    for (size_t r = 0; r < guides.size(); ++r) {
      if (stretches[r].empty()) continue;
      const auto off = [&](const Stretch& stretch) {
        return std::abs(guides[r].starts[stretch.first] - from);
      };
      const Stretch& nearest =
          *std::min_element(stretches[r].begin(), stretches[r].end(),
                            [&](const Stretch& x, const Stretch& y) { return off(x) < off(y); });
      longer[r] = Repeated(guides[r].list, nearest, times);
    }
    if (orders->empty() || longer != orders->back()) orders->push_back(std::move(longer));
  }
}

}  // namespace

SearchProblem WithFewer(const SearchProblem& problem, int count) {
  Plan frame = problem.frame;
  frame.microbatches = 0;
  for (Route& route : frame.routes) {
    route.microbatches.resize(std::min(route.microbatches.size(), static_cast<size_t>(count)));
    for (int& m : route.microbatches) m = frame.microbatches++;
  }
  CostModel costs = problem.costs;
  costs.microbatch_scale.clear();
  return MakeProblem(std::move(frame), costs, problem.limit);
}

std::vector<Order> Lengthen(const SearchProblem& small, const Order& order,
                            const SearchProblem& large) {
  std::vector<Order> orders;
  const int32_t few = small.stages.front().count;
  const int32_t more = large.stages.front().count - few;
  for (size_t i = 0; i < small.stages.size(); ++i) {
    if (small.stages[i].count != few || large.stages[i].count - few != more) return orders;
  }
  const Timeline timeline = Simulate(ToPlan(small, order), small.costs).timeline;
  std::vector<Guide> guides(order.size());
  for (size_t r = 0; r < order.size(); ++r) {
    for (size_t i = 0; i < order[r].size(); ++i) {
      Action action = order[r][i];
      if (action.op == Op::W) continue;
      if (action.op == Op::BW) action.op = Op::B;
      if (action.op != Op::F && action.op != Op::B) return orders;
      guides[r].list.push_back(action);
      guides[r].starts.push_back(timeline.ranks[r][i].start);
    }
  }
  const Time end = Makespan(timeline);
  for (int32_t q = 1; q <= std::min(few, more); ++q) {
    if (more % q != 0) continue;
    AddOrders(small, guides, end, q, more / q, &orders);
  }
  return orders;
}

}  // namespace contraflow
