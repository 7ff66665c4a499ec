#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "compiler/lower/arena.h"
#include "compiler/lower/interleave.h"
#include "compiler/lower/lower.h"
#include "compiler/lower/passes.h"
#include "compiler/plan/access.h"
#include "compiler/simulate/simulate.h"
#include "compiler/verify/verify.h"
#include "schedules/registry.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"

namespace contraflow::buffer_test {
namespace {

CostModel DrawCosts(std::mt19937_64* random, int stages, int microbatches) {
  const auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(*random);
  };
  CostModel costs;
  MemoryCost memory;
  if (draw(0, 3) > 0) {
    costs = RandomMoeCosts(random, 3, Overlap::kAll);
    memory.values.resize(kValueCount);
    const bool alike = draw(0, 1) == 0;
    for (int64_t& bytes : memory.values) bytes = draw(0, 7) == 0 ? 0 : alike ? 256 : draw(1, 900);
  } else {
    costs = RandomCosts(random, stages, microbatches);
    memory.w_stash_bytes = draw(0, 500);
    memory.activation_bytes = memory.w_stash_bytes + draw(1, 900);
    costs.comm.bytes = std::max<int64_t>(costs.comm.bytes, draw(0, 300));
  }
  costs.memory = memory;
  return costs;
}

/// A plan of level component, or of level comm where stages are opaque, and its costs.
Plan DrawPlan(std::mt19937_64* random, int round) {
  const auto draw = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(*random);
  };
  const auto schedules = Schedules();
  const Schedule& schedule = *schedules[static_cast<size_t>(round) % schedules.size()];
  for (;;) {
    Spec spec = MakeSpec(schedule.name, draw(1, 4), draw(1, 8), {});
    if (!schedule.reject(spec).empty()) continue;
    spec.costs = DrawCosts(random, schedule.stages(spec), spec.microbatches);
    const Level level = spec.costs.moe ? Level::kComponent : Level::kComm;
    return Lower(GeneratePlan(spec), spec.costs, {.target = level});
  }
}

/// over[i][j]: whether instruction j is over when i begins, by lanes and `after`, the slow way.
std::vector<std::vector<bool>> OverMatrix(const Program& program) {
  std::vector<std::vector<bool>> over(program.size(), std::vector<bool>(program.size(), false));
  for (size_t i = 0; i < program.size(); ++i) {
    const auto wait = [&](size_t j) {
      over[i][j] = true;
      for (size_t k = 0; k < j; ++k) {
        if (over[j][k]) over[i][k] = true;
      }
    };
    for (int k = 0; k < program[i].after_count; ++k) {
      wait(static_cast<size_t>(program[i].after[static_cast<size_t>(k)]));
    }
    for (size_t j = i; j-- > 0;) {
      if (program[j].lane != program[i].lane || program[j].peer != program[i].peer) continue;
      wait(j);
      break;
    }
  }
  return over;
}

/// Which instructions touch each slot of a rank.
std::vector<std::vector<size_t>> TouchesOf(const Plan& plan, size_t r) {
  std::map<std::tuple<Value, int, int, int>, size_t> number;
  for (size_t s = 0; s < plan.slots[r].size(); ++s) {
    const Slot& slot = plan.slots[r][s];
    number[{slot.value, slot.stage, slot.layer, slot.microbatch}] = s;
  }
  std::vector<std::vector<size_t>> touches(plan.slots[r].size());
  const Accesses accesses(plan);
  std::vector<Access> of;
  for (size_t i = 0; i < plan.programs[r].size(); ++i) {
    accesses.Of(plan.programs[r][i], &of);
    for (const Access& a : of) {
      const auto found = number.find({a.value, a.stage, a.layer, a.microbatch});
      if (found != number.end()) touches[found->second].push_back(i);
    }
  }
  return touches;
}

