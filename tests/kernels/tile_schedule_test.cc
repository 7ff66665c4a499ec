#include "kernels/gpu/tile_schedule.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <tuple>
#include <vector>

namespace contraflow::tile_schedule_test {
namespace {

using gpu::Tile;
using gpu::TileGrid;
using Place = std::tuple<int, int, int>;  // expert, row, column

std::vector<Place> Walk(const TileGrid& grid, int block, int blocks) {
  std::vector<Place> places;
  gpu::TileWalk walk(grid, block, blocks);
  Tile tile;
  while (walk.Next(&tile)) places.emplace_back(tile.expert, tile.row, tile.column);
  CHECK(!walk.Next(&tile));
  return places;
}

std::vector<int32_t> FirstOf(const std::vector<int>& rows) {
  std::vector<int32_t> first = {0};
  for (const int r : rows) first.push_back(first.back() + r);
  return first;
}

TEST_SUITE("unit") {
  TEST_CASE("tile schedule: the blocks of a grid take every tile of every expert once") {
    std::mt19937 random(20);
    const auto draw = [&](int from, int to) {
      return std::uniform_int_distribution<int>(from, to)(random);
    };
    for (int round = 0; round < 300; ++round) {
      CAPTURE(round);
      std::vector<int> rows(static_cast<size_t>(draw(1, 12)));
      for (int& r : rows) r = draw(0, 2) == 0 ? 0 : draw(0, 2) == 0 ? 128 : draw(1, 6000);
      const std::vector<int32_t> first = FirstOf(rows);
      const bool fixed = draw(0, 2) == 0;
      const TileGrid grid = {first.data(), static_cast<int>(rows.size()), fixed ? 0 : 128,
                             fixed ? draw(1, 40) : 0, draw(1, 20)};
      std::set<Place> expected;
      for (int e = 0; e < grid.experts; ++e) {
        const int r = rows[static_cast<size_t>(e)];
        const int height = r == 0 ? 0 : fixed ? grid.rows : (r - 1) / 128 + 1;
        for (int i = 0; i < height; ++i) {
          for (int j = 0; j < grid.columns; ++j) expected.emplace(e, i, j);
        }
      }
      const int blocks = draw(1, 140);
      const std::vector<Place> alone = Walk(grid, 0, 1);
      CHECK(alone.size() == expected.size());
      CHECK(std::set<Place>(alone.begin(), alone.end()) == expected);
      bool shared = true;
      for (int block = 0; block < blocks; ++block) {
        std::vector<Place> own;
        for (auto i = static_cast<size_t>(block); i < alone.size();
             i += static_cast<size_t>(blocks)) {
          own.push_back(alone[i]);
        }
        shared = shared && Walk(grid, block, blocks) == own;
      }
      CHECK(shared);
    }
  }

  TEST_CASE("tile schedule: what is worked on at a time is one expert's and nearly square") {
    const std::vector<int32_t> first = FirstOf({5000, 0, 4096});
    const std::vector<Place> order = Walk({first.data(), 3, 128, 0, 24}, 0, 1);
    CHECK(std::ranges::is_sorted(
        order, [](const Place& a, const Place& b) { return std::get<0>(a) < std::get<0>(b); }));
    // Tiles of 128 rows and 256 columns each: 128 tiles that follow on each other read least if
    // they are 16 rows of 8, and then as much as 32 rows; row by row of tiles it would be 54
    // everywhere.
    double sum = 0, most = 0;
    int windows = 0;
    for (size_t begin = 0; begin + 128 <= 40 * 24; begin += 8, ++windows) {
      std::set<int> rows, columns;
      for (size_t i = begin; i < begin + 128; ++i) {
        rows.insert(std::get<1>(order[i]));
        columns.insert(std::get<2>(order[i]));
      }
      const auto read = static_cast<double>(rows.size() + 2 * columns.size());
      sum += read;
      most = std::max(most, read);
    }
    CHECK(sum / windows < 40);
    CHECK(most <= 52);
    CHECK(order[0] == Place{0, 0, 0});
    CHECK(order[1] == Place{0, 1, 0});
    CHECK(order[16] == Place{0, 0, 1});
    CHECK(order[16 * 24] == Place{0, 16, 23});
  }
}

}  // namespace
}  // namespace contraflow::tile_schedule_test
