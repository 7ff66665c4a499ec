#include "schedules/local/marked_positions.h"

#include <doctest/doctest.h>

#include <random>
#include <set>

#include "tests/support/sanitized.h"

namespace contraflow::marked_positions_test {
namespace {

TEST_SUITE("property") {
  TEST_CASE("a sweep takes each marked position once and in order whatever is marked on its way") {
    constexpr int kPositions = 300;
    std::mt19937_64 random(1);
    const auto draw = [&](int below) {
      return static_cast<int>(random() % static_cast<uint64_t>(below));
    };
    MarkedPositions marked;
    marked.Reset(kPositions);
    for (int round = 0; round < CasesToDraw(400); ++round) {
      const bool upwards = draw(2) == 0;
      std::set<int> left;
      // Something from `first` on, in the direction of the sweep.
      const auto mark = [&](int first) {
        const int ahead = upwards ? kPositions - first : first + 1;
        if (ahead <= 0) return;
        const int step = draw(ahead);
        const int position = upwards ? first + step : first - step;
        marked.Mark(position);
        left.insert(position);
      };
      const int start = draw(kPositions);
      marked.StartAt(start);
      for (int i = 0; i < 8; ++i) mark(start);
      for (int taken = 0; !left.empty(); ++taken) {
        REQUIRE_FALSE(marked.empty());
        const int next = upwards ? *left.begin() : *left.rbegin();
        REQUIRE((upwards ? marked.TakeFirst() : marked.TakeLast()) == static_cast<size_t>(next));
        left.erase(next);
        if (taken < 50) mark(upwards ? next + 1 : next - 1);
      }
      // No mark is left for the next sweep.
      REQUIRE(marked.empty());
    }
  }
}

}  // namespace
}  // namespace contraflow::marked_positions_test