bool ShareBytes(const Slot& a, const Slot& b) {
  return a.arena == b.arena && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

TEST_SUITE("property") {
  TEST_CASE("values that share bytes are ordered by events in every plan") {
    std::mt19937_64 random(51);
    int shared = 0;
    for (int round = 0; round < CasesToDraw(60); ++round) {
      const Plan before = DrawPlan(&random, round);
      const Plan plan = AssignBuffers(before, *before.costs);
      CAPTURES(plan.schedule, round);
      for (size_t r = 0; r < plan.programs.size(); ++r) {
        const auto over = OverMatrix(plan.programs[r]);
        const auto touches = TouchesOf(plan, r);
        const std::vector<Slot>& slots = plan.slots[r];
        for (size_t b = 0; b < slots.size(); ++b) {
          CHECK(slots[b].offset % kSlotAlignment == 0);
          REQUIRE(!touches[b].empty());
          CHECK(slots[b].first == static_cast<int>(touches[b].front()));
          CHECK(slots[b].last == static_cast<int>(touches[b].back()));
          for (size_t a = 0; a < b; ++a) {
            if (!ShareBytes(slots[a], slots[b])) continue;
            ++shared;
            bool ordered = true;
            for (const size_t old : touches[a]) {
              for (const size_t next : touches[b]) ordered = ordered && over[next][old];
            }
            CHECK(ordered);
          }
        }
      }
    }
    MESSAGE(shared << " pairs of values share bytes");
    CHECK(shared > 10000);
  }

  TEST_CASE("buffers cost no time and are the same every time") {
    std::mt19937_64 random(52);
    for (int round = 0; round < CasesToDraw(150); ++round) {
      const Plan before = DrawPlan(&random, round);
      const Plan plan = AssignBuffers(before, *before.costs);
      CAPTURES(plan.schedule, round);
      CHECK(plan == AssignBuffers(before, *before.costs));
      CHECK(Verify(plan).empty());
      const Simulation old = Simulate(before, *before.costs);
      const Simulation now = Simulate(plan, *before.costs);
      CHECK(now.makespan == old.makespan);
      if (plan.layers > 0) CHECK(now.timeline == old.timeline);
    }
  }
}

TEST_SUITE("unit") {
  TEST_CASE("arenas are little larger than what lives in them") {
    CostModel costs;
    MoeCost moe;
    moe.layers_per_stage = 2;
    for (auto* part : {&moe.attn_f, &moe.dispatch_f, &moe.mlp_f, &moe.combine_f, &moe.combine_b,
                       &moe.mlp_b, &moe.dispatch_b, &moe.attn_b, &moe.mlp_w, &moe.attn_w}) {
      *part = {10};
    }
    costs.moe = moe;
    DeriveChunkCosts(&costs, Overlap::kAll);
    MemoryCost memory;
    memory.values.resize(kValueCount);
    for (size_t v = 0; v < kValueCount; ++v) {
      memory.values[v] = 64 * (1 + static_cast<int64_t>(v * 7 % 5));
    }
    costs.memory = memory;
    for (const char* schedule : {"1f1b", "zb-1p", "dualpipe"}) {
      const Spec spec = MakeSpec(schedule, 8, 32, costs);
      const Plan plan = Lower(GeneratePlan(spec), costs, {.target = Level::kBuffer});
      int64_t placed = 0, alive = 0;
      for (size_t r = 0; r < plan.slots.size(); ++r) {
        const auto bytes = ArenaBytes(plan.slots[r]);
        for (size_t arena = 0; arena < kArenaCount; ++arena) {
          std::vector<int64_t> change(plan.programs[r].size() + 1, 0);
          for (const Slot& slot : plan.slots[r]) {
            if (static_cast<size_t>(slot.arena) != arena) continue;
            change[static_cast<size_t>(slot.first)] += slot.bytes;
            change[static_cast<size_t>(slot.last) + 1] -= slot.bytes;
          }
          int64_t now = 0, most = 0;
          for (const int64_t step : change) most = std::max(most, now += step);
          CHECK(bytes[arena] >= most);
          placed += bytes[arena];
          alive += most;
        }
      }
      const double ratio = static_cast<double>(placed) / static_cast<double>(alive);
      MESSAGE(std::string(schedule)
              << ": arenas have " << ratio << " of the most bytes alive at once");
      CHECK(ratio < 1.15);
    }
  }

  TEST_CASE("an arena hands out what is free before it grows") {
    ArenaPacker arena;
    std::vector<LastUses> before;
    const auto all = [](const LastUses&) { return 0; };
    CHECK(arena.Take(100, all, &before) == 0);  // 128
    CHECK(arena.Take(64, all, &before) == 128);
    CHECK(arena.Take(64, all, &before) == 192);
    CHECK(before.empty());
    arena.GiveBack(0, 100, {1, -1, -1});
    arena.GiveBack(192, 64, {2, -1, -1});
    CHECK(arena.Take(64, all, &before) == 192);  // leaves no gap
    CHECK(before == std::vector<LastUses>{{2, -1, -1}});
    CHECK(arena.Take(
              64, [](const LastUses&) { return -1; }, &before) == 256);
    arena.GiveBack(128, 64, {3, -1, -1});
    before.clear();
    CHECK(arena.Take(192, all, &before) == 0);  // two gaps in a row
    CHECK(before == std::vector<LastUses>{{3, -1, -1}});
  }

  TEST_CASE("gaps that cost nothing become one that waits for what any of them did") {
    ArenaPacker arena;
    std::vector<LastUses> before;
    const auto all = [](const LastUses&) { return 0; };
    for (int i = 0; i < 8; ++i) arena.Take(64, all, &before);
    for (int i = 0; i < 6; ++i) {
      const int32_t message = i == 3 ? 40 : i == 4 ? 41 : -1;
      arena.GiveBack(i * 64, 64, {10 + i, i == 1 ? 30 : -1, message});
    }
    CHECK(arena.Take(512, all, &before) == 512);
    CHECK(before.empty());
    int looked = 0;
    const auto count = [&looked](const LastUses&) {
      ++looked;
      return 0;
    };
    CHECK(arena.Take(6 * 64, count, &before) == 0);
    // The two messages may be on lanes of different peers: neither says when the other is over.
    CHECK(before == std::vector<LastUses>{{13, 30, 40}, {15, -1, 41}});
    CHECK(looked == 2);
  }
}

}  // namespace
}  // namespace contraflow::buffer_test
