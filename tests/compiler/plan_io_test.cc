#include "compiler/files/plan_io.h"

#include <doctest/doctest.h>

#include <filesystem>

#include "compiler/files/cost_io.h"
#include "compiler/files/file.h"
#include "tests/support/failure.h"
#include "tests/support/random_plan.h"
#include "tests/support/sanitized.h"
#include "tests/support/test_folder.h"

namespace contraflow::plan_io_test {
namespace {

const std::string kText = R"({
"format": "contraflow-plan", "version": 1, "schedule": "zb-1p", "level": "comm",
"ranks": 2, "stages": 2, "microbatches": 2,
"routes": [{"ranks": [0,1], "microbatches": [0]},
           {"ranks": [1,0], "microbatches": [1]}],
"programs": [
[
"F s0 m0",
"SEND_F s0 m0 to=1",
"STEP s0"
],
[
"RECV_F s1 m0 from=0",
"FB s1 m0 + s1 m1",
"W s1 m1 slot=3 after=0,1"
]
]
}
)";

const std::string kSlots = R"({
"format": "contraflow-plan", "version": 1, "schedule": "1f1b", "level": "buffer",
"ranks": 2, "stages": 2, "microbatches": 2, "layers": 2,
"routes": [{"ranks": [0,1], "microbatches": [0,1]}],
"programs": [
[
"ATTN_F s0 l0 m0 lane=compute",
"SEND_F s0 m0 to=1 slot=1 lane=send after=0"
],
[
"RECV_F s1 m0 from=0 slot=0 lane=recv"
]
],
"slots": [
[
"attention s0 l0 m0 arena=stash offset=0 bytes=100 first=0 last=0",
"output s0 l1 m0 arena=exchange offset=128 bytes=4096 first=0 last=1"
],
[
"input s1 l0 m0 arena=activation offset=0 bytes=4096 first=0 last=0"
]
]
}
)";

/// The document with `from` replaced by `to`.
std::string With(const std::string& from, const std::string& to, std::string text = kText) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

std::string Read(const std::string& text) {
  return Failure([&] { ReadPlan(text, "p.json"); });
}

