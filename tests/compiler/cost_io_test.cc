#include "compiler/files/cost_io.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <random>
#include <set>

#include "compiler/files/file.h"
#include "compiler/files/plan_document.h"
#include "compiler/files/plan_io.h"
#include "compiler/lower/interleave.h"
#include "compiler/plan/layer_cost.h"
#include "compiler/plan/value.h"
#include "tests/support/failure.h"
#include "tests/support/sanitized.h"

namespace contraflow::cost_io_test {
namespace {

std::string Read(const std::string& text) {
  return Failure([&] { ReadCosts(text, "c.json"); });
}

/// A cost document with valid stage costs and `member`.
std::string With(const std::string& member) {
  return R"({"unit": "us", "stage": {"f": 1, "b": 1, "w": 1}, )" + member + "}";
}

/// A cost document with these stage costs.
std::string Stage(const std::string& stage) { return R"({"unit": "us", "stage": )" + stage + "}"; }

std::string Moe(const std::string& attn_f) {
  return With(R"("moe": {"layers_per_stage": 2, "attn_f": )" + attn_f +
              R"(, "dispatch_f": 1, "mlp_f": 1, "combine_f": 1, "combine_b": 1, "mlp_b": 1,
                 "dispatch_b": 1, "attn_b": 1, "mlp_w": 1, "attn_w": 1})");
}

/// A cost document of components alone, two layers, and `member`.
std::string ComponentsWith(const std::string& member) {
  return R"({"unit": "us", "moe": {"layers_per_stage": 2, "attn_f": 1, "dispatch_f": 1, "mlp_f": 1,
             "combine_f": 1, "combine_b": 1, "mlp_b": 1, "dispatch_b": 1, "attn_b": 1, "mlp_w": 1,
             "attn_w": 1}, )" +
         member + "}";
}

