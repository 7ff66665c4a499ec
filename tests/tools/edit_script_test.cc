#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "tests/support/sanitized.h"
#include "tools/report/text.h"

namespace contraflow::edit_script_test {
namespace {

using Strings = std::vector<std::string>;

/// Length of the longest common subsequence, by the textbook table.
size_t CommonLength(const Strings& a, const Strings& b) {
  std::vector<std::vector<size_t>> best(a.size() + 1, std::vector<size_t>(b.size() + 1, 0));
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      best[i][j] =
          a[i - 1] == b[j - 1] ? best[i - 1][j - 1] + 1 : std::max(best[i - 1][j], best[i][j - 1]);
    }
  }
  return best[a.size()][b.size()];
}

Strings RandomLines(std::mt19937* random) {
  Strings lines(std::uniform_int_distribution<size_t>(0, 12)(*random));
  for (std::string& line : lines) {
    line = std::string(1, static_cast<char>(std::uniform_int_distribution<int>('a', 'd')(*random)));
  }
  return lines;
}

}  // namespace

TEST_SUITE_BEGIN("property");

TEST_CASE("edits are the fewest and turn the left list into the right one") {
  std::mt19937 random(7);
  for (int round = 0; round < CasesToDraw(2000); ++round) {
    const Strings left = RandomLines(&random), right = RandomLines(&random);
    const std::string text = FormatEdits(left, right, "list");
    CAPTURE(round);
    CAPTURE(text);
    // Replays the text: headings say where in the left list a piece begins.
    Strings made;
    size_t at = 0, removed = 0, added = 0;
    for (size_t begin = 0; begin < text.size(); begin = text.find('\n', begin) + 1) {
      const std::string line = text.substr(begin, text.find('\n', begin) - begin);
      if (line.starts_with("@@ list ")) {
        for (const auto piece = std::stoul(line.substr(8)); at < piece; ++at) {
          made.push_back(left[at]);
        }
        continue;
      }
      if (line[0] == '+') {
        made.push_back(line.substr(1));
        ++added;
        continue;
      }
      REQUIRE(at < left.size());
      CHECK(left[at] == line.substr(1));
      if (line[0] == ' ') made.push_back(left[at]);
      removed += line[0] == '-';
      ++at;
    }
    for (; at < left.size(); ++at) made.push_back(left[at]);
    CHECK(made == right);
    const size_t common = CommonLength(left, right);
    CHECK(removed == left.size() - common);
    CHECK(added == right.size() - common);
  }
}

TEST_CASE("lists with nothing in common are replaced as a whole") {
  const Strings left(3000, "a"), right(3000, "b");
  const std::string text = FormatEdits(left, right, "list");
  CHECK(std::ranges::count(text, '\n') == 6001);
  CHECK(text.starts_with("@@ list 0\n-a\n"));
  CHECK(text.ends_with("+b\n"));
}

TEST_SUITE_END();

}  // namespace contraflow::edit_script_test
