#include <doctest/doctest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "compiler/lower/lower.h"
#include "compiler/plan/error.h"
#include "compiler/plan/layer_cost.h"
#include "compiler/simulate/simulate.h"
#include "compiler/verify/verify.h"
#include "schedules/registry.h"
#include "tests/support/failure.h"
#include "tests/support/support.h"
#include "tests/support/torch_rows.h"
#include "tools/interop/interop.h"

namespace contraflow::torch_csv_test {
namespace {

std::string WhyNot(const std::string& csv) {
  return Failure([&] { ReadTorchCsv(csv, "s.csv"); });
}

TEST_SUITE("unit") {
  TEST_CASE("torch csv: PyTorch's schedules in both of its formats are ours") {
    for (const auto& [schedule, name] :
         std::vector<std::pair<std::string, std::string>>{{"dualpipe-v", "DualPipeV"},
                                                          {"interleaved-1f1b", "Interleaved1F1B"},
                                                          {"zb-1p", "InterleavedZeroBubble"},
                                                          {"zb-v", "ZBVZeroBubble"}}) {
      CAPTURE(schedule);
      const CostModel costs = UniformCosts(3, 2, 1, 1);
      // At unit cost, as zb-v follows costs.
      Plan expected = GeneratePlan(MakeSpec(schedule, 4, 8, UniformCosts(1, 1, 1)));
      expected.schedule = "imported";
      const Plan plan = ReadTorchCsv(TorchReference(name), "s.csv");
      CHECK(plan.programs == expected.programs);
      CHECK(plan.routes == expected.routes);
      CHECK(FindingsText(plan) == "");
      const Plan as_is = ReadTorchCsv(TorchReference(name + "_comms"), "s.csv");
      CHECK(as_is.level == Level::kComm);
      CHECK(FindingsText(as_is) == "");
      CHECK(WithoutMessages(as_is) == WithoutMessages(plan));
      const Plan lowered = Lower(plan, costs, {.target = Level::kComm});
      CHECK(WriteTorchCsv(lowered) == WriteTorchCsv(plan));
      CHECK(FindingsText(lowered) == "");
      CHECK(Simulate(lowered, costs).makespan == Simulate(expected, costs).makespan);
    }
  }

  TEST_CASE("torch csv: backwards in descending order are an order as good as any") {
    const Plan plan = ReadTorchCsv(TorchReference("LoopedBFS"), "s.csv");
    CHECK(plan.stages == 8);
    CHECK(FindingsText(plan) == "");
    CHECK(WithoutMessages(ReadTorchCsv(TorchReference("LoopedBFS_comms"), "s.csv")) ==
          WithoutMessages(plan));
    CHECK(FindingsText(Lower(plan, UniformCosts(3, 2, 1, 1), {.target = Level::kComm})) == "");
  }

  TEST_CASE("torch csv: every schedule with one copy of each stage is read as written") {
    int schedules = 0;
    for (const Schedule* schedule : Schedules()) {
      for (const int ranks : {1, 2, 3, 4}) {
        const Spec spec = MakeSpec(schedule->name, ranks, 2 * ranks + 2, UniformCosts(3, 4, 2));
        if (!schedule->reject(spec).empty()) continue;
        Plan plan = GeneratePlan(spec);
        if (plan.routes.size() > 1) continue;
        plan.schedule = "imported";
        plan.costs.reset();
        plan.provenance.reset();
        CHECK(ReadTorchCsv(WriteTorchCsv(plan), "s.csv") == plan);
        ++schedules;
      }
    }
    CHECK(schedules > 25);
  }

  TEST_CASE("torch csv: ranks may have unequally many stages and cells") {
    const Plan plan = ReadTorchCsv("0F0, 1F0 ,,2F0,2B0,1B0,0B0\n\"3F0\",3B0,,,", "s.csv");
    CHECK(plan.routes[0].ranks == std::vector<int>{0, 0, 0, 1});
    CHECK(WhyNot("0F0,1F0,2F0\n3F0,3B0\n") ==
          "s.csv: row 1 has no backward of stage 0 for micro-batch 0; every stage runs all 1 "
          "micro-batches");
  }

  TEST_CASE("torch csv: what is wrong and where") {
    const auto one = [](const std::string& cell) {
      const std::string why = WhyNot("0F0,0B0\n1F0," + cell + ",1B0\n");
      const std::string head = "s.csv: row 2, column 2: ";
      return why.starts_with(head) ? why.substr(head.size()) : why;
    };
    const std::string none =
        ": is not an action; an action is a stage, one of F I W B SEND_F RECV_F SEND_B RECV_B "
        "WAIT_SEND_F WAIT_SEND_B and a micro-batch, as in 2F0, or a stage and one of UNSHARD "
        "RESHARD REDUCE_GRAD WAIT_REDUCE_GRAD";
    for (const char* cell :
         {"1f0", "F0", "-1F0", "1X0", "0OVERLAP_F_B", "x", "1SEND", "1 F0", "+1F0"}) {
      CHECK(one(cell) == "\"" + std::string(cell) + "\"" + none);
    }
    CHECK(one("\x1b[2J\\") == R"("\x1b[2J\x5c")" + none);
    CHECK(one(std::string(100, 'z')) == "\"" + std::string(64, 'z') + "...\"" + none);
    CHECK(one("1F0xyz") == R"("1F0xyz": continues after 1F0 with "xyz")");
    CHECK(one("1WAIT_SEND_F") ==
          R"("1WAIT_SEND_F": WAIT_SEND_F needs a micro-batch after it, in 0..1048575)");
    CHECK(one("1UNSHARD3") == R"("1UNSHARD3": continues after 1UNSHARD with "3")");
    CHECK(one("1B") == R"("1B": B needs a micro-batch after it, in 0..1048575)");
    CHECK(one("1F1048576") == R"("1F1048576": F needs a micro-batch after it, in 0..1048575)");
    CHECK(one("32768F0") == R"("32768F0": the stage must be in 0..32767)");
    CHECK(one("99999999999999F0") == R"("99999999999999F0": the stage must be in 0..32767)");
    for (const char* cell : {"(1F0;1B0)", "(1F0;1B0)F", "(1F0)OVERLAP_F_B", "()OVERLAP_F_B",
                             "(1F0;1B0", "(1F0;1B0;1B0)OVERLAP_F_B"}) {
      CHECK(one(cell) == "\"" + std::string(cell) + "\": a pair is written (0F7;7B3)OVERLAP_F_B");
    }
    CHECK(one("(1F0;1I0)OVERLAP_F_B") ==
          R"("(1F0;1I0)OVERLAP_F_B": a pair overlaps one F with one B, the full backward)");
    CHECK(one("(1F0;x)OVERLAP_F_B") == R"("(1F0;x)OVERLAP_F_B")" + none);
    CHECK(one("0F1") == "0F1: stage 0 is on row 1 already; a stage lives on one rank");
    CHECK(
        one("1F0") ==
        "1F0: the forward of stage 1 for micro-batch 0 was already done at row 2, column 1 (1F0)");
    CHECK(WhyNot("0F0,0B0\n1B0,1F0\n") ==
          "s.csv: row 2, column 1: 1B0: must come after 1F0, which is at row 2, column 2");
    CHECK(WhyNot("0F0,0W0,0I0") ==
          "s.csv: row 1, column 2: 0W0: must come after 0I0, which is at row 1, column 3");
    CHECK(WhyNot("(0F0;0B0)OVERLAP_F_B") ==
          "s.csv: row 1, column 1: 0B0: must come after 0F0, which is at row 1, column 1");
    CHECK(WhyNot("0F0,0I0,0W0,0B0") ==
          "s.csv: row 1, column 4: 0B0: the backward of stage 0 for micro-batch 0 was already done "
          "at row 1, column 2 (0I0)");
    CHECK(WhyNot("0F0,0I0") ==
          "s.csv: row 1 has no weight gradient of stage 0 for micro-batch 0; every stage runs all "
          "1 micro-batches");
    CHECK(WhyNot("0F0,0F2,0B0,0B2") ==
          "s.csv: row 1 has no forward of stage 0 for micro-batch 1; every stage runs all 3 "
          "micro-batches");
    CHECK(WhyNot("0F0,0B0\n2F0,2B0\n") ==
          "s.csv: stage 1 is on no row, but there is a stage 2; stages are numbered from 0 without "
          "gaps");
    CHECK(WhyNot("0F0,0B0\n,,\n1F0,1B0\n") ==
          "s.csv: row 2 has no action; every row is a rank, which has at least one stage");
    CHECK(WhyNot("") == "s.csv: is empty; it must have one row per rank");
    CHECK(WhyNot("0REDUCE_GRAD\n") ==
          "s.csv: row 1 has no action; every row is a rank, which has at least one stage");
    std::string rows;
    for (int i = 0; i <= kMaxRanks; ++i) rows += std::to_string(i) + "F0\n";
    CHECK(WhyNot(rows) == "s.csv: has more than 16384 rows, one per rank; no plan has more ranks");
  }

  TEST_CASE("torch csv: letters before December 2024, where B is the input gradient") {
    for (const char* name : {"InterleavedZeroBubble", "ZBVZeroBubble_comms", "Interleaved1F1B",
                             "InterleavedZeroBubble_comms"}) {
      CAPTURE(name);
      std::string csv = TorchReference(name), old;
      const bool split = csv.find('W') != std::string::npos;
      for (size_t i = 0; i < csv.size(); ++i) {
        const bool action = i > 0 && csv[i - 1] >= '0' && csv[i - 1] <= '9';
        old += !action         ? std::string(1, csv[i])
               : csv[i] == 'B' ? "BW"
               : csv[i] == 'I' ? "B"
                               : std::string(1, csv[i]);
      }
      TorchCsvNotes notes;
      CHECK(ReadTorchCsv(old, "old.csv", &notes).programs == ReadTorchCsv(csv, "new.csv").programs);
      REQUIRE(!notes.notes.empty());
      CHECK(notes.notes[0].starts_with("old.csv: B is read as the input gradient"));
      CHECK((split || Contains(old, "BW")));
    }
    CHECK(WhyNot("0F0,0B0,0F1,0B1,0W0")
              .ends_with(
                  "weight gradient of stage 0 for micro-batch 1; every stage runs all 2 "
                  "micro-batches; B is read as the input gradient and BW as the full backward, as "
                  "PyTorch wrote them before December 2024, since it has W or BW and no I"));
    CHECK(Contains(WhyNot("0F0,0BW0,0F1,0I1,0W1"), "\"0I1\": is not an action"));
  }

  TEST_CASE("torch csv: rows as Python prints lists") {
    const Plan plan = ReadTorchCsv("0F0,,0B0\n,1F0,1B0\n", "rows.csv");
    for (const char* text :
         {"[0F0, None, 0B0]\n[None, 1F0, 1B0]\n", "{0: [0F0, None, 0B0], 1: [None, 1F0, 1B0]}",
          "[[0F0, , 0B0],\r\n [None,\n1F0, 1B0]]", "0F0,None,0B0\r\n,1F0,1B0\r\n\r\n  \n",
          "Rank 0: [0F0, None, 0B0]\nRank 1: [None, 1F0, 1B0]"}) {
      CAPTURE(text);
      CHECK(LooksLikeTorchCsv(text) == (text[0] != 'R'));
      CHECK(ReadTorchCsv(text, "lists.csv") == plan);
    }
    CHECK(WhyNot("{1: [1F0, 1B0], 0: [0F0, 0B0]}") ==
          "s.csv: list 1 is of rank 1; lists must be in the order of their ranks");
    CHECK(WhyNot("[0F0,0B0]\n1F0,1B0") ==
          "s.csv: has \"F0,1B0\" outside of its lists, one per rank");
    CHECK(WhyNot("0F0,0B0\n[1F0,1B0]").starts_with("s.csv: row 2, column 1: \"[1F0\": is not"));
    CHECK(WhyNot("[0F0,0B0]\n[1F0,1B0") == "s.csv: ends within a list");
    CHECK(WhyNot("[[0F0,0B0],[]]") ==
          "s.csv: row 2 has no action; every row is a rank, which has at least one stage");
    CHECK(WhyNot("[]") ==
          "s.csv: row 1 has no action; every row is a rank, which has at least one stage");
    for (const char* json : {"{\"format\": 1}", "[{\"ph\": 1}]", "{", "[", "", "{\n \"0\": 1}"}) {
      CHECK(!LooksLikeTorchCsv(json));
    }
  }

  TEST_CASE("torch csv: forwards alone get backwards that take no time") {
    for (const char* name :
         {"Interleaved1F1B", "Interleaved1F1B_comms", "ZBVZeroBubble_comms", "LoopedBFS_comms"}) {
      CAPTURE(name);
      TorchRows rows = SplitTorchCsv(TorchReference(name));
      for (auto& row : rows) {
        std::erase_if(row, [](const std::string& cell) {
          const size_t letter = cell.find_first_not_of("0123456789");
          const std::string type = letter == std::string::npos ? "" : cell.substr(letter);
          return !type.starts_with("F") && !type.starts_with("SEND_F") &&
                 !type.starts_with("RECV_F");
        });
      }
      TorchCsvNotes notes;
      const Plan plan = ReadTorchCsv(JoinTorchCsv(rows), "f.csv", &notes);
      CHECK(notes.forwards_alone);
      REQUIRE(notes.notes.size() == 1);
      CHECK(notes.notes[0].starts_with("f.csv: has forwards alone"));
      CHECK(Verify(plan, Semantics::kEdge).empty());
      CostModel costs = UniformCosts(7, 5, 3);
      costs.layers = {{.name = "block", .repeat = 2, .cost = costs.stages[0]}};
      costs = CostsOfForwards(costs, "f.csv");
      CHECK(costs.stages[0].bw == 0);
      CHECK(costs.layers[0].cost.w == 0);
      costs.layers.clear();
      Time longest = 0;
      const Simulation run = Simulate(plan, costs);
      for (int r = 0; r < plan.ranks; ++r) {
        CHECK(run.ranks[static_cast<size_t>(r)].busy ==
              7 * plan.microbatches * plan.stages / plan.ranks);
        longest = std::max(longest, run.ranks[static_cast<size_t>(r)].busy);
      }
      CHECK(run.makespan >= longest + 7 * (plan.ranks - 1));
    }
    CostModel components = UniformCosts(1, 1, 1);
    components.moe.emplace();
    CHECK_THROWS_WITH_AS(
        CostsOfForwards(components, "f.csv"),
        "f.csv: has forwards alone, and these costs are of components; give costs of stages",
        Error);
    TorchCsvNotes notes;
    ReadTorchCsv("0UNSHARD,0F0,,0B0,0REDUCE_GRAD,0RESHARD\n", "s.csv", &notes);
    REQUIRE(notes.notes.size() == 1);
    CHECK(notes.notes[0] ==
          "s.csv: 3 of its 5 cells are UNSHARD, RESHARD, REDUCE_GRAD or WAIT_REDUCE_GRAD, which "
          "take no time here");
    CHECK(!notes.forwards_alone);
  }

  TEST_CASE("torch csv: messages stand where they stand in the file") {
    const Plan plan = ReadTorchCsv(
        "0UNSHARD,0F0,0SEND_F0,,,0RECV_B0,0B0,0WAIT_SEND_F0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD\n"
        "1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_GRAD,1WAIT_REDUCE_GRAD,1WAIT_SEND_B0\n",
        "s.csv");
    std::string text;
    for (const Instruction& i : plan.programs[0]) text += ToString(i) + "\n";
    for (const Mark& mark : plan.marks[0]) text += ToString(mark) + "\n";
    CHECK(text ==
          "F s0 m0\nSEND_F s0 m0 to=1\nRECV_B s0 m0 from=1\nBW s0 m0\nSTEP s0\n"
          "UNSHARD s0 before=0\nIDLE before=2 count=2\nWAIT_SEND_F s0 m0 before=4\n"
          "REDUCE_GRAD s0 before=4\nWAIT_REDUCE_GRAD s0 before=4\n");
    CHECK(FindingsText(plan) == "");
    CHECK(CsvPlace(plan, 0, 0) == "row 1, column 2");
    // The marks of a file without messages stay where the messages are added.
    const Plan chunks =
        ReadTorchCsv("0UNSHARD,0F0,0B0,0REDUCE_GRAD\n1F0,1B0,1REDUCE_GRAD\n", "s.csv");
    const Plan lowered = Lower(chunks, UniformCosts(1, 1, 1), {.target = Level::kComm});
    REQUIRE(lowered.marks.size() == 2);
    CHECK(lowered.marks[0].size() == 2);
    CHECK(lowered.marks[1].size() == 1);
    CHECK(CsvPlace(plan, 0, 3) == "row 1, column 7");
    CHECK(CsvPlace(plan, 1, 3) == "row 2, column 4");
  }

  TEST_CASE("torch csv: communication must be complete and in place") {
    const auto findings = [](const std::string& csv) {
      const std::string why = WhyNot(csv);
      return why == "accepted" ? FindingsText(ReadTorchCsv(csv, "s.csv")) : why;
    };
    CHECK(findings("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n") == "");
    CHECK(findings("0SEND_F0,0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n") ==
          "producer: rank 0, instruction 0: SEND_F s0 m0 to=1 comes before its producer at 1 (F s0 "
          "m0); move it after\n");
    CHECK(findings("0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1RECV_F0,1B0,1SEND_B0\n") ==
          "consumer: rank 1, instruction 1: RECV_F s1 m0 from=0 comes after its consumer at 0 (F "
          "s1 m0); move it before\n");
    CHECK(
        findings("0F0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n") ==
        "message: rank 0: no RECV_B s0 m0 from=1; rank 1 waits for it at 3 (SEND_B s1 m0 to=0)\n");
    CHECK(findings("0F0,0SEND_B0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n") ==
          "s.csv: row 1, column 2: 0SEND_B0: stage 0 has no stage before it on another rank");
    CHECK(findings("0F0,0SEND_F0,1F0,0B0,1B0\n") ==
          "s.csv: row 1, column 2: 0SEND_F0: stage 0 has no next stage on another rank");
    for (const char* cell : {"0SEND_F5", "0WAIT_SEND_F5"}) {
      CHECK(findings("0F0,0SEND_F0," + std::string(cell) +
                     ",0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n") ==
            "s.csv: row 1, column 3: " + std::string(cell) + ": there are 1 micro-batches only");
    }
  }

  TEST_CASE("torch csv: what PyTorch writes comes back byte for byte") {
    for (const char* name :
         {"DualPipeV", "Interleaved1F1B", "InterleavedZeroBubble", "LoopedBFS", "ZBVZeroBubble"}) {
      CAPTURE(name);
      const std::string order = TorchReference(name);
      const Plan plan = ReadTorchCsv(order, "s.csv");
      CHECK(WriteTorchCsv(plan) == order);
      const Plan lowered = Lower(plan, UniformCosts(1, 1, 1), {.target = Level::kComm});
      CHECK(WriteTorchCsv(lowered) == order);
      const std::string comms = TorchReference(std::string(name) + "_comms");
      CHECK(WriteTorchCsv(ReadTorchCsv(comms, "s.csv"), {.messages = true}) == comms);
    }
    const std::string deferred = TorchReference("Interleaved1F1B_defer");
    CHECK(WriteTorchCsv(ReadTorchCsv(deferred, "s.csv"), {.messages = true}) == deferred);
  }

  TEST_CASE(
      "torch csv: an order of defer_pp_recv crosses messages, another needs a queue per edge") {
    const Plan crossed = ReadTorchCsv(TorchReference("ZBVZeroBubble_defer"), "s.csv");
    for (const Semantics semantics : kEverySemantics) {
      CHECK(Verify(crossed, semantics).front().check == "message");
    }
    const Plan edge = ReadTorchCsv(TorchReference("Interleaved1F1B_defer"), "s.csv");
    CHECK(!Verify(edge, Semantics::kRank).empty());
    CHECK(!Verify(edge, Semantics::kPair).empty());
    CHECK(Verify(edge, Semantics::kEdge).empty());
    CHECK(Verify(edge, Semantics::kBuffered).empty());
  }

  TEST_CASE("torch csv: no cell of a lowered schedule can go or come twice") {
    for (const char* name : {"DualPipeV_comms", "ZBVZeroBubble_comms", "Interleaved1F1B_comms"}) {
      const TorchRows cells = SplitTorchCsv(TorchReference(name));
      const auto sound = [](const TorchRows& rows) {
        const std::string csv = JoinTorchCsv(rows);
        return WhyNot(csv) == "accepted" && FindingsText(ReadTorchCsv(csv, "s.csv")).empty();
      };
      REQUIRE(sound(cells));
      int damaged = 0;
      for (size_t row = 0; row < cells.size(); ++row) {
        for (size_t column = 0; column < cells[row].size(); ++column) {
          const std::string& cell = cells[row][column];
          CAPTURE(cell);
          const bool needless = cell.ends_with("SHARD");
          TorchRows less = cells;
          less[row].erase(less[row].begin() + static_cast<std::ptrdiff_t>(column));
          CHECK(sound(less) == needless);
          TorchRows more = cells;
          more[row].push_back(cell);
          CHECK(sound(more) == needless);
          ++damaged;
        }
      }
      CHECK(damaged > 100);
    }
  }

  TEST_CASE("torch csv: ranks that wait for each other are left to the verifier") {
    // Each stage may take its micro-batches in an order of its own.
    const Plan plan = ReadTorchCsv("0F0,0F1,0B0,0B1\n1F1,1F0,1B1,1B0\n", "s.csv");
    CHECK(FindingsText(plan) == "");
    const Plan stuck = ReadTorchCsv("2F0,2B0,0F0,0B0\n1F0,1B0\n", "s.csv");
    CHECK(Contains(FindingsText(stuck), "deadlock"));
  }

  TEST_CASE("torch csv: what cannot be written") {
    CHECK_THROWS_WITH_AS(
        WriteTorchCsv(GeneratePlan(MakeSpec("dualpipe", 2, 4, UniformCosts(1, 1, 1)))),
        "stage 0 lives on ranks 0 and 1; PyTorch's schedules have one rank for each stage; "
        "dualpipe-v has the same overlap with one copy",
        Error);
  }
}

}  // namespace
}  // namespace contraflow::torch_csv_test
