#include <doctest/doctest.h>

#include <map>
#include <random>
#include <set>
#include <sstream>
#include <string>

#include "compiler/lower/lower.h"
#include "compiler/plan/error.h"
#include "schedules/registry.h"
#include "tests/support/support.h"
#include "tools/pictures/picture.h"

namespace contraflow::dot_test {
namespace {

/// A graph as WriteDot spells it; nothing but what the lines of DOT allow here passes.
struct Graph {
  std::map<std::string, std::string> nodes;       // name and label
  std::multiset<std::string> edges;               // "from to attributes"
  std::map<std::string, std::string> cluster_of;  // of a node
  int clusters = 0;
};

Graph ParseGraph(const std::string& text) {
  Graph graph;
  std::istringstream lines(text);
  std::string line, cluster;
  int depth = 0;
  while (std::getline(lines, line)) {
    if (line.starts_with("digraph \"") || line.starts_with("subgraph ")) {
      REQUIRE(line.ends_with(" {"));
      if (++depth == 2) ++graph.clusters;
      cluster = line;
    } else if (line == "}") {
      REQUIRE(depth-- > 0);
      cluster.clear();
    } else {
      REQUIRE(line.ends_with(";"));
      REQUIRE(depth > 0);
      line.pop_back();
      const size_t arrow = line.find(" -> ");
      const size_t label = line.find(" [label=\"");
      if (arrow != std::string::npos) {
        const std::string to = line.substr(arrow + 4);
        const size_t end = to.find(' ');
        graph.edges.insert(line.substr(0, arrow) + " " + to.substr(0, end) +
                           (end == std::string::npos ? "" : to.substr(end)));
        // Every rank stands before the edges between ranks.
        CHECK(graph.nodes.count(line.substr(0, arrow)) == 1);
        CHECK(graph.nodes.count(to.substr(0, end)) == 1);
      } else if (label != std::string::npos) {
        const std::string name = line.substr(0, label);
        CHECK(graph.nodes.emplace(name, line.substr(label + 9, line.size() - label - 11)).second);
        graph.cluster_of[name] = cluster;
      }
    }
  }
  REQUIRE(depth == 0);
  return graph;
}

int CountEdges(const Graph& graph, const std::string& attributes) {
  int count = 0;
  for (const std::string& edge : graph.edges) count += edge.ends_with(attributes);
  return count;
}

TEST_SUITE("unit") {
  TEST_CASE("dot: two ranks and two micro-batches") {
    Spec spec = MakeSpec("1f1b", 2, 1, UniformCosts(1, 1, 1));
    CHECK(WriteDot(GeneratePlan(spec)) == R"(digraph "1f1b" {
rankdir=LR;
node [shape=box, fontname=monospace, height=0.3];
subgraph cluster_0 {
label="rank 0";
r0_0 [label="F s0 m0"];
r0_1 [label="BW s0 m0"];
r0_0 -> r0_1;
}
subgraph cluster_1 {
label="rank 1";
r1_0 [label="F s1 m0"];
r1_1 [label="BW s1 m0"];
r1_0 -> r1_1;
}
r1_1 -> r0_1 [color=blue];
r0_0 -> r1_0 [color=blue];
}
)");
  }

  TEST_CASE("dot: every instruction of every schedule once and every message") {
    for (const Schedule* schedule : Schedules()) {
      CAPTURE(schedule->name);
      const Spec spec = MakeSpec(schedule->name, 4, 8, UniformCosts(1, 1, 1));
      const Plan order = GeneratePlan(spec), plan = Compile(spec);
      const Graph graph = ParseGraph(WriteDot(plan));
      CHECK(graph.clusters == 4);
      REQUIRE(static_cast<int64_t>(graph.nodes.size()) == InstructionCount(plan));
      int sends = 0, chained = 0;
      for (size_t r = 0; r < 4; ++r) {
        for (size_t i = 0; i < plan.programs[r].size(); ++i) {
          const Instruction& instruction = plan.programs[r][i];
          const std::string rank = std::to_string(r);
          const std::string name = "r" + rank + "_" + std::to_string(i);
          REQUIRE(graph.nodes.count(name) == 1);
          CHECK(ToString(instruction).starts_with(graph.nodes.at(name)));
          CHECK(graph.cluster_of.at(name) == "subgraph cluster_" + rank + " {");
          const bool send = WorkOf(instruction.op) == Work::kSend;
          sends += send;
          if (i == 0) continue;
          chained += graph.edges.count("r" + rank + "_" + std::to_string(i - 1) + " " + name) == 1;
        }
      }
      CHECK(chained == static_cast<int>(graph.nodes.size()) - 4);
      CHECK(CountEdges(graph, " [color=blue]") == sends);
      // Before lowering the same values cross.
      CHECK(CountEdges(ParseGraph(WriteDot(order)), " [color=blue]") == sends);
      // Stages with a second copy.
      const int copies = plan.routes.size() == 2 ? plan.stages : 0;
      CHECK(CountEdges(graph, "constraint=false]") == copies);
    }
  }

  TEST_CASE("dot: a message joins the stage that sends and the one that takes it") {
    const Plan plan = Compile(MakeSpec("zb-v", 2, 4, UniformCosts(1, 1, 1)));
    const Graph graph = ParseGraph(WriteDot(plan));
    int messages = 0;
    for (const std::string& edge : graph.edges) {
      if (!edge.ends_with("[color=blue]")) continue;
      ++messages;
      const size_t space = edge.find(' ');
      std::string from = graph.nodes.at(edge.substr(0, space));
      const std::string to =
          graph.nodes.at(edge.substr(space + 1, edge.find(' ', space + 1) - space - 1));
      CAPTURES(from, to);
      const Instruction send = ParseInstruction(from + " to=0");
      const Instruction receive = ParseInstruction(to + " from=0");
      CHECK(send.microbatch == receive.microbatch);
      CHECK(receive.stage - send.stage == (send.op == Op::SEND_F ? 1 : -1));
      CHECK((send.op == Op::SEND_F) == (receive.op == Op::RECV_F));
    }
    CHECK(messages == 16);
  }

  TEST_CASE("dot: lanes are chained each for itself and after is dotted") {
    std::mt19937_64 random(6);
    const CostModel costs = RandomMoeCosts(&random, 2, Overlap::kAll);
    const Plan plan =
        Lower(GeneratePlan(MakeSpec("1f1b", 2, 2, costs)), costs, {.target = Level::kComponent});
    int waits = 0;
    for (const Program& program : plan.programs) {
      for (const Instruction& i : program) waits += i.after_count;
    }
    REQUIRE(waits > 0);
    CHECK(CountEdges(ParseGraph(WriteDot(plan)), " [style=dotted]") == waits);
  }

  TEST_CASE("dot: too large for Graphviz") {
    const Plan plan = GeneratePlan(MakeSpec("gpipe", 1, 5'000, UniformCosts(1, 1, 1)));
    CHECK(ParseGraph(WriteDot(plan)).nodes.size() == 10'000);
    CHECK_THROWS_WITH_AS(
        WriteDot(GeneratePlan(MakeSpec("gpipe", 1, 5'001, UniformCosts(1, 1, 1)))),
        "the plan has 10002 instructions, too many for Graphviz, which is given at most 10000; "
        "contraflow show --format svg and --to chrome-trace draw plans of any size",
        Error);
  }
}

}  // namespace
}  // namespace contraflow::dot_test
