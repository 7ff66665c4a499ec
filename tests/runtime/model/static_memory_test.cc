// Values in the places that a plan gives them: predicted bytes are those allocated, training equals
// the run without a pipeline with every byte that holds no value full of NaN, and what is wrong
// with a value or a slot is said.

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <random>
#include <string>
#include <utility>

#include "compiler/plan/value.h"
#include "compiler/simulate/memory.h"
#include "runtime/core/value_places.h"
#include "runtime/launch/threaded_run.h"
#include "runtime/model/views.h"
#include "schedules/registry.h"
#include "tests/support/failure.h"
#include "tests/support/run_support.h"
#include "tests/support/support.h"

namespace contraflow::static_memory_test {
namespace {

// True in builds with the address sanitizer, where to touch poisoned bytes ends the program.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kPoisonIsFatal = true;
#elif defined(__has_feature)
constexpr bool kPoisonIsFatal = __has_feature(address_sanitizer);
#else
constexpr bool kPoisonIsFatal = false;
#endif

/// "", or what differs from the run without a pipeline, or why the run failed, with every byte that
/// holds no value full of NaN.
std::string Compare(const Plan& plan, const Model& model, bool strict = true) {
  return TrainBesideReference(plan, model, {.strict = strict, .fill = true}).difference;
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
      const Model model = GroupModel(count % 3 == 2 ? 0.7f : 0.0f);
      const uint64_t seed = static_cast<uint64_t>(++count);
      const Plan plan = PlanFor(model, schedule->name, 4, 8, 1 + count % 2, Level::kBuffer, seed);
      CAPTURES(plan.schedule, plan.expert_parallel, model.capacity_factor);
      CHECK(Compare(plan, model, count % 2 == 0) == "");
      const Dataset dataset = SmallDataset();
      ThreadedRun run(plan, model, dataset, 7, {});
      const std::vector<MemoryFigures> figures = MemoryOf(plan, *plan.costs);
      for (const Device& device : run.devices()) {
        HostBackend& backend = run.At(device);
        const MemoryFigures& predicted = figures[static_cast<size_t>(device.rank)];
        CHECK(backend.arena_bytes() == predicted.arenas);
        CHECK(backend.arena_bytes()[0] > 0);
        int64_t parameters = 0;
        for (const int s : StagesOf(plan, device.rank)) {
          parameters += static_cast<int64_t>(backend.StageAt(s).parameters().size_bytes());
        }
        CHECK(parameters == predicted.parameters);
        CHECK(parameters == predicted.gradients);
        CHECK(2 * parameters == predicted.optimizer);
      }
    }
    CHECK(count >= 5);
  }

  TEST_CASE("static memory: two values in one place or a life cut short do not go unnoticed") {
    if (kPoisonIsFatal) return;  // Noticed they would be, and no test would follow.
    const Model model = GroupModel();
    const Plan sound = PlanFor(model, "1f1b", 2, 4, 1, Level::kBuffer, 1);
    REQUIRE(Compare(sound, model) == "");
    std::mt19937_64 random(9);
    int spoiled = 0;
    for (int round = 0; round < 20000 && spoiled < 20; ++round) {
      Plan plan = sound;
      std::vector<Slot>& slots = plan.slots[static_cast<size_t>(round) % 2];
      std::uniform_int_distribution<size_t> draw(0, slots.size() - 1);
      Slot& a = slots[draw(random)];
      const Slot& b = slots[draw(random)];
      // One is there when the other is made, and used after that.
      if (!IsNumbers(a) || !IsNumbers(b)) continue;
      if (a == b || a.arena != b.arena || a.bytes > b.bytes) continue;
      if (!(b.first < a.first && a.first < b.last) || Overlap(a, b)) continue;
      a.offset = b.offset;
      ++spoiled;
      CAPTURES(ToString(a), ToString(b));
      CHECK(Compare(plan, model) != "");
    }
    CHECK(spoiled >= 10);
  }