TEST_SUITE("unit") {
  TEST_CASE("defaults: bw = b + w fb = f + bw no communication") {
    const CostModel costs = ReadCosts(Stage(R"({"f": 1.5, "b": 2, "w": 0.25})"), "c.json");
    REQUIRE(costs.stages.size() == 1);
    CHECK(costs.stages[0] == StageCost{.f = 1500, .b = 2000, .w = 250, .bw = 2250, .fb = 3750});
    CHECK(costs.comm == CommCost{});
    CHECK(costs.unit == Unit::kMicroseconds);
  }

  TEST_CASE("a message takes its latency and fills its edge for bytes / bandwidth") {
    const CostModel costs =
        ReadCosts(With(R"("comm": {"latency": 2, "bytes": 1000, "bandwidth": 300})"), "c.json");
    CHECK(costs.comm.latency == 2000);
    CHECK(costs.comm.occupancy == 3333);
    CHECK(costs.comm.exclusive());
    CHECK_FALSE(ReadCosts(With(R"("comm": {"time": 2})"), "c.json").comm.exclusive());
    CHECK_FALSE(
        ReadCosts(With(R"("comm": {"latency": 2, "bytes": 9})"), "c.json").comm.exclusive());
  }

  TEST_CASE("noisy figures are mended where that is asked for, and within limits") {
    const auto read = [](const std::string& stage, CostMending* mending) {
      return ReadCosts(Stage(stage), "c.json", mending).stages.front();
    };
    CostMending mending{.split = 0.6};
    CHECK(read(R"({"f": 2, "bw": 10})", &mending) ==
          StageCost{.f = 2000, .b = 6000, .w = 4000, .bw = 10000, .fb = 12000});
    CHECK(read(R"({"f": 2, "b": 3, "bw": 10})", &mending).w == 7000);
    CHECK(read(R"({"f": 2, "w": 10, "bw": 10})", &mending).b == 0);
    CHECK(read(R"({"f": 2, "b": 3, "w": 4, "bw": 2})", &mending) ==
          StageCost{.f = 2000, .b = 3000, .w = 4000, .bw = 4000, .fb = 6000});
    CHECK(read(R"({"f": 8, "b": 3, "w": 4, "fb": 4})", &mending).fb == 8000);
    CHECK(mending.assumed.size() == 5);
    CHECK(mending.assumed.back() ==
          "c.json: /stage: \"fb\" is 4, shorter than \"f\", \"b\" or \"w\", and taken as 8");
    read(R"({"f": 2, "b": 3, "w": 4, "bw": 5, "fb": 6})", &mending);
    CHECK(mending.assumed.size() == 5);
    const auto failure = [&](const std::string& stage) {
      return Failure([&] { read(stage, &mending); });
    };
    CHECK(failure(R"({"f": 2, "b": 3, "w": 4, "bw": 1.999})").find("must be >= 4") !=
          std::string::npos);
    CHECK(failure(R"({"f": 8, "b": 3, "w": 4, "fb": 3.999})").find("must be >= 8") !=
          std::string::npos);
    CHECK(failure(R"({"f": 2, "b": 3, "bw": 2})") ==
          "c.json: /stage: \"b\" is longer than \"bw\", so that nothing is left for \"w\"; give "
          "that, too");
    CHECK(failure(R"({"f": 2, "bw": -1})").find("a number >= 0") != std::string::npos);
    CHECK(failure(R"({"f": 2, "b": 1})") == "c.json: /stage: the key \"w\" is missing; add it");
    // The same of layers.
    const CostModel layers = ReadCosts(
        R"({"unit": "us", "layers": [{"name": "a", "f": 1, "bw": 3}, {"name": "b", "f": 1, "b": 2,
            "w": 1, "bw": 1.5}]})",
        "c.json", &mending);
    CHECK(layers.layers[0].cost.b == 1800);
    CHECK(layers.layers[1].cost.bw == 2000);
    CHECK(mending.assumed.back().starts_with("c.json: /layers/1: \"bw\" is 1.5"));
  }

  TEST_CASE("every wrong cost document has one clear message") {
    const struct {
      std::string text, message;
    } rows[] = {
        {"[]", "c.json: must be an object, the costs, is an array"},
        {"{}", "c.json: the key \"unit\" is missing; add it"},
        {R"({"unit": "min"})",
         "c.json: /unit: unknown unit \"min\"; units are ns, us, ms, s, unit"},
        {R"({"unit": 3})", "c.json: /unit: must be a unit (ns, us, ms, s or unit) in quotes, is 3"},
        {R"({"unit": "us"})",
         "c.json: has no stage costs; give \"stage\": {\"f\": .., \"b\": .., \"w\": ..} (every "
         "stage alike), \"stages\" with one such entry for each stage, \"layers\", or \"moe\""},
        {R"({"unit": "us", "moe": {}})",
         "c.json: /moe: the key \"layers_per_stage\" is missing; add it"},
        {With("\"stages\": []"),
         "c.json: has both \"stage\" (every stage alike) and \"stages\" (one each); keep one"},
        {With("\"memmory\": {}"),
         "c.json: unknown key \"memmory\" (did you mean \"memory\"?); known are: unit, source, "
         "parallel, gpu, tokens, sums, stage, stages, layers, partition, partition_of, comm, host, "
         "moe, overlap, memory, ranks, microbatch_scale"},
        {With("\"source\": \"a\\u0007\""),
         "c.json: /source: must have no control characters, is \"a\\u0007\""},
        {R"({"unit": "us", "stages": []})", "c.json: /stages: must have 1..32768 entries, has 0"},
        {R"({"unit": "us", "stages": {}})",
         "c.json: /stages: must be an array with one entry for each stage, is an object"},
        {R"({"unit": "us", "stages": [{"f": 1, "b": 1, "w": 1}, {"f": 1, "b": 1}]})",
         "c.json: /stages/1: the key \"w\" is missing; add it"},
        {Stage("3"), "c.json: /stage: must be an object with the costs of a stage, is 3"},
        {Stage(R"({"f": 1, "b": 1, "w": 1, "wb": 2})"),
         "c.json: /stage: unknown key \"wb\" (did you mean \"fb\"?); known are: f, b, w, bw, fb, "
         "reduce, step, r, layers"},
        {Stage(R"({"f": -3, "b": 1, "w": 1})"),
         "c.json: /stage/f: must be a cost (a number >= 0), is -3"},
        {Stage(R"({"f": -0.5, "b": 1, "w": 1})"),
         "c.json: /stage/f: must be a cost (a number >= 0), is -0.5"},
        {Stage(R"({"f": "1", "b": 1, "w": 1})"),
         "c.json: /stage/f: must be a cost (a number >= 0), is \"1\""},
        {Stage(R"({"f": null, "b": 1, "w": 1})"),
         "c.json: /stage/f: must be a cost (a number >= 0), is null"},
        {Stage(R"({"f": NaN, "b": 1, "w": 1})"), "c.json:1:31: not valid JSON: invalid literal"},
        {Stage(R"({"f": 1e308, "b": 1, "w": 1})"),
         "c.json: /stage/f: is larger than 1125899906842.624 us, the largest cost there is"},
        {Stage(R"({"f": 1e999999999, "b": 1, "w": 1})"),
         "c.json:1:41: not valid JSON: number overflow parsing '1e999999999'"},
        {Stage(R"({"f": 1000000000000000000, "b": 1, "w": 1})"),
         "c.json: /stage/f: is larger than 1125899906842.624 us, the largest cost there is"},
        {Stage(R"({"f": 1000000000000000000000, "b": 1, "w": 1})"),
         "c.json: /stage/f: an integer out of 64 bits"},
        {Stage(R"({"f": 1, "b": 2, "w": 3, "bw": 2.5})"),
         "c.json: /stage: \"bw\" is the full backward and cannot be shorter than \"b\" or \"w\": "
         "must be >= 3, is 2.5"},
        {Stage(R"({"f": 1, "b": 2, "w": 3, "fb": 2})"),
         "c.json: /stage: \"fb\" is a forward and a full backward overlapped and cannot be shorter "
         "than \"f\", \"b\" or \"w\": must be >= 3, is 2"},
        {Stage(R"({"f": 1, "b": 1125899906842, "w": 1125899906842})"),
         "c.json: /stage: the costs of one stage add up to more than 1125899906842.624 us, the "
         "largest cost there is"},
        {With(R"("comm": {"time": 1, "latency": 1})"),
         "c.json: /comm: \"time\" is the whole cost of a message; give either it or \"latency\", "
         "\"bytes\" and \"bandwidth\""},
        {With(R"("comm": {})"),
         "c.json: /comm: give \"time\", or \"latency\", or \"bytes\" and \"bandwidth\""},
        {With(R"("comm": {"bytes": 1})"),
         "c.json: /comm: give \"time\", or \"latency\", or \"bytes\" and \"bandwidth\""},
        {With(R"("comm": {"bandwidth": 1})"),
         "c.json: /comm: \"bandwidth\" needs \"bytes\", the size of one message"},
        {With(R"("comm": {"bytes": 1, "bandwidth": 0})"),
         "c.json: /comm/bandwidth: must be a bandwidth (bytes per unit) above 0 and up to 1e18, is "
         "0"},
        {With(R"("comm": {"bytes": 1, "bandwidth": -1.5})"),
         "c.json: /comm/bandwidth: must be a bandwidth (bytes per unit) above 0 and up to 1e18, is "
         "-1.5"},
        {With(R"("comm": {"bytes": 1000000, "bandwidth": 1e-300})"),
         "c.json: /comm: \"bytes\" / \"bandwidth\": is larger than 1125899906842.624 us, the "
         "largest cost there is"},
        {With(R"("comm": {"bytes": 1.5, "bandwidth": 1})"),
         "c.json: /comm/bytes: must be a number of bytes in 0..1099511627776, is 1.5"},
        {With(R"("comm": 0)"),
         "c.json: /comm: must be an object with the costs of a message, is 0"},
        {With(R"("memory": {})"),
         "c.json: /memory: the key \"activation_bytes\" is missing; add it"},
        {With(R"("memory": {"activation_bytes": 10, "w_stash_bytes": 11})"),
         "c.json: /memory/w_stash_bytes: is part of \"activation_bytes\" and must be at most 10, "
         "is 11"},
        {With(R"("memory": {"activation_bytes": [10, 2], "w_stash_bytes": [1, 5]})"),
         "c.json: /memory/w_stash_bytes/1: is part of \"activation_bytes\" and must be at most 2, "
         "is 5"},
        {With(R"("memory": {"activation_bytes": 1e9})"),
         "c.json: /memory/activation_bytes: must be a number of bytes in 0..1099511627776, is "
         "1e+09"},
        {With(R"("microbatch_scale": [])"),
         "c.json: /microbatch_scale: must have 1..1048576 entries, has 0"},
        {With(R"("microbatch_scale": [1, 0])"),
         "c.json: /microbatch_scale/1: must be a factor in 1e-06..1e+06, is 0"},
        {With(R"("microbatch_scale": [1, -1.5])"),
         "c.json: /microbatch_scale/1: must be a factor in 1e-06..1e+06, is -1.5"},
        {Moe("[1, 2, 3]"),
         "c.json: /moe/attn_f: must be one number or a list with one for each of the 2 layers, has "
         "3 entries"},
        {Moe("[1]"),
         "c.json: /moe/attn_f: must be one number or a list with one for each of the 2 layers, has "
         "1 entries"},
        {Moe("[1, -1]"), "c.json: /moe/attn_f/1: must be a cost (a number >= 0), is -1"},
        {Moe("true"), "c.json: /moe/attn_f: must be a cost (a number >= 0), is true"},
        {With(R"("moe": {"layers_per_stage": 0})"),
         "c.json: /moe/layers_per_stage: must be a number of layers in 1..64, is 0"},
        {With(R"("moe": {"layers_per_stage": 65})"),
         "c.json: /moe/layers_per_stage: must be a number of layers in 1..64, is 65"},
        {With(R"("moe": {"layers_per_stage": 1000000000000000000})"),
         "c.json: /moe/layers_per_stage: must be a number of layers in 1..64, is "
         "1000000000000000000"},
        {With(R"("moe": {"layers_per_stage": 4})"),
         "c.json: /moe: the key \"attn_f\" is missing; add it"},
        {Moe("[1, 1125899906842]"),
         "c.json: /moe: the components of one stage add up to more than 1125899906842.624 us, the "
         "largest cost there is"},
        {With(R"("overlap": "all")"),
         "c.json: /overlap: says how stage costs follow from \"moe\", which is missing; add it, or "
         "drop this"},
        {With(R"("overlap": "most")"),
         "c.json: /overlap: unknown overlap \"most\"; it is published (F&B pairs only) or all"},
        {With(R"("overlap": 1)"),
         "c.json: /overlap: must be an overlap (published or all) in quotes, is 1"},
        {With(R"("memory": {"activation_bytes": 1, "parameter_bytes": []})"),
         "c.json: /memory/parameter_bytes: must be one number or a list with one for each stage, "
         "has 0 entries"},
        {With(R"("memory": {"activation_bytes": 1, "optimizer_bytes": [1, -1]})"),
         "c.json: /memory/optimizer_bytes/1: must be a number of bytes in 0..1099511627776, is -1"},
        {With(R"("memory": {"activation_bytes": 1, "gradient_bytes": "1"})"),
         "c.json: /memory/gradient_bytes: must be a number of bytes in 0..1099511627776, is \"1\""},
        {With(R"("memory": {"values": {"input": 1}})"),
         "c.json: /memory: has \"values\" and no \"activation_bytes\", which follows from them "
         "only with \"moe\"; give one of the two"},
        {With(R"("memory": {"activation_bytes": 1, "values": {"dhidden": 1}})"),
         "c.json: /memory/values: unknown key \"dhidden\" (did you mean \"hidden\"?); known are: "
         "input, output, attention, scores, dispatched, rows, gate, hidden, expert_out, combined, "
         "head, doutput, dcombined, dweight, drows, dgate, dsorted, ddispatched, dexpert, "
         "dattention, attention_work, dinput, activation, stash"},
        {With(R"("memory": {"activation_bytes": 1, "values": {"gate": 0.5}})"),
         "c.json: /memory/values/gate: must be a number of bytes in 0..1099511627776, is 0.5"},
        {ComponentsWith(R"("memory": {"values": {"rows": 1099511627776}})"),
         "c.json: /memory/values: the activations of a stage's layers add up to more than "
         "1099511627776 bytes; are they in bytes?"},
        {ComponentsWith(R"("memory": {"values": {"rows": 1}, "w_stash_bytes": 3})"),
         "c.json: /memory/w_stash_bytes: is part of \"activation_bytes\" and must be at most 2, is "
         "3"},
    };
    for (const auto& row : rows) {
      CAPTURE(row.text);
      CHECK(Read(row.text) == row.message);
    }
    CHECK(Read(Moe("[1, 2]")) == "accepted");
    CHECK(Read(Stage(R"({"f": 3, "b": 2, "w": 2, "fb": 3})")) == "accepted");
  }

  TEST_CASE("components of each stage, and of dense layers") {
    const std::string stages = R"({"unit": "us", "stages": [{"f": 1, "b": 1, "w": 1},
                                   {"f": 2, "b": 2, "w": 2}], "moe": )";
    const std::string plain = R"({"layers": "pd", "attn_f": [1, 2], "mlp_f": [0, 3],
        "mlp_b": [0, 4], "attn_b": 5, "mlp_w": [0, 6], "attn_w": 7})";
    const CostModel costs = ReadCosts(stages + "[" + plain + ", " + plain + "]}", "c.json");
    REQUIRE(costs.stage_moe.size() == 2);
    CHECK(costs.components());
    CHECK(ToString(costs.moe_of(1).kinds) == "pd");
    CHECK(costs.Duration(Component(Op::MLP_F, 1, 1, 0)) == 3'000);
    CHECK(costs.Duration(Component(Op::ATTN_W, 1, 0, 0)) == 7'000);
    CHECK(ReadCosts(WriteCosts(costs), "c.json") == costs);
    CHECK(Read(stages + "[" + plain + "]}") ==
          "c.json: /moe: lists the components of each stage, and \"stages\" must list what each "
          "takes");
    CHECK(Read(stages + R"([{"layers": "pd", "attn_f": 1, "mlp_f": 1, "mlp_b": 1,
        "attn_b": 1, "mlp_w": 1, "attn_w": 1}, )" +
               plain + "]}") ==
          "c.json: /moe/0: \"mlp_f\" must be 0 of layer 0, which has no such component");
    CHECK(Read(stages + R"([{"layers": "m"}, {}]})") ==
          "c.json: /moe/0: the key \"attn_f\" is missing; add it");
    const auto layer = [](const std::string& costs_of_it) {
      return Read(R"({"unit": "us", "layers": [{"name": "a", )" + costs_of_it + "}]}");
    };
    const std::string dense = R"("dense": {"attn_f": 1, "mlp_f": 1, "mlp_b": 1, "attn_b": 1,
        "mlp_w": 1, "attn_w": 1})";
    CHECK(layer(dense) == "accepted");
    CHECK(layer(dense + ", \"f\": 1") ==
          "c.json: /layers/0: has \"dense\" and \"f\", which follows from it; keep one of them");
    CHECK(layer(R"("dense": {"attn_f": 1, "dispatch_f": 1})")
              .starts_with("c.json: /layers/0/dense: unknown key \"dispatch_f\""));
  }

  TEST_CASE("a cost file may have comments and the costs of a plan may not") {
    const std::string text = "// why\n{\"unit\": \"us\", /* both */\n\"stage\": " +
                             std::string("{\"f\": 1, \"b\": 2, \"w\": 3}} // end");
    const CostModel costs = ReadCosts(text, "c.json");
    CHECK(costs.stages[0].w == 3000);
    CHECK(ReadCosts(WriteCosts(costs), "again") == costs);
    CHECK(Failure([] { ReadCosts("{\"unit\": \"us\" /* }", "c.json"); }) ==
          "c.json:1:19: not valid JSON: invalid comment; missing closing '*/'; expected '}'; the "
          "document ends here; was it truncated?");
    CHECK(Failure([] { ReadPlan("{\"format\": \"contraflow-plan\" /* x */}", "p.json"); }) ==
          "p.json:1:30: not valid JSON: invalid literal; expected '}'");
  }

  TEST_CASE("components alone: chunk costs are left to be derived") {
    CostModel costs = ReadCosts(ComponentsWith(R"("comm": {"time": 0})"), "c.json");
    CHECK(costs.stages.empty());
    CHECK_FALSE(costs.derived);
    CHECK(ReadCosts(WriteCosts(costs), "again") == costs);
    CHECK(Failure([&] { CheckCosts(costs, 2, 4); }) ==
          "the stage costs are not derived from \"moe\" yet (DeriveChunkCosts)");
    costs = ReadCosts(ComponentsWith(R"("overlap": "published")"), "c.json");
    CHECK(costs.derived == Overlap::kPublished);
    DeriveChunkCosts(&costs, *costs.derived);
    const std::string text = WriteCosts(costs);
    CHECK(Contains(text, "\"stage\": {\"f\": 8, \"b\": 8, \"w\": 4, \"bw\": 12, \"fb\": 12}"));
    CHECK(Contains(text, "\"overlap\": \"published\""));
    CHECK(ReadCosts(text, "again") == costs);
    // A plan keeps the stage costs it was made with.
    const JsonDocument document = ParseJson(ComponentsWith(R"("source": "me")"), "p.json");
    CHECK(Failure([&] { ReadCosts(document.Root()); }) ==
          "p.json: has \"moe\" and no stage costs; a plan keeps the stage costs it was made with: "
          "give \"stage\": {\"f\": .., \"b\": .., \"w\": ..} as well");
  }

  TEST_CASE("memory of a stage follows from the values of its layers") {
    const auto read = [](const std::string& memory) {
      return *ReadCosts(ComponentsWith("\"memory\": " + memory), "c.json").memory;
    };
    // Two layers. The forward makes and keeps all but expert_out; the part that W needs is the
    // stash.
    MemoryCost memory = read(
        R"({"values": {"input": 1, "attention": 2, "scores": 4, "rows": 8, "gate": 16, "hidden": 32,
                       "combined": 64, "expert_out": 128, "head": 256, "dgate": 1, "dinput": 512}})");
    CHECK(memory.activation_bytes == 2 * 127);
    CHECK(memory.w_stash_bytes == 2 * (2 + 8 + 32));
    CHECK(memory.values[static_cast<size_t>(Value::head)] == 256);
    CHECK(memory.values[static_cast<size_t>(Value::drows)] == 0);
    // Gradients that W needs are no part of what the forward keeps.
    memory = read(R"({"values": {"input": 5, "drows": 100}})");
    CHECK(memory.activation_bytes == 10);
    CHECK(memory.w_stash_bytes == 0);
    // Figures that are given stay.
    memory = read(R"({"activation_bytes": 9, "values": {"input": 5, "rows": 3},
                      "parameter_bytes": 7, "gradient_bytes": [1, 2]})");
    CHECK(memory.activation_bytes == 9);
    CHECK(memory.w_stash_bytes == 0);
    CHECK(memory.parameter_bytes == std::vector<int64_t>{7});
    CHECK(memory.gradient_bytes == std::vector<int64_t>{1, 2});
    CHECK(memory.optimizer_bytes.empty());
    CHECK(read(R"({"values": {"rows": 3}, "w_stash_bytes": 1})").w_stash_bytes == 1);
  }

  TEST_CASE("how costs were made, and the parameters of experts") {
    const std::string made = R"("parallel": {"tp": 2, "ep": 32}, "gpu": {"name": "h100",
        "memory_bytes": "80GB"}, "tokens": 4096)";
    CostModel costs = ReadCosts(With(made), "c.json");
    CHECK(costs.parallel == Parallel{.tp = 2, .cp = 1, .ep = 32, .etp = 1});
    CHECK(costs.parallel->devices() == 32);
    CHECK(costs.parallel->batches() == 16);
    CHECK(costs.gpu == GpuCost{"h100", 80'000'000'000});
    CHECK(costs.tokens == 4096);
    CHECK_FALSE(costs.ring);
    CHECK(ReadCosts(With(R"("sums": "ring")"), "c.json").ring);
    CHECK(Read(With(R"("sums": "tree")")) ==
          "c.json: /sums: must be \"ring\"; drop it where `reduce` and `step` are as given");
    CHECK(Contains(WriteCosts(costs),
                   "\"parallel\": {\"tp\": 2, \"cp\": 1, \"ep\": 32, \"etp\": 1}"));
    CHECK(ReadCosts(WriteCosts(costs), "again") == costs);
    CHECK(Read(With(R"("parallel": {"tp": 0})")) ==
          "c.json: /parallel/tp: must be a number of devices in 1..1024, is 0");
    CHECK(Read(With(R"("parallel": {"tp": 4, "ep": 6})")) ==
          "c.json: /parallel: tp x cp is 4 and ep x etp is 6; one must be a multiple of the other");
    CHECK(Read(With(R"("parallel": {"dp": 2})")).starts_with("c.json: /parallel: unknown key"));
    CHECK(Read(With(R"("gpu": {"memory_bytes": 0})")).starts_with("c.json: /gpu/memory_bytes: "));
    // Bytes that a layer does not divide are of no expert, where others divide theirs; gradients
    // and optimizer state divide as parameters do.
    const auto layers = [](const std::string& first) {
      return R"({"unit": "us", "layers": [{"name": "a", "f": 1, "b": 1, "w": 1,
          "parameter_bytes": )" +
             first + R"(, "gradient_bytes": 60}, {"name": "b", "f": 1, "b": 1, "w": 1,
          "parameter_bytes": 7, "optimizer_bytes": 42}]})";
    };
    costs = ReadCosts(layers(R"({"experts": 20, "rest": 10})"), "c.json");
    CHECK(costs.layers[0].parameter_bytes == 30);
    CHECK(costs.layers[0].rest_bytes == 10);
    CHECK(RestOf(costs.layers[0], kStateBytes[1]) == 20);
    CHECK(RestOf(costs.layers[1], kStateBytes[2]) == 42);
    CHECK(ReadCosts(WriteCosts(costs), "again") == costs);
    CHECK_FALSE(ReadCosts(layers("30"), "c.json").layers[1].rest_bytes);
    CHECK(Read(layers(R"({"expert": 1})")).starts_with("c.json: /layers/0/parameter_bytes: unk"));
    const auto rest = [](const std::string& bytes) {
      return With(R"("memory": {"activation_bytes": 1, "parameter_bytes": [5, 9], "rest": )" +
                  bytes + "}");
    };
    costs = ReadCosts(rest(R"({"parameter_bytes": [5, 1]})"), "c.json");
    CHECK(costs.memory->parameter_rest == std::vector<int64_t>{5, 1});
    CHECK(ReadCosts(WriteCosts(costs), "again") == costs);
    for (const char* wrong : {R"({"parameter_bytes": [6, 1]})", R"({"parameter_bytes": [5]})",
                              R"({"parameter_bytes": 1})"}) {
      CHECK(Read(rest(wrong)) ==
            "c.json: /memory/rest/parameter_bytes: must be part of \"parameter_bytes\", with an "
            "entry for each of its entries");
    }
  }

  TEST_CASE("the written document is the one of the contract") {
    CHECK(WriteCosts(ReadCosts(With(R"("source": "me", "comm": {"time": 0.1})"), "c")) ==
          "{\n"
          "\"unit\": \"us\",\n"
          "\"source\": \"me\",\n"
          "\"stage\": {\"f\": 1, \"b\": 1, \"w\": 1, \"bw\": 2, \"fb\": 3},\n"
          "\"comm\": {\"time\": 0.1}\n"
          "}\n");
  }

  TEST_CASE("every profile reads and survives writing") {
    const std::filesystem::path folder =
        std::filesystem::path(CF_TEST_DIR).parent_path() / "tools" / "profiles";
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().extension() == ".md") continue;
      const std::string path = entry.path().string();
      CAPTURE(path);
      const CostModel costs = ReadCostFile(path);
      CHECK_FALSE(costs.source.empty());
      CHECK(ReadCosts(WriteCosts(costs), "again") == costs);
      names.insert(entry.path().filename().string());
    }
    CHECK(names == std::set<std::string>{
                       "deepseek-v3-h800.json", "deepseek-v3-pp16.json", "gemma-2-9b-pp8.json",
                       "gpt3-175b-pp16.json", "kimi-k2-pp16.json", "llama-3-405b-pp16.json",
                       "mixtral-8x22b-pp8.json", "mixtral-8x7b-pp8.json", "moe-unit.json"});
    CostModel deepseek = ReadCostFile((folder / "deepseek-v3-h800.json").string());
    CHECK(deepseek.stages.empty());
    DeriveChunkCosts(&deepseek, Overlap::kAll);
    CHECK(deepseek.stages[0] == StageCost{.f = 98'696'000,
                                          .b = 112'980'000,
                                          .w = 29'876'000,
                                          .bw = 115'376'000,
                                          .fb = 127'633'000});
    // 4096 tokens of 7168 in bf16; 4 layers of 187.1 M attention, 1.8 M router, 5 experts of 44.0
    // M.
    const MemoryCost& memory = *deepseek.memory;
    CHECK(memory.values[static_cast<size_t>(Value::input)] == 4096 * 7168 * 2);
    CHECK(memory.values[static_cast<size_t>(Value::dispatched)] == 8 * 4096 * 7168 * 2);
    CHECK(memory.parameter_bytes ==
          std::vector<int64_t>{int64_t{2} * 4 *
                               (187'121'664 + 7168 * 256 + int64_t{5} * 3 * 7168 * 2048)});
  }
}

