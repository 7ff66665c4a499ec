// "sharing" against the definition: slots are moved at random, and Verify must object exactly where
// two that share bytes have accesses which neither lanes nor events order, found pair by pair.

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "compiler/lower/lower.h"
#include "compiler/plan/access.h"
#include "compiler/verify/verify.h"
#include "schedules/registry.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"

namespace contraflow::sharing_test {
namespace {

/// Which instructions of a program are over before which others begin, as a table of all pairs.
class OrderTable {
 public:
  explicit OrderTable(const Program& program) {
    std::map<std::pair<Lane, int>, size_t> latest;
    for (size_t i = 0; i < program.size(); ++i) {
      std::vector<bool> over(program.size(), false);
      const auto join = [&](size_t on) {
        over[on] = true;
        for (size_t k = 0; k < on; ++k) over[k] = over[k] || before_[on][k];
      };
      const auto lane = latest.find({program[i].lane, program[i].peer});
      if (lane != latest.end()) join(lane->second);
      for (int k = 0; k < program[i].after_count; ++k) {
        join(static_cast<size_t>(program[i].after[static_cast<size_t>(k)]));
      }
      latest[{program[i].lane, program[i].peer}] = i;
      before_.push_back(std::move(over));
    }
  }

  bool AllBefore(const std::vector<size_t>& uses, size_t next) const {
    return std::ranges::all_of(uses, [&](size_t use) { return before_[next][use]; });
  }

 private:
  std::vector<std::vector<bool>> before_;  // by instruction: those over when it begins
};

/// When each slot of a rank is accessed.
std::vector<std::vector<size_t>> UsesOfSlots(const Plan& plan, size_t rank) {
  std::map<std::tuple<Value, int, int, int>, size_t> number;
  for (size_t s = 0; s < plan.slots[rank].size(); ++s) {
    const Slot& slot = plan.slots[rank][s];
    number[{slot.value, slot.stage, slot.layer, slot.microbatch}] = s;
  }
  std::vector<std::vector<size_t>> uses(plan.slots[rank].size());
  std::vector<Access> accesses;
  for (size_t i = 0; i < plan.programs[rank].size(); ++i) {
    Accesses(plan).Of(plan.programs[rank][i], &accesses);
    for (const Access& a : accesses) {
      const auto found = number.find({a.value, a.stage, a.layer, a.microbatch});
      if (found != number.end()) uses[found->second].push_back(i);
    }
  }
  return uses;
}

Plan PlanOf(const char* schedule, int ranks, std::mt19937_64* random, bool opaque) {
  Spec spec = MakeSpec(schedule, ranks, 3 * ranks, UniformCosts(3, 4, 2, 1));
  MemoryCost memory;
  if (opaque) {
    memory.activation_bytes = 640;
    memory.w_stash_bytes = 200;
    spec.costs.comm.bytes = 100;
  } else {
    spec.costs = RandomMoeCosts(random, 2, Overlap::kAll);
    for (size_t v = 0; v < kValueCount; ++v) {
      memory.values.push_back(std::uniform_int_distribution<int64_t>(1, 600)(*random));
    }
  }
  spec.costs.memory = memory;
  return Lower(GeneratePlan(spec), spec.costs, {.target = Level::kBuffer});
}

class Mover {
 public:
  Mover(const Plan& plan, size_t rank)
      : plan_(plan), rank_(rank), order_(plan.programs[rank]), uses_(UsesOfSlots(plan, rank)) {}

  /// Moves a few slots; whether the plan is still right.
  bool Move(Plan* plan, std::mt19937_64* random) const {
    std::vector<Slot>& slots = plan->slots[rank_];
    std::set<size_t> moved;
    for (auto count = 1 + (*random)() % 3; count > 0; --count) {
      const size_t s = Pick(slots, random);
      moved.insert(s);
      const auto by = static_cast<int64_t>((*random)() % 8) * kSlotAlignment;
      // Somewhere into another, or a little up or down.
      const Slot& other = slots[(*random)() % slots.size()];
      const bool onto = (*random)() % 2 == 0 && other.arena == slots[s].arena;
      const int64_t from = onto ? other.offset : slots[s].offset;
      slots[s].offset =
          (onto || (*random)() % 2 == 0) ? from + by : std::max(from - by, int64_t{0});
    }
    return std::ranges::all_of(moved, [&](size_t a) {
      for (size_t b = 0; b < slots.size(); ++b) {
        if (a != b && ShareBytes(slots[a], slots[b]) && !Ordered(a, b) && !Ordered(b, a)) {
          return false;
        }
      }
      return true;
    });
  }