  TEST_CASE("static memory: a plan for another model is refused") {
    const Model model = GroupModel();
    const Plan sound = PlanFor(model, "1f1b", 2, 2, 2, Level::kBuffer, 1);
    const Dataset dataset = SmallDataset();
    const auto failure = [&](const Plan& plan, const Model& the_model) {
      return Failure([&] { ThreadedRun(plan, the_model, dataset, 7, {}); });
    };
    Model other = model;
    other.name = "./other.json";
    other.expert_width = 24;
    const auto bytes = [](const Model& of) {
      const LayerShape shape(of, 2, 2);
      return std::to_string(BytesOfValues<float>(shape)[static_cast<size_t>(Value::gate)]);
    };
    CHECK(failure(sound, other) ==
          "this plan was compiled for another model or device: value gate has " + bytes(model) +
              " bytes, model \"./other.json\" needs " + bytes(other) +
              "; compile it with `model` ./other.json `device` cpu, and with the `capacity` it is "
              "to run with");
    Plan less = sound;
    std::erase_if(less.slots[0], [](const Slot& s) { return s.value == Value::hidden; });
    CHECK(failure(less, model)
              .starts_with(
                  "this plan was compiled for another model or device: value hidden has 0 bytes"));
    Plan more = sound;
    more.slots[1].push_back(sound.slots[0][0]);
    CHECK(Contains(failure(more, model),
                   "which no instruction of the rank touches; verify the plan"));
  }
}

TEST_SUITE("unit") {
  TEST_CASE("value places: no two values in one place at the same time") {
    const Model model = GroupModel();
    for (const Level level : {Level::kComm, Level::kComponent, Level::kBuffer}) {
      CAPTURE(Name(level));
      const Plan plan = PlanFor(model, "zb-v", 2, 4, 2, level, 3);
      const Model fitted = FitModel(model, plan.stages, plan.layers, 2);
      const ComponentWalk walk(plan, LayersOfStages(fitted, plan.stages), fitted.name);
      const ValueBytes bytes = BytesOfValues<float>(LayerShape(fitted, 2, 2));
      const ValuePlaces places(plan, 0, walk, bytes, model.name, "cpu");
      // Bytes of each arena that hold a value now.
      std::array<std::vector<bool>, kArenaCount> held;
      for (size_t a = 0; a < kArenaCount; ++a) {
        held[a].resize(static_cast<size_t>(places.arena_bytes()[a]));
      }
      int begun = 0, ended = 0;
      const auto run = [&](const Instruction& i) {
        CAPTURE(ToString(i));
        for (const bool before : {true, false}) {
          for (const ValuePlaces::Use& use : places.Of(i)) {
            const auto first =
                held[static_cast<size_t>(use.place->arena)].begin() + use.place->offset;
            const auto end = first + bytes[static_cast<size_t>(use.value)];
            if (before) {
              CHECK(use.place->offset % kSlotAlignment == 0);
              CHECK(std::all_of(first, end, [&](bool b) { return b != use.begins(); }));
              std::fill(first, end, true);
              begun += use.begins();
            } else if (use.ends()) {
              ++ended;
              // A value that is sent keeps its place, where no event says when it has left.
              if (level == Level::kBuffer || !IsSend(i.op)) std::fill(first, end, false);
            }
          }
        }
      };
      for (const Instruction& i : plan.programs[0]) {
        if (IsMessage(i.op)) run(i);
        if (!IsMessage(i.op) && OperandsOf(i.op) != Operands::kStage) walk.Each(i, run);
      }
      CHECK(begun > 100);
      CHECK(begun == ended);
    }
  }

  TEST_CASE("value places: what is not there or never used is refused") {
    const Model model = SmallModel(1);
    const auto failure = [&](const std::string& program) {
      const Plan plan = PlanFromText("level comm\nrank\n" + program);
      const ValueBytes bytes = BytesOfValues<float>(LayerShape(model, 1, model.experts));
      return Failure([&] {
        ValuePlaces(plan, 0, ComponentWalk(plan, LayersOfStages(model, plan.stages), model.name),
                    bytes, "m", "cpu");
      });
    };
    CHECK(failure("F s0 m0\nBW s0 m0") == "accepted");
    CHECK(failure("W s0 m0") ==
          "rank 0, MLP_W s0 l0 m0: the rows of stage 0, layer 0, micro-batch 0 is not on this "
          "rank; verify the plan");
    CHECK(failure("F s0 m0\nB s0 m0").ends_with(" is never used; verify the plan"));
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
    CHECK(Contains(Failure([] { FootprintOf(ReadModel("tiny"), 4, 2, 3); }), "/experts: "));
  }
}

}  // namespace
}  // namespace contraflow::static_memory_test
