#include "tests/kernels/routing.h"

#include <algorithm>
#include <numeric>

#include "kernels/gpu/routing.h"
#include "kernels/host/routing.h"

namespace contraflow {

Routing RandomRouting(int rows, int experts, int top_k, Draws* random) {
  Routing routing{rows, experts, top_k, {}};
  enum { kOfAll, kOfFew, kSameFirst };
  const int kind = random->Below(3);
  std::vector<int32_t> order(static_cast<size_t>(experts));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), *random);
  const auto few = static_cast<ptrdiff_t>(std::min(experts, top_k + 1));
  for (int t = 0; t < rows; ++t) {
    if (kind == kOfAll) std::shuffle(order.begin(), order.end(), *random);
    if (kind == kOfFew) std::shuffle(order.begin(), order.begin() + few, *random);
    if (kind == kSameFirst) std::shuffle(order.begin() + 1, order.end(), *random);
    routing.expert.insert(routing.expert.end(), order.begin(), order.begin() + top_k);
  }
  return routing;
}

Routing RandomRouting(int most_rows, int most_experts, Draws* random) {
  const int rows = random->Below(8) == 0 ? 1 : 1 + random->Below(most_rows);
  const int experts = random->Below(8) == 0 ? 1 : 1 + random->Below(most_experts);
  const int most_choices = std::min(experts, gpu::kMaxTopK);
  const int top_k = random->Below(4) == 0 ? most_choices : 1 + random->Below(most_choices);
  return RandomRouting(rows, experts, top_k, random);
}

std::string ToString(const Routing& routing) {
  return std::to_string(routing.rows) + " tokens choose " + std::to_string(routing.top_k) + " of " +
         std::to_string(routing.experts) + " experts";
}

Sorted SortOnHost(const Routing& r, int capacity) {
  const size_t pairs = r.expert.size(), experts = static_cast<size_t>(r.experts);
  const size_t rows = capacity > 0 ? experts * static_cast<size_t>(capacity) : pairs;
  Sorted s{std::vector<int32_t>(experts + 1), std::vector<int32_t>(rows),
           std::vector<int32_t>(pairs), 0};
  if (capacity > 0) {
    s.dropped = SortIntoCapacity(r.expert.data(), r.rows, r.experts, r.top_k, capacity,
                                 s.first.data(), s.token_of.data(), s.row_of.data());
  } else {
    SortByExpert(r.expert.data(), r.rows, r.experts, r.top_k, s.first.data(), s.token_of.data(),
                 s.row_of.data());
  }
  return s;
}

}  // namespace contraflow
