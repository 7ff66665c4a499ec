// Values in the places that a plan gives them: predicted bytes are those allocated, training equals
// the run without a pipeline with every byte that holds no value full of NaN, and what is wrong
// with a value or a slot is said.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <utility>

#include "compiler/lower/lower.h"
#include "compiler/plan/value.h"
#include "compiler/simulate/memory.h"
#include "runtime/core/check.h"
#include "runtime/host/value_store.h"
#include "runtime/launch/threaded_run.h"
#include "runtime/model/views.h"
#include "schedules/registry.h"
#include "tests/support/failure.h"
#include "tests/support/run_support.h"
#include "tests/support/support.h"

namespace contraflow::static_memory_test {
namespace {

struct Case {
  Plan plan;
  Model model;
};

/// A plan of level buffer for a small model.
Case BufferCase(std::string_view schedule, int ranks, int microbatches, int members, float capacity,
                uint64_t seed) {
  std::mt19937_64 random(seed);
  CostModel costs = RandomMoeCosts(&random, 2, Overlap::kAll);
  Plan plan = GeneratePlan(MakeSpec(schedule, ranks, microbatches, costs));
  plan.expert_parallel = members;
  const int layers = costs.moe->layers_per_stage;
  Model model = SmallModel(plan.stages);
  model.layers = plan.stages * layers;
  model.capacity_factor = capacity;
  costs.memory = FootprintOf(model, plan.stages, layers, members);
  return {Lower(std::move(plan), costs, {.target = Level::kBuffer}), model};
}

/// "", or the first difference from the reference in two steps, or why the run failed.
std::string Compare(const Case& c, bool strict) {
  const Dataset dataset = SmallDataset();
  std::string difference;
  const std::string failure = Failure([&] {
    const auto timeout = std::chrono::seconds(20);
    ThreadedRun run(c.plan, c.model, dataset, 7, {.strict = strict, .timeout = timeout}, true);
    ReferenceRun reference(c.plan, c.model, dataset, 7);
    for (int step = 1; step <= 2 && difference.empty(); ++step) {
      const StepResult result = run.Step(step);
      difference = CompareStep(c.plan, step, result, run, reference).difference;
    }
  });
  return failure == "accepted" ? difference : failure;
}

/// Floats only: a spoiled index would be used as one.
bool IsNumbers(const Slot& slot) {
  return slot.value != Value::scores && slot.value != Value::rows;
}

bool Overlap(const Slot& a, const Slot& b) {
  return a.arena == b.arena && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

TEST_SUITE("equivalence") {
  TEST_CASE("static memory: every schedule runs in its arenas which are as large as predicted") {
    int count = 0;
    for (const Schedule* schedule : Schedules()) {
      if (!schedule->reject(MakeSpec(schedule->name, 4, 8, UniformCosts(3, 4, 2))).empty())
        continue;
      const float capacity = count % 3 == 2 ? 0.7f : 0.0f;
      const uint64_t seed = static_cast<uint64_t>(++count);
      const Case c = BufferCase(schedule->name, 4, 8, 1 + count % 2, capacity, seed);
      CAPTURE(c.plan.schedule);
      CAPTURE(c.plan.expert_parallel);
      CAPTURE(capacity);
      CHECK(Compare(c, count % 2 == 0) == "");
      const Dataset dataset = SmallDataset();
      ThreadedRun run(c.plan, c.model, dataset, 7, {});
      const std::vector<MemoryFigures> figures = MemoryOf(c.plan, *c.plan.costs);
      const std::vector<std::vector<int>> holders = HoldersOfStage(c.plan);
      for (int member = 0; member < c.plan.expert_parallel; ++member) {
        for (int rank = 0; rank < c.plan.ranks; ++rank) {
          const auto r = static_cast<size_t>(rank);
          HostBackend& backend = run.At({0, member, rank});
          CHECK(backend.arena_bytes() == ArenaBytes(c.plan.slots[r]));
          CHECK(backend.arena_bytes() == figures[r].arenas);
          CHECK(backend.arena_bytes()[0] > 0);
          int64_t parameters = 0;
          for (int s = 0; s < c.plan.stages; ++s) {
            const auto& ranks = holders[static_cast<size_t>(s)];
            if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) continue;
            parameters += static_cast<int64_t>(backend.StageAt(s).parameters().size_bytes());
          }
          CHECK(parameters == figures[r].parameters);
          CHECK(parameters == figures[r].gradients);
          CHECK(2 * parameters == figures[r].optimizer);
        }
      }
    }
    CHECK(count >= 5);
  }

  TEST_CASE("static memory: two values in one place or a life cut short do not go unnoticed") {
    if (PoisonIsFatal()) return;  // Noticed they would be, and no test would follow.
    const Case sound = BufferCase("1f1b", 2, 4, 1, 0, 1);
    REQUIRE(Compare(sound, true) == "");
    std::mt19937_64 random(9);
    int spoiled = 0;
    for (int round = 0; round < 20000 && spoiled < 20; ++round) {
      Case c = sound;
      std::vector<Slot>& slots = c.plan.slots[static_cast<size_t>(round) % 2];
      std::uniform_int_distribution<size_t> draw(0, slots.size() - 1);
      Slot& a = slots[draw(random)];
      const Slot& b = slots[draw(random)];
      // One is there when the other is made, and used behind that.
      if (!IsNumbers(a) || !IsNumbers(b)) continue;
      if (a == b || a.arena != b.arena || a.bytes > b.bytes) continue;
      if (!(b.first < a.first && a.first < b.last) || Overlap(a, b)) continue;
      a.offset = b.offset;
      ++spoiled;
      CAPTURE(ToString(a));
      CAPTURE(ToString(b));
      CHECK(Compare(c, true) != "");
    }
    CHECK(spoiled >= 10);
  }

  TEST_CASE("static memory: a plan for another model is refused") {
    const Case c = BufferCase("1f1b", 2, 2, 2, 0, 1);
    const Dataset dataset = SmallDataset();
    Model other = c.model;
    other.name = "./other.json";
    other.expert_width = 24;
    const LayerShape right(c.model, 2, 2), wrong(other, 2, 2);
    const auto bytes = [](const LayerShape& shape) {
      return std::to_string(BytesOfValues<float>(shape)[static_cast<size_t>(Value::gate)]);
    };
    CHECK(Failure([&] { ThreadedRun(c.plan, other, dataset, 7, {}); }) ==
          "this plan was compiled for another model: value gate has " + bytes(right) +
              " bytes, model \"./other.json\" needs " + bytes(wrong) +
              "; compile it with `model` ./other.json `device` cpu, and with the `capacity` it is "
              "to run with");
    Case less = c;
    std::erase_if(less.plan.slots[0], [](const Slot& s) { return s.value == Value::hidden; });
    CHECK(Failure([&] {
            ThreadedRun(less.plan, c.model, dataset, 7, {});
          }).starts_with("this plan was compiled for another model: value hidden has 0 bytes"));
    Case more = c;
    more.plan.slots[1].push_back(c.plan.slots[0][0]);
    CHECK(Failure([&] {
            ThreadedRun(more.plan, c.model, dataset, 7, {});
          }).find("which no instruction of the rank touches; verify the plan") !=
          std::string::npos);
  }
}

TEST_SUITE("unit") {
  TEST_CASE("value store: a value lives from its making to its last use") {
    ValueBytes bytes{};
    bytes[static_cast<size_t>(Value::input)] = 128;
    bytes[static_cast<size_t>(Value::gate)] = 64;
    const Access made{Value::input, 0, 1, 2, true}, used{Value::input, 0, 1, 2, false};
    const Access gate{Value::gate, 3, 1, 2, true};
    for (const bool placed : {false, true}) {
      CAPTURE(placed);
      ValueStore store(bytes, true);
      for (const Access& access : {made, used, used, gate}) store.Expect(access);
      if (placed) {
        const Slot input{.value = Value::input,
                         .layer = 0,
                         .stage = 1,
                         .microbatch = 2,
                         .offset = 64,
                         .bytes = 128};
        Slot other = input;
        other.value = Value::gate;
        other.layer = 3;
        other.offset = 0;
        other.bytes = 64;
        store.Place({input, other}, "m");
        CHECK(store.arena_bytes()[0] == 192);
      }
      CHECK(store.arena_bytes()[1] == 0);
      store.BeginStep();
      CHECK(Failure([&] { store.Touch(used); }) ==
            "the input of stage 1, layer 0, micro-batch 2 is not on this rank; verify the plan");
      std::byte* const at = store.Touch(made);
      CHECK(reinterpret_cast<uintptr_t>(at) % 64 == 0);
      CHECK(std::isnan(*reinterpret_cast<const float*>(at)));
      *reinterpret_cast<float*>(at) = 5;
      CHECK(Failure([&] { store.Touch(made); }) ==
            "the input of stage 1, layer 0, micro-batch 2 is here already; verify the plan");
      store.Leave(made);
      CHECK(store.Touch(used) == at);
      store.Leave(used);
      CHECK(Failure([&] { store.EndStep(); }) ==
            "the input of stage 1, layer 0, micro-batch 2 was never used; verify the plan");
      CHECK(*reinterpret_cast<const float*>(store.Touch(used)) == 5);
      store.Leave(used);
      CHECK(Failure([&] { store.Touch(used); }) != "accepted");
      store.EndStep();
      // Made for others, and none came.
      store.Touch(gate);
      store.Leave(gate);
      CHECK(Failure([&] { store.EndStep(); }).starts_with("the gate of stage 1, layer 3, "));
      store.BeginStep();
      store.EndStep();
      CHECK(std::isnan(*reinterpret_cast<const float*>(store.Touch(made))));
    }
  }

  TEST_CASE("views: the parts of a value lie side by side inside of it") {
    Model model = SmallModel(1);
    for (const float capacity : {0.0f, 0.5f, 4.0f}) {
      model.capacity_factor = capacity;
      const LayerShape n(model, 2, 2);
      CHECK(n.tokens == 12);
      CHECK(n.capacity == (capacity == 0.0f ? 0 : capacity < 1 ? 3 : 12));
      CHECK(n.sent_rows == (capacity == 0.0f ? 24 : 4 * n.capacity));
      CHECK(n.expert_rows == (capacity == 0.0f ? 2 * 12 * 2 : 2 * 2 * n.capacity));
      const ValueBytes bytes = BytesOfValues<float>(n);
      alignas(64) static std::byte memory[1 << 16];
      for (size_t v = 0; v < kValueCount; ++v) {
        CAPTURE(Name(static_cast<Value>(v)));
        CHECK(bytes[v] % kSlotAlignment == 0);
        REQUIRE(bytes[v] <= static_cast<int64_t>(sizeof memory));
        LayerViews<float> views;
        CHECK(PlaceValue(n, static_cast<Value>(v), memory, &views) == bytes[v]);
      }
      LayerViews<float> views;
      PlaceValue(n, Value::rows, memory, &views);
      const auto* first = reinterpret_cast<const std::byte*>(views.first);
      CHECK(reinterpret_cast<const std::byte*>(views.rows) == memory);
      CHECK(first - memory >= static_cast<ptrdiff_t>(sizeof(float)) * n.expert_rows * n.width);
      CHECK(reinterpret_cast<const std::byte*>(views.received + 4) <=
            memory + bytes[static_cast<size_t>(Value::rows)]);
      CHECK(reinterpret_cast<const std::byte*>(views.received) >= first + 3 * sizeof(int32_t));
      // A double takes twice the bytes, give and take what fills up parts.
      const int64_t twice = BytesOfValues<double>(n)[static_cast<size_t>(Value::hidden)];
      CHECK(std::abs(twice - 2 * bytes[static_cast<size_t>(Value::hidden)]) < 64);
    }
  }

  TEST_CASE("footprint: activations and stashes follow from the values") {
    const Model model = FitModel(ReadModel("tiny"), 4, 2);
    const MemoryCost memory = FootprintOf(model, 4, 2, 2);
    const auto at = [&](Value value) { return memory.values[static_cast<size_t>(value)]; };
    REQUIRE(memory.values.size() == kValueCount);
    CHECK(at(Value::input) == 16 * 16 * 4);
    CHECK(at(Value::gate) == 2 * 16 * 2 * 2 * 16 * 4);
    CHECK(at(Value::activation) == 0);
    CHECK(memory.activation_bytes ==
          2 * (at(Value::input) + at(Value::attention) + at(Value::scores) + at(Value::rows) +
               at(Value::gate) + at(Value::hidden) + at(Value::combined)));
    CHECK(memory.w_stash_bytes <= memory.activation_bytes);
    CHECK(memory.w_stash_bytes > at(Value::hidden));
    REQUIRE(memory.parameter_bytes.size() == 4);
    // Attention, norms, router and half of the experts of two layers; the first stage has the
    // embedding as well.
    const int64_t layer = 4 * 16 * 16 + 2 * 16 + 16 * 4 + 2 * 3 * 16 * 16;
    CHECK(memory.parameter_bytes[1] == 2 * layer * 4);
    CHECK(memory.parameter_bytes[0] == 2 * layer * 4 + 256 * 16 * 4);
    CHECK(memory.gradient_bytes == memory.parameter_bytes);
    CHECK(memory.optimizer_bytes[3] == 2 * memory.parameter_bytes[3]);
    // A model that leaves its layers open takes those of the plan.
    CHECK(FootprintOf(ReadModel("tiny"), 4, 2, 2) == memory);
    CHECK(Failure([] { FootprintOf(ReadModel("tiny"), 4, 2, 3); }).find("/experts: ") !=
          std::string::npos);
  }
}

}  // namespace
}  // namespace contraflow::static_memory_test
