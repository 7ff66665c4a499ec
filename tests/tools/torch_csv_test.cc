#include <doctest/doctest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "compiler/lower/lower.h"
#include "compiler/plan/error.h"
#include "compiler/simulate/simulate.h"
#include "schedules/registry.h"
#include "tests/support/support.h"
#include "tools/interop/interop.h"

namespace contraflow::torch_csv_test {
namespace {

std::string ReadReference(const std::string& name) {
  std::ifstream file(CF_TEST_DIR "/reference/torch_" + name + ".csv", std::ios::binary);
  REQUIRE(file.good());
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string WhyNot(const std::string& csv) {
  try {
    ReadTorchCsv(csv, "s.csv");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

using Cells = std::vector<std::vector<std::string>>;

Cells Split(const std::string& csv) {
  Cells rows;
  std::istringstream lines(csv);
  for (std::string line; std::getline(lines, line);) {
    if (line.ends_with('\r')) line.pop_back();
    rows.emplace_back();
    std::istringstream cells(line);
    for (std::string cell; std::getline(cells, cell, ',');) rows.back().push_back(cell);
  }
  return rows;
}

std::string Join(const Cells& rows) {
  std::string csv;
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) csv += (i == 0 ? "" : ",") + row[i];
    csv += "\r\n";
  }
  return csv;
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
      const Plan plan = ReadTorchCsv(ReadReference(name), "s.csv");
      CHECK(plan.programs == expected.programs);
      CHECK(plan.routes == expected.routes);
      CHECK(FindingsText(plan) == "");
      CHECK(ReadTorchCsv(ReadReference(name + "_comms"), "s.csv") == plan);
      const Plan lowered = Lower(plan, costs, {.target = Level::kComm});
      CHECK(FindingsText(lowered) == "");
      CHECK(Simulate(lowered, costs).makespan == Simulate(expected, costs).makespan);
    }
  }

  TEST_CASE("torch csv: backwards in descending order are an order as good as any") {
    const Plan plan = ReadTorchCsv(ReadReference("LoopedBFS"), "s.csv");
    CHECK(plan.stages == 8);
    CHECK(FindingsText(plan) == "");
    CHECK(ReadTorchCsv(ReadReference("LoopedBFS_comms"), "s.csv") == plan);
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
        ": is not an action; an action is a stage, one of F I W B SEND_F RECV_F SEND_B RECV_B and "
        "a "
        "micro-batch, as in 2F0, or 2UNSHARD, 2RESHARD, 2REDUCE_GRAD";
    for (const char* cell :
         {"1f0", "F0", "-1F0", "1X0", "0OVERLAP_F_B", "x", "1SEND", "1 F0", "+1F0"}) {
      CHECK(one(cell) == "\"" + std::string(cell) + "\"" + none);
    }
    CHECK(one("\x1b[2J\\") == R"("\x1b[2J\x5c")" + none);
    CHECK(one(std::string(100, 'z')) == "\"" + std::string(64, 'z') + "...\"" + none);
    CHECK(one("1F0xyz") == R"("1F0xyz": continues after 1F0 with "xyz")");
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
    CHECK(
        WhyNot("0F0,0I0") ==
        "s.csv: row 1 has no weight gradient of stage 0 for micro-batch 0; every stage runs all 1 "
        "micro-batches");
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

  TEST_CASE("torch csv: communication must be complete and in place") {
    CHECK(WhyNot("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n") == "");
    CHECK(WhyNot("0SEND_F0,0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n") ==
          "s.csv: row 1, column 1: 0SEND_F0: must come after 0F0, which is at row 1, column 2");
    CHECK(WhyNot("0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1RECV_F0,1B0,1SEND_B0\n") ==
          "s.csv: row 2, column 1: 1F0: must come after 1RECV_F0, which is at row 2, column 2");
    CHECK(WhyNot("0F0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n") ==
          "s.csv: row 1 has no RECV_B of stage 0 for micro-batch 0; every stage runs all 1 "
          "micro-batches");
    CHECK(WhyNot("0F0,0SEND_B0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n") ==
          "s.csv: row 1, column 2: 0SEND_B0: stage 0 has no stage before it on another rank");
    CHECK(WhyNot("0F0,0SEND_F0,1F0,0B0,1B0\n") ==
          "s.csv: row 1, column 2: 0SEND_F0: stage 0 has no next stage on another rank");
    CHECK(WhyNot("0F0,0SEND_F0,0SEND_F5,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n") ==
          "s.csv: row 1, column 3: 0SEND_F5: there are 1 micro-batches only");
  }

  TEST_CASE("torch csv: no cell of a lowered schedule can go or come twice") {
    for (const char* name : {"DualPipeV_comms", "ZBVZeroBubble_comms", "Interleaved1F1B_comms"}) {
      const Cells cells = Split(ReadReference(name));
      REQUIRE(WhyNot(Join(cells)) == "");
      int damaged = 0;
      for (size_t row = 0; row < cells.size(); ++row) {
        for (size_t column = 0; column < cells[row].size(); ++column) {
          const std::string& cell = cells[row][column];
          CAPTURE(cell);
          const bool needless = cell.ends_with("SHARD") || cell.ends_with("GRAD");
          Cells less = cells;
          less[row].erase(less[row].begin() + static_cast<std::ptrdiff_t>(column));
          CHECK((WhyNot(Join(less)) == "") == needless);
          Cells more = cells;
          more[row].push_back(cell);
          CHECK((WhyNot(Join(more)) == "") == needless);
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
    CHECK(FindingsText(stuck).find("deadlock") != std::string::npos);
  }

  TEST_CASE("torch csv: what cannot be written") {
    CHECK_THROWS_WITH_AS(
        WriteTorchCsv(GeneratePlan(MakeSpec("dualpipe", 2, 4, UniformCosts(1, 1, 1)))),
        "stage 0 lives on ranks 0 and 1; PyTorch's schedules have one rank for each stage "
        "(dualpipe-v has the same overlap with one copy)",
        Error);
  }
}

}  // namespace
}  // namespace contraflow::torch_csv_test