 private:
  /// Any slot, but often one that a RECV makes: those come early, awaited by nothing.
  size_t Pick(const std::vector<Slot>& slots, std::mt19937_64* random) const {
    const Program& program = plan_.programs[rank_];
    for (int k = 0; k < 8; ++k) {
      const size_t s = (*random)() % slots.size();
      const Op maker = program[static_cast<size_t>(slots[s].first)].op;
      if (maker == Op::RECV_F || maker == Op::RECV_B) return s;
    }
    return (*random)() % slots.size();
  }

  static bool ShareBytes(const Slot& a, const Slot& b) {
    return a.arena == b.arena && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
  }
  bool Ordered(size_t a, size_t b) const { return order_.AllBefore(uses_[a], uses_[b].front()); }

  const Plan& plan_;
  size_t rank_;
  OrderTable order_;
  std::vector<std::vector<size_t>> uses_;
};

TEST_SUITE("property") {
  TEST_CASE("sharing is found exactly where slots have accesses without an order") {
    std::mt19937_64 random(23);
    int right = 0, wrong = 0;
    for (const char* schedule : {"1f1b", "dualpipe", "dualpipe-v", "zb-1p"}) {
      for (const bool opaque : {false, true}) {
        const Plan plan = PlanOf(schedule, 2, &random, opaque);
        REQUIRE(FindingsText(plan) == "");
        for (size_t rank = 0; rank < plan.programs.size(); ++rank) {
          const Mover mover(plan, rank);
          for (int round = 0; round < CasesToDraw(400); ++round) {
            Plan moved = plan;
            const bool sound = mover.Move(&moved, &random);
            const std::vector<Finding> findings = Verify(moved);
            CAPTURES(schedule, opaque, rank, round);
            CHECK(sound == findings.empty());
            CHECK((sound || ChecksOf(findings) == std::vector<std::string>{"sharing"}));
            ++(sound ? right : wrong);
          }
        }
      }
    }
    MESSAGE(right << " moves are harmless, " << wrong << " are not");
    CHECK((kSanitized || right > 300));
    CHECK(wrong > 300);
  }

  TEST_CASE("a rank with hundreds of neighbours is verified like any other") {
    // Even stages on rank 0, each odd one on a rank of its own; past 510 of them some lanes have no
    // clock.
    for (const int peers : {200, 600}) {
      Plan compute;
      compute.schedule = "star";
      compute.ranks = peers + 1;
      compute.stages = 2 * peers;
      compute.microbatches = 1;
      compute.routes.push_back({{}, {0}});
      compute.programs.resize(static_cast<size_t>(compute.ranks));
      for (int s = 0; s < compute.stages; ++s) {
        compute.routes[0].ranks.push_back(s % 2 == 0 ? 0 : s / 2 + 1);
      }
      for (int k = 0; k < 2 * compute.stages; ++k) {
        Instruction i;
        i.op = k < compute.stages ? Op::F : Op::BW;
        i.stage = k < compute.stages ? k : 2 * compute.stages - 1 - k;
        i.microbatch = 0;
        const int rank = compute.routes[0].ranks[static_cast<size_t>(i.stage)];
        compute.program(rank).push_back(i);
      }
      CostModel costs = UniformCosts(3, 4, 2, 1);
      costs.memory = MemoryCost{.activation_bytes = 640, .w_stash_bytes = 200};
      costs.comm.bytes = 100;
      const Plan plan = Lower(compute, costs, {.target = Level::kBuffer});
      CHECK(FindingsText(plan) == "");
      // Each event to a message of the last lanes is still missed.
      int dropped = 0;
      for (size_t at = 0; at < plan.programs[0].size(); ++at) {
        const Instruction& i = plan.programs[0][at];
        if (i.op != Op::F && i.op != Op::BW) continue;
        if (i.after_count == 0 || i.stage < compute.stages - 8) continue;
        Plan mutant = plan;
        mutant.programs[0][at].after_count = 0;
        CAPTURE(ToString(i));
        CHECK(ChecksOf(Verify(mutant)).at(0) == "event");
        ++dropped;
      }
      CHECK(dropped >= 6);
    }
  }
}

}  // namespace
}  // namespace contraflow::sharing_test
