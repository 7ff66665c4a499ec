#include "compiler/plan/value.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <tuple>

#include "compiler/files/plan_document.h"
#include "compiler/lower/passes.h"
#include "compiler/plan/access.h"
#include "tests/support/failure.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"

namespace contraflow::value_test {
namespace {

const std::string kGate = "gate s3 l0 m7 arena=activation offset=128 bytes=4096 first=3 last=17";

std::string With(const std::string& from, const std::string& to) {
  std::string text = kGate;
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

using Key = std::tuple<Value, int, int, int>;  // value, stage, layer, micro-batch

/// Every value of a rank must be made once, before anything else touches it.
void CheckLives(const Plan& plan) {
  const Accesses accesses(plan);
  std::vector<Access> touched;
  for (const Program& program : plan.programs) {
    std::map<Key, int> touches;
    for (const Instruction& i : program) {
      accesses.Of(i, &touched);
      size_t made = 0;
      std::vector<Key> here;
      for (const Access& a : touched) {
        CAPTURES(ToString(i), Name(a.value));
        const Key key = {a.value, a.stage, a.layer, a.microbatch};
        made += a.makes ? 1 : 0;
        CHECK(a.makes == (touches[key]++ == 0));
        here.push_back(key);
      }
      CHECK(made <= kMaxMade);
      std::ranges::sort(here);
      CHECK(std::ranges::adjacent_find(here) == here.end());
    }
  }
}

/// Every chunk as its components, one after another.
Plan Spell(Plan plan, int layers) {
  plan.layers = layers;
  for (Program& program : plan.programs) {
    Program spelt;
    for (const Instruction& i : program) {
      const auto add = [&](Op op, int stage, int layer, int m) {
        spelt.push_back(Component(op, stage, layer, m));
      };
      if (WorkOf(i.op) != Work::kCompute) spelt.push_back(i);
      for (int l = 0; HasForward(i.op) && l < layers; ++l) {
        for (const Op op : {Op::ATTN_F, Op::DISPATCH_F, Op::MLP_F, Op::COMBINE_F}) {
          add(op, i.stage, l, i.microbatch);
        }
      }
      for (int l = layers - 1; HasBackward(i.op) && l >= 0; --l) {
        for (const Op op : {Op::COMBINE_B, Op::MLP_B, Op::DISPATCH_B, Op::ATTN_B}) {
          add(op, BackStage(i), l, BackMicrobatch(i));
        }
      }
      for (int l = layers - 1; HasWeight(i.op) && l >= 0; --l) {
        add(Op::MLP_W, BackStage(i), l, BackMicrobatch(i));
        add(Op::ATTN_W, BackStage(i), l, BackMicrobatch(i));
      }
    }
    program = std::move(spelt);
  }
  return plan;
}

TEST_SUITE("unit") {
  TEST_CASE("a slot is written as it is read") {
    const Slot gate{.value = Value::gate,
                    .arena = Arena::kActivation,
                    .layer = 0,
                    .stage = 3,
                    .microbatch = 7,
                    .first = 3,
                    .last = 17,
                    .offset = 128,
                    .bytes = 4096};
    CHECK(ToString(gate) == kGate);
    CHECK(ParseSlot(kGate) == gate);
    Slot opaque = gate;
    opaque.layer = -1;
    CHECK(ToString(opaque) == With("l0 ", ""));
    CHECK(ParseSlot(With("l0 ", "")) == opaque);
  }

  TEST_CASE("a wrong slot gives one clear error") {
    const std::string form =
        "; a slot is written like \"gate s3 l0 m7 arena=activation offset=128 bytes=4096 first=3 "
        "last=17\"";
    const auto wants = [&](const std::string& key, const std::string& word) {
      return "must have \"" + key + "\" and a number >= 0 that fits, has \"" + word + "\"" + form;
    };
    const struct {
      std::string text, message;
    } rows[] = {
        {"", "the slot ends too early" + form},
        {"gate", "the slot ends too early" + form},
        {kGate.substr(0, kGate.rfind(' ')), "the slot ends too early" + form},
        {kGate + " ", "the slot ends with a space" + form},
        {kGate + " more", "unexpected text after \"last\"" + form},
        {With("gate", "gat"), "unknown value \"gat\" (did you mean \"gate\"?)" + form},
        {With("gate", "xyzzy plugh"), "unknown value \"xyzzy\"" + form},
        {With("s3", "3"), wants("s", "3")},
        {With("s3", "s"), wants("s", "s")},
        {With("s3", "s-3"), wants("s", "s-3")},
        {With("s3", "s03"), wants("s", "s03")},
        {With("s3", "s2147483648"), wants("s", "s2147483648")},
        {With("l0", "l32768"), wants("l", "l32768")},
        {With("m7", "l7"), wants("m", "l7")},
        {With(" m7", "  m7"), wants("m", "")},
        {With("arena=activation", "arena=heap"),
         "unknown arena \"arena=heap\"; arenas are activation, stash, gradient, exchange" + form},
        {With("offset=128", "offset=+1"), wants("offset=", "offset=+1")},
        {With("bytes=4096", "bytes=9223372036854775808"),
         wants("bytes=", "bytes=9223372036854775808")},
        {With("first=3 ", ""), wants("first=", "last=17")},
        {With("last=17", "last=1.5"), wants("last=", "last=1.5")},
    };
    for (const auto& row : rows) {
      CAPTURE(row.text);
      CHECK(Failure([&] { ParseSlot(row.text); }) == row.message);
    }
  }

  TEST_CASE("names are those of the list and each value has its arena") {
    CHECK(Name(Value::input) == "input");
    CHECK(Name(Value::stash) == "stash");
    CHECK(Name(Arena::kExchange) == "exchange");
    CHECK(ArenaOf(Value::input) == Arena::kActivation);
    CHECK(ArenaOf(Value::hidden) == Arena::kStash);
    CHECK(ArenaOf(Value::dgate) == Arena::kStash);
    CHECK(ArenaOf(Value::doutput) == Arena::kGradient);
    CHECK(ArenaOf(Value::dinput) == Arena::kExchange);
  }

  TEST_CASE("arenas end where their highest slot does") {
    CHECK(ArenaBytes({}) == std::array<int64_t, kArenaCount>{});
    const std::vector<Slot> slots = {
        {.arena = Arena::kStash, .offset = 64, .bytes = 10},
        {.arena = Arena::kStash, .offset = 0, .bytes = 70},
        {.arena = Arena::kExchange, .offset = 128, .bytes = 1},
    };
    CHECK(ArenaBytes(slots) == std::array<int64_t, kArenaCount>{0, 74, 0, 129});
  }

  TEST_CASE("bytes come from the costs or are asked for") {
    CostModel costs = UniformCosts(1, 1, 1);
    CHECK(Failure([&] { ValueBytesOf(costs, 0); }) ==
          "the costs do not say how large activations are; give \"memory\": "
          "{\"activation_bytes\": .., \"w_stash_bytes\": ..}");
    const std::string values =
        "the costs do not say how large the values of a layer are; give \"memory\": "
        "{\"values\": {..}}, or compile with `model`";
    CHECK(Failure([&] { ValueBytesOf(costs, 2); }) == values);
    costs.memory = MemoryCost{.activation_bytes = 1000, .w_stash_bytes = 400};
    costs.comm.bytes = 7;
    CHECK(Failure([&] { ValueBytesOf(costs, 2); }) == values);
    ValueBytes bytes = ValueBytesOf(costs, 0);
    CHECK(bytes[static_cast<size_t>(Value::activation)] == 600);
    CHECK(bytes[static_cast<size_t>(Value::stash)] == 400);
    CHECK(bytes[static_cast<size_t>(Value::dinput)] == 7);
    CHECK(bytes[static_cast<size_t>(Value::gate)] == 0);
    costs.memory->values.assign(kValueCount, 3);
    bytes = ValueBytesOf(costs, 2);
    CHECK(std::ranges::all_of(bytes, [](int64_t b) { return b == 3; }));
  }
}

TEST_SUITE("property") {
  TEST_CASE("random slots survive text") {
    std::mt19937_64 random(1);
    const auto number = [&random](int bits) {
      return static_cast<int64_t>(random() >> (64 - 1 - random() % static_cast<uint64_t>(bits)));
    };
    for (int i = 0; i < CasesToDraw(1000); ++i) {
      const Slot slot{.value = static_cast<Value>(random() % kValueCount),
                      .arena = static_cast<Arena>(random() % kArenaCount),
                      .layer = static_cast<int16_t>(number(14) - 1),
                      .stage = static_cast<int32_t>(number(30)),
                      .microbatch = static_cast<int32_t>(number(30)),
                      .first = static_cast<int32_t>(number(30)),
                      .last = static_cast<int32_t>(number(30)),
                      .offset = number(62),
                      .bytes = number(62)};
      CAPTURE(ToString(slot));
      CHECK(ParseSlot(ToString(slot)) == slot);
    }
  }

  TEST_CASE("every value is made once and before any other use") {
    std::mt19937_64 random(2);
    for (const Spec& spec : RandomSpecs(&random, 40, 6, 8)) {
      CAPTURE(spec.schedule);
      const Plan plan = Compile(spec);
      CheckLives(plan);
      CheckLives(Spell(plan, 1));
      CheckLives(Spell(plan, 3));
    }
  }
}

}  // namespace
}  // namespace contraflow::value_test