TEST_SUITE("unit") {
  TEST_CASE("a plan reads and writes to the same bytes") {
    const Plan plan = ReadPlan(kText, "p.json");
    CHECK(plan.schedule == "zb-1p");
    CHECK(plan.level == Level::kComm);
    CHECK(plan.routes[1].ranks == std::vector<int>{1, 0});
    REQUIRE(plan.programs.size() == 2);
    CHECK(plan.programs[0][1] == Message(Op::SEND_F, 0, 0, 1));
    CHECK(plan.programs[1][2].slot == 3);
    CHECK(WritePlan(plan) == kText);
    CHECK(ReadPlan(WritePlanBinary(plan), "p.cbor") == plan);
  }

  TEST_CASE("replicas and costs stand where the contract has them") {
    Plan plan = ReadPlan(kText, "p.json");
    plan.data_parallel = 4;
    plan.expert_parallel = 8;
    plan.layers = 3;
    plan.costs = UniformCosts(1'000'000, 1'000'000, 1'000'000);
    plan.programs = {{}, {}};
    const std::string text = WritePlan(plan);
    CHECK(text == R"({
"format": "contraflow-plan", "version": 1, "schedule": "zb-1p", "level": "comm",
"ranks": 2, "stages": 2, "microbatches": 2, "data_parallel": 4, "expert_parallel": 8, "layers": 3,
"routes": [{"ranks": [0,1], "microbatches": [0]},
           {"ranks": [1,0], "microbatches": [1]}],
"costs": {
"unit": "unit",
"stage": {"f": 1, "b": 1, "w": 1, "bw": 2, "fb": 3},
"comm": {"time": 0}
},
"programs": [
[
],
[
]
]
}
)");
    CHECK(ReadPlan(text, "p.json") == plan);
  }

  TEST_CASE("slots stand after the programs one a line") {
    const Plan plan = ReadPlan(kSlots, "p.json");
    CHECK(plan.layers == 2);
    REQUIRE(plan.slots.size() == 2);
    REQUIRE(plan.slots[0].size() == 2);
    CHECK(plan.slots[0][1] == Slot{.value = Value::output,
                                   .arena = Arena::kExchange,
                                   .layer = 1,
                                   .first = 0,
                                   .last = 1,
                                   .offset = 128,
                                   .bytes = 4096});
    CHECK(WritePlan(plan) == kSlots);
    CHECK(ReadPlan(WritePlanBinary(plan), "p.cbor") == plan);
    const RankPlan part = ReadRankPlan(WriteRankPlan(plan, 1), "r.json");
    CHECK(part.plan.slots == std::vector<std::vector<Slot>>{{}, plan.slots[1]});
    CHECK(WriteRankPlan(part.plan, 1) == WriteRankPlan(plan, 1));
  }

  TEST_CASE("every wrong slot has one clear message") {
    const auto with = [](const std::string& from, const std::string& to) {
      return Read(With(from, to, kSlots));
    };
    const std::string form =
        "; a slot is written like \"gate s3 l0 m7 arena=activation offset=128 bytes=4096 first=3 "
        "last=17\"";
    const std::string slot = "p.json: /slots/0/0: slot \"attention s0 l0 m0 arena=stash offset=0 ";
    const struct {
      std::string got, message;
    } rows[] = {
        {with("\"slots\"", "\"slot\""),
         "p.json: unknown key \"slot\" (did you mean \"slots\"?); known are: format, version, "
         "schedule, level, ranks, rank, stages, microbatches, data_parallel, expert_parallel, "
         "layers, stage_layers, semantics, routes, costs, provenance, files, names, programs, "
         "slots, marks"},
        {with("\"buffer\"", "\"component\""),
         "p.json: /slots: only a plan of level buffer has slots, this one is of level component"},
        {Read(With("\"comm\"", "\"buffer\"")), "p.json: the key \"slots\" is missing; add it"},
        {with("\"slots\": [", "\"slots\": [[],"),
         "p.json: /slots: must have 2 lists of slots, one for each rank, has 3"},
        {with("\"slots\": [", "\"slots\": [7,"), "p.json: /slots/0: must be an array of strings"},
        {with("attention s0", "attentive s0"),
         "p.json: /slots/0/0: unknown value \"attentive\" (did you mean \"attention\"?)" + form},
        {with("bytes=100 ", "\u00e9 "),
         "p.json: /slots/0/0: slot \"attention s0 l0 m0 arena=stash offset=0 \xC3\xA9 first=0 "
         "last=0\": has characters other than plain ASCII"},
        {with("attention s0", "attention s2"),
         "p.json: /slots/0/0: slot \"attention s2 l0 m0 arena=stash offset=0 bytes=100 first=0 "
         "last=0\": the stage must be in 0..1, is 2"},
        {with("attention s0 l0", "attention s0 l2"),
         "p.json: /slots/0/0: slot \"attention s0 l2 m0 arena=stash offset=0 bytes=100 first=0 "
         "last=0\": the layer must be in 0..1, is 2"},
        {with("attention s0 l0 m0", "attention s0 l0 m2"),
         "p.json: /slots/0/0: slot \"attention s0 l0 m2 arena=stash offset=0 bytes=100 first=0 "
         "last=0\": the micro-batch must be in 0..1, is 2"},
        {with("bytes=100 first=0", "bytes=100 first=2"),
         slot + "bytes=100 first=2 last=0\": the first use must be in 0..1, is 2"},
        {with("bytes=100 first=0 last=0", "bytes=100 first=0 last=2"),
         slot + "bytes=100 first=0 last=2\": the last use must be in 0..1, is 2"},
        {with("bytes=100 ", "bytes=1152921504606846977 "),
         slot + "bytes=1152921504606846977 first=0 last=0\": the bytes must be in "
                "0..1152921504606846976, is 1152921504606846977"},
        {with("slot=1", "slot=2"),
         "p.json: /programs/0/1: instruction \"SEND_F s0 m0 to=1 slot=2 lane=send after=0\": the "
         "slot must be in 0..1, is 2"},
        {with(", \"layers\": 2", ""),
         "p.json: /slots/0/0: slot \"attention s0 l0 m0 arena=stash offset=0 bytes=100 first=0 "
         "last=0\": the layer must not be given, there are none"},
        {with("\"layers\": 2", "\"layers\": 65"),
         "p.json: /layers: must be a number of layers of a stage in 1..64, is 65"},
        {with("\"layers\": 2", "\"layers\": 2, \"expert_parallel\": 0"),
         "p.json: /expert_parallel: must be a number of devices in 1..1024, is 0"},
    };
    for (const auto& row : rows) CHECK(row.got == row.message);
    std::string more;
    for (int i = 0; i < 4; ++i) {
      more += "\"rows s1 l0 m0 arena=stash offset=0 bytes=1 first=0 last=0\",\n";
    }
    CHECK(with("\"input", more + "\"input") ==
          "p.json: /slots/1: has 5 slots, more than 4, all that 1 instructions can make");
  }

  TEST_CASE("layers are those of the costs") {
    const std::string costs =
        R"("costs": {"unit": "s", "stage": {"f": 1, "b": 1, "w": 1},
           "moe": {"layers_per_stage": 3, "attn_f": 1, "dispatch_f": 1, "mlp_f": 1, "combine_f": 1,
           "combine_b": 1, "mlp_b": 1, "dispatch_b": 1, "attn_b": 1, "mlp_w": 1, "attn_w": 1}},)";
    CHECK(Read(With("\"programs\"", costs + "\"programs\"", kSlots)) ==
          "p.json: /layers: is 2, but the costs are for 3 layers of a stage");
  }

  TEST_CASE("keys may come in any order") {
    std::string text = kText;
    const size_t programs = text.find("\"programs\"");
    const std::string moved = text.substr(programs, text.rfind(']') + 1 - programs);
    text.erase(programs - 2, moved.size() + 2);
    text.insert(2, moved + ",\n");
    CHECK(ReadPlan(text, "p.json") == ReadPlan(kText, "p.json"));
  }

  TEST_CASE("every wrong plan has one clear message") {
    const std::string remedy =
        "a plan file begins with \"format\": \"contraflow-plan\", \"version\": 1";
    const struct {
      std::string text, message;
    } rows[] = {
        {"[]", "p.json: is not a plan: must be an object; " + remedy},
        {"{}", "p.json: is not a plan: the key \"format\" is missing; " + remedy},
        {WriteCosts(UniformCosts(1, 1, 1)),
         "p.json: is not a plan: the key \"format\" is missing; " + remedy +
             " (this looks like a cost file)"},
        {With("contraflow-plan", "msccl-plan"),
         "p.json: /format: must be \"contraflow-plan\", is \"msccl-plan\""},
        {With("\"contraflow-plan\"", "7"),
         "p.json: /format: must be the name \"contraflow-plan\" in quotes, is 7"},
        {With("\"version\": 1, ", ""), "p.json: the key \"version\" is missing; add it"},
        {With("\"version\": 1", "\"version\": 1.0"),
         "p.json: /version: must be a version in 1..2147483647, is 1.0"},
        {With("\"version\": 1", "\"version\": 0"),
         "p.json: /version: must be a version in 1..2147483647, is 0"},
        {With("\"version\": 1", "\"version\": 2"),
         "p.json: /version: is 2, from a later contraflow; this one reads version 1: use a newer "
         "contraflow, or compile the plan again"},
        // Whatever a later version holds, its version is what the message is about.
        {With("\"version\": 1, ", "\"version\": 3, \"\": {}, ")
             .replace(kText.size() - 20, 3, "XYZ"),
         "p.json: /version: is 3, from a later contraflow; this one reads version 1: use a newer "
         "contraflow, or compile the plan again"},
        {With("\"stages\"", "\"stage\""),
         "p.json: unknown key \"stage\" (did you mean \"stages\"?); known are: format, version, "
         "schedule, level, ranks, rank, stages, microbatches, data_parallel, expert_parallel, "
         "layers, stage_layers, semantics, routes, costs, provenance, files, names, programs, "
         "slots, marks"},
        {With("\"stages\": 2, ", ""), "p.json: the key \"stages\" is missing; add it"},
        {With("zb-1p", "a b"),
         "p.json: /schedule: must be a name of letters, digits, '-', '_' and '.', is \"a b\""},
        {With("zb-1p", ""),
         "p.json: /schedule: must be a name of letters, digits, '-', '_' and '.', is \"\""},
        {With("zb-1p", std::string(65, 'x')),
         "p.json: /schedule: must have at most 64 bytes, has 65"},
        {With("\"comm\"", "\"com\""),
         "p.json: /level: unknown level \"com\" (did you mean \"comm\"?); levels are compute, "
         "comm, component, buffer"},
        {With("\"ranks\": 2", "\"ranks\": 0"),
         "p.json: /ranks: must be a number of ranks in 1..16384, is 0"},
        {With("\"ranks\": 2", "\"ranks\": 1000000000000000000"),
         "p.json: /ranks: must be a number of ranks in 1..16384, is 1000000000000000000"},
        {With("\"ranks\": 2", "\"ranks\": \"2\""),
         "p.json: /ranks: must be a number of ranks in 1..16384, is \"2\""},
        {With("\"ranks\": 2", "\"ranks\": 3"),
         "p.json: /programs: must have 3 programs, one for each rank, has 2"},
        {With("\"ranks\": 2", "\"ranks\": 2, \"ranks\": 2"),
         "p.json: /ranks: is given twice; keep one"},
        {With("\"stages\": 2", "\"stages\": -2"),
         "p.json: /stages: must be a number of stages in 1..32768, is -2"},
        {With("\"microbatches\": 2", "\"microbatches\": 1000000000"),
         "p.json: /microbatches: must be a number of micro-batches in 1..1048576, is 1000000000"},
        {With("\"stages\": 2, \"microbatches\": 2", "\"stages\": 32768, \"microbatches\": 1048576"),
         "p.json: \"stages\" * \"microbatches\" is 34359738368, must be at most 134217728"},
        {With("\"microbatches\": 2", "\"microbatches\": 2, \"data_parallel\": 0"),
         "p.json: /data_parallel: must be a number of replicas in 1..16384, is 0"},
        {With("\"ranks\": [0,1]", "\"ranks\": [0,9]"),
         "p.json: /routes/0/ranks/1: must be a rank in 0..1, is 9"},
        {With("\"ranks\": [0,1]", "\"ranks\": [0,1.5]"),
         "p.json: /routes/0/ranks/1: must be a rank in 0..1, is 1.5"},
        {With("\"ranks\": [0,1]", "\"ranks\": [0]"),
         "p.json: /routes/0/ranks: must have 2 entries, one for each stage, has 1"},
        {With("\"ranks\": [0,1]", "\"ranks\": 0"),
         "p.json: /routes/0/ranks: must be an array with the rank of every stage, is 0"},
        {With("\"ranks\": [0,1], ", ""), "p.json: /routes/0: the key \"ranks\" is missing; add it"},
        {With("\"ranks\": [0,1]", "\"rank\": 1, \"ranks\": [0,1]"),
         "p.json: /routes/0: unknown key \"rank\" (did you mean \"ranks\"?); known are: ranks, "
         "microbatches"},
        {With("\"microbatches\": [1]", "\"microbatches\": [2]"),
         "p.json: /routes/1/microbatches/0: must be a micro-batch in 0..1, is 2"},
        {With("\"microbatches\": [1]", "\"microbatches\": [0]"),
         "p.json: /routes/1/microbatches/0: micro-batch 0 is in route 0 already; a micro-batch "
         "takes one route"},
        {With("\"microbatches\": [1]", "\"microbatches\": [1,0]"),
         "p.json: /routes/1/microbatches/1: must be ascending, 0 stands after 1"},
        {With("\"microbatches\": [1]", "\"microbatches\": [1,1]"),
         "p.json: /routes/1/microbatches/1: must be ascending, 1 stands after 1"},
        {With("\"microbatches\": 2,\n\"routes\": [", "\"microbatches\": 2,\n\"routes\": [{}, "),
         "p.json: /routes: must have 1..2 routes (at most one for each micro-batch), has 3"},
        {With("\"microbatches\": 2,", "\"microbatches\": 2, \"costs\": {},"),
         "p.json: /costs: the key \"unit\" is missing; add it"},
        {With("\"microbatches\": 2,",
              "\"microbatches\": 2, \"costs\": {\"unit\": \"s\", \"stages\": [{\"f\": 1, \"b\": 1, "
              "\"w\": 1}, {\"f\": 1, \"b\": 1, \"w\": 1}, {\"f\": -1, \"b\": 1, \"w\": 1}]},"),
         "p.json: /costs/stages/2/f: must be a cost (a number >= 0), is -1"},
        {With("\"microbatches\": 2,",
              "\"microbatches\": 2, \"costs\": {\"unit\": \"s\", \"stage\": {\"f\": 1, \"b\": 1, "
              "\"w\": 1}, \"microbatch_scale\": [1]},"),
         "p.json: /costs: /microbatch_scale: has 1 entries, this plan has 2 micro-batches; give "
         "one factor for each"},
        {With("\"F s0 m0\",\n", "\"F s0 m0\", 3,\n"), "p.json: /programs/0/1: must be a string"},
        {With("\"F s0 m0\"", "\"G s0 m0\""),
         "p.json: /programs/0/0: instruction \"G s0 m0\": unknown operation \"G\""},
        {With("\"F s0 m0\"", "\"F s2 m0\""),
         "p.json: /programs/0/0: instruction \"F s2 m0\": the stage must be in 0..1, is 2"},
        {With("\"F s0 m0\"", "\"F s0 m2\""),
         "p.json: /programs/0/0: instruction \"F s0 m2\": the micro-batch must be in 0..1, is 2"},
        {With("+ s1 m1", "+ s2 m1"),
         "p.json: /programs/1/1: instruction \"FB s1 m0 + s2 m1\": the backward stage must be in "
         "0..1, is 2"},
        {With("+ s1 m1", "+ s1 m2"),
         "p.json: /programs/1/1: instruction \"FB s1 m0 + s1 m2\": the backward micro-batch must "
         "be in 0..1, is 2"},
        {With("to=1", "to=2"),
         "p.json: /programs/0/1: instruction \"SEND_F s0 m0 to=2\": the peer must be in 0..1, is "
         "2"},
        {With("slot=3", "slot=36"),
         "p.json: /programs/1/2: instruction \"W s1 m1 slot=36 after=0,1\": the slot must be in "
         "0..35, is 36"},
        {With("slot=3", "group=72"),
         "p.json: /programs/1/2: instruction \"W s1 m1 group=72 after=0,1\": the group must be in "
         "0..71, is 72"},
        {With("after=0,1", "after=0,2"),
         "p.json: /programs/1/2: instruction \"W s1 m1 slot=3 after=0,2\": \"after\" must name "
         "earlier instructions of the same program, 2 is not before 2"},
        {With("\"W s1 m1", "\"W \xC3\xA9 m1"),
         "p.json: /programs/1/2: instruction \"W \xC3\xA9 m1 slot=3 after=0,1\": has characters "
         "other than plain ASCII"},
        {With("\"W s1 m1", "\"W s1\\u001b[31m m1"),
         "p.json: /programs/1/2: instruction \"W s1\\u001b[31m m1 slot=3 after=0,1\": has "
         "characters other than plain ASCII"},
        {With("\"STEP s0\"\n", "\"STEP s0\",\n"),
         "p.json:11:1: not valid JSON: unexpected ']'; expected '[', '{', or a literal"},
    };
    for (const auto& row : rows) {
      CAPTURE(row.text);
      CHECK(Read(row.text) == row.message);
    }
  }

  TEST_CASE("a program longer than its plan can be is refused") {
    std::string program;
    for (int i = 0; i < 37; ++i) program += "\"F s0 m0\", ";
    CHECK(Read(With("\"F s0 m0\",", program)) ==
          "p.json: /programs/0: has 39 instructions, more than 36, all there can be for 2 stages "
          "and 2 micro-batches");
  }

  TEST_CASE("layers go as far as the costs say") {
    const std::string component = With("\"comm\"", "\"component\"");
    const size_t at = component.find("F s0 m0");
    const auto with_layer = [&](const std::string& layer) {
      return std::string(component).replace(at, 7, "ATTN_F s0 l" + layer + " m0");
    };
    CHECK(Read(with_layer("63")) == "accepted");
    CHECK(Read(with_layer("64")) ==
          "p.json: /programs/0/0: instruction \"ATTN_F s0 l64 m0\": the layer must be in 0..63, is "
          "64");
    std::string costs = with_layer("2");
    costs.insert(costs.find("\"programs\""),
                 R"("costs": {"unit": "s", "stage": {"f": 1, "b": 1, "w": 1},
                    "moe": {"layers_per_stage": 2, "attn_f": 1, "dispatch_f": 1, "mlp_f": 1,
                    "combine_f": 1, "combine_b": 1, "mlp_b": 1, "dispatch_b": 1, "attn_b": 1,
                    "mlp_w": 1, "attn_w": 1}}, )");
    CHECK(
        Read(costs) ==
        "p.json: /programs/0/0: instruction \"ATTN_F s0 l2 m0\": the layer must be in 0..1, is 2");
  }

  TEST_CASE("a rank's file holds its program and is not taken for a plan") {
    const Plan plan = ReadPlan(kText, "p.json");
    const std::string text = WriteRankPlan(plan, 1);
    const RankPlan part = ReadRankPlan(text, "r.json");
    CHECK(part.rank == 1);
    CHECK(part.plan.programs == std::vector<Program>{{}, plan.programs[1]});
    CHECK(WriteRankPlan(part.plan, 1) == text);
    CHECK(Read(text) ==
          "p.json: /rank: this file holds the program of rank 1 only; give the file with the whole "
          "plan");
    CHECK(Failure([] { ReadRankPlan(kText, "r.json"); }) ==
          "r.json: this file holds a whole plan; give the file of one rank, which has the key "
          "\"rank\"");
    CHECK(Failure([] {
            ReadRankPlan(With("\"ranks\": 2", "\"ranks\": 2, \"rank\": 0"), "r.json");
          }) == "r.json: /programs: must have 1 program, that of the rank, has 2");
    CHECK(Failure([] {
            ReadRankPlan(With("\"ranks\": 2", "\"ranks\": 2, \"rank\": 2"), "r.json");
          }) == "r.json: /rank: must be a rank in 0..1, is 2");
  }

  TEST_CASE("files: the name decides on the binary form the content on how it is read") {
    const TestFolder folder;
    const Plan plan = ReadPlan(kText, "p.json");
    const std::string json = folder.File("p.json"), cbor = folder.File("p.cbor");
    WritePlanFile(json, plan);
    WritePlanFile(cbor, plan);
    CHECK(ReadFile(json, 1 << 20) == kText);
    CHECK(ReadFile(cbor, 1 << 20) == WritePlanBinary(plan));
    std::filesystem::rename(cbor, folder.File("renamed.json"));
    CHECK(ReadPlanFile(json) == plan);
    CHECK(ReadPlanFile(folder.File("renamed.json")) == plan);
  }
}

TEST_SUITE("property") {
  TEST_CASE("random plans survive text and CBOR") {
    std::mt19937_64 random(1);
    for (int i = 0; i < CasesToDraw(1000); ++i) {
      CAPTURE(i);
      const Plan plan = RandomPlan(&random);
      const std::string text = WritePlan(plan);
      CAPTURE(text);
      const Plan again = ReadPlan(text, "p.json");
      CHECK(again == plan);
      CHECK(WritePlan(again) == text);
      CHECK(ReadPlan(WritePlanBinary(plan), "p.cbor") == plan);
      const int rank = static_cast<int>(random() % static_cast<uint64_t>(plan.ranks));
      const RankPlan part = ReadRankPlan(WriteRankPlan(plan, rank), "r.json");
      CHECK(part.rank == rank);
      CHECK(part.plan.program(rank) == plan.program(rank));
    }
  }
}

}  // namespace
}  // namespace contraflow::plan_io_test