TEST_SUITE("property") {
  TEST_CASE("random costs survive writing digit for digit") {
    std::mt19937_64 random(5);
    const auto time = [&random] { return static_cast<Time>(random() >> (14 + random() % 50)) / 4; };
    for (int i = 0; i < CasesToDraw(2000); ++i) {
      CAPTURE(i);
      CostModel costs;
      costs.unit = static_cast<Unit>(random() % 5);
      if (i % 2 == 0) costs.parallel = {.tp = 2, .cp = 1, .ep = 4, .etp = 1};
      if (i % 3 == 0) costs.gpu = {.name = "h100", .memory_bytes = 80'000'000'000};
      costs.ring = i % 7 == 0;
      if (i % 5 == 0) costs.tokens = 4096;
      if (random() % 2 == 0) costs.source = "figures \"of\" a\\b \xC3\xA9";
      const auto stages = 1 + random() % 4;
      for (size_t s = 0; s < stages; ++s) {
        StageCost cost{.f = time(), .b = time(), .w = time()};
        cost.bw = std::max(cost.b, cost.w) + time() / 8;
        cost.fb = std::max({cost.f, cost.b, cost.w}) + time() / 8;
        if (random() % 2 == 0) cost.reduce = time();
        if (random() % 2 == 0) cost.step = time();
        costs.stages.push_back(cost);
      }
      costs.comm.latency = time();
      if (random() % 2 == 0) costs.comm.bytes = static_cast<int64_t>(random() % (1 << 30));
      if (random() % 2 == 0) {
        costs.comm.bandwidth = std::ldexp(1.0 + static_cast<double>(random() >> 12), -20);
        const double occupancy = static_cast<double>(costs.comm.bytes) / costs.comm.bandwidth;
        if (occupancy * static_cast<double>(TicksPerUnit(costs.unit)) >= 0.5) {
          costs.comm.occupancy = ToTicks(occupancy, costs.unit, "bandwidth");
        }
      }
      if (random() % 2 == 0) {
        costs.memory = MemoryCost{.activation_bytes = 1000,
                                  .w_stash_bytes = static_cast<int64_t>(random() % 1001),
                                  .parameter_bytes = {static_cast<int64_t>(random() % 3)},
                                  .optimizer_bytes = {7, 0, 9}};
        if (random() % 2 == 0) costs.memory->values.assign(kValueCount, 64);
        if (i % 2 == 0) costs.memory->optimizer_rest = {6, 0, 9};
      }
      if (random() % 2 == 0) {
        MoeCost moe;
        moe.layers_per_stage = 1 + static_cast<int>(random() % 3);
        for (auto list :
             {&MoeCost::attn_f, &MoeCost::dispatch_f, &MoeCost::mlp_f, &MoeCost::combine_f,
              &MoeCost::combine_b, &MoeCost::mlp_b, &MoeCost::dispatch_b, &MoeCost::attn_b,
              &MoeCost::mlp_w, &MoeCost::attn_w}) {
          const int entries = random() % 2 == 0 ? 1 : moe.layers_per_stage;
          for (int l = 0; l < entries; ++l) (moe.*list).push_back(time());
        }
        costs.moe = moe;
        if (random() % 2 == 0) costs.derived = static_cast<Overlap>(random() % 2);
        if (random() % 4 == 0) costs.stages.clear();
      }
      for (auto m = random() % 4; m > 0; --m) {
        costs.microbatch_scale.push_back(0.5 + static_cast<double>(random() >> 11) * 0x1p-53);
      }
      const std::string text = WriteCosts(costs);
      const CostModel again = ReadCosts(text, "c.json");
      CHECK(again == costs);
      CHECK(WriteCosts(again) == text);
    }
  }
}

}  // namespace
}  // namespace contraflow::cost_io_test
