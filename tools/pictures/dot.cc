#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "compiler/files/json.h"
#include "compiler/plan/error.h"
#include "tools/pictures/picture.h"

namespace contraflow {
namespace {

class Dot {
 public:
  explicit Dot(const Plan& plan) : plan_(plan) {}

  std::string Write() {
    // A name of a plan is free text; DOT quotes like JSON where there are no control characters.
    out_ = "digraph " + QuoteJson(plan_.schedule) + " {\n";
    out_ += "rankdir=LR;\nnode [shape=box, fontname=monospace, height=0.3];\n";
    for (int rank = 0; rank < plan_.ranks; ++rank) WriteRank(rank);
    if (plan_.level == Level::kCompute) {
      WriteValues();
    } else {
      WriteMessages();
      WriteReductions();
    }
    return out_ + "}\n";
  }

 private:
  using Node = std::pair<int, size_t>;  ///< rank and index

  const Program& ProgramOf(int rank) const { return plan_.program(rank); }

  static std::string Name(Node node) {
    return "r" + std::to_string(node.first) + "_" + std::to_string(node.second);
  }

  void WriteEdge(Node from, Node to, const char* attributes) {
    out_ += Name(from) + " -> " + Name(to) + attributes + ";\n";
  }

  void WriteRank(int rank) {
    const Program& program = ProgramOf(rank);
    const std::string number = std::to_string(rank);
    out_ += "subgraph cluster_" + number + " {\nlabel=\"rank " + number + "\";\n";
    // An empty cluster would not be drawn.
    if (program.empty()) out_ += "r" + number + " [style=invis];\n";
    for (size_t i = 0; i < program.size(); ++i) {
      out_ += Name({rank, i}) + " [label=\"" + Label(program[i]) + "\"];\n";
    }
    // Without lanes there is one queue.
    std::map<std::pair<Lane, int>, size_t> last;
    for (size_t i = 0; i < program.size(); ++i) {
      const Lane lane = program[i].lane;
      const auto [before, first] =
          last.try_emplace({lane, lane == Lane::kNone ? -1 : program[i].peer}, i);
      if (!first) WriteEdge({rank, before->second}, {rank, i}, "");
      before->second = i;
    }
    for (size_t i = 0; i < program.size(); ++i) {
      for (size_t k = 0; k < program[i].after_count; ++k) {
        WriteEdge({rank, static_cast<size_t>(program[i].after[k])}, {rank, i}, " [style=dotted]");
      }
    }
    out_ += "}\n";
  }

  /// Leaves out the keys that edges show: peer, lane and after.
  static std::string Label(Instruction i) {
    i.lane = Lane::kNone;
    i.after_count = 0;
    std::string text = ToString(i);
    if (i.peer >= 0)
      text.erase(text.rfind(i.op == Op::SEND_F || i.op == Op::SEND_B ? " to=" : " from="));
    return text;
  }

  void WriteMessages() {
    // The stage that makes the value, the micro-batch and whether it is an activation; a plan may
    // be damaged, so of several sends the last one counts.
    std::map<std::tuple<int, int, bool>, Node> sends;
    ForEach([&](Node node, const Instruction& i) {
      if (WorkOf(i.op) == Work::kSend) sends[{i.stage, i.microbatch, i.op == Op::SEND_F}] = node;
    });
    ForEach([&](Node node, const Instruction& i) {
      if (WorkOf(i.op) != Work::kRecv) return;
      const bool forward = i.op == Op::RECV_F;
      const auto send = sends.find({i.stage + (forward ? -1 : 1), i.microbatch, forward});
      if (send != sends.end()) WriteEdge(send->second, node, kMessage);
    });
  }

  void WriteValues() {
    std::map<std::tuple<int, int, bool>, Node> makers;
    ForEach([&](Node node, const Instruction& i) {
      if (HasForward(i.op)) makers[{i.stage, i.microbatch, true}] = node;
      if (HasBackward(i.op)) makers[{BackStage(i), BackMicrobatch(i), false}] = node;
    });
    const auto connect = [&](Node taker, int stage, int microbatch, bool forward) {
      const auto maker = makers.find({stage, microbatch, forward});
      if (maker == makers.end() || maker->second.first == taker.first) return;
      WriteEdge(maker->second, taker, kMessage);
    };
    ForEach([&](Node node, const Instruction& i) {
      if (HasForward(i.op)) connect(node, i.stage - 1, i.microbatch, true);
      if (HasBackward(i.op)) connect(node, BackStage(i) + 1, BackMicrobatch(i), false);
    });
  }

  void WriteReductions() {
    std::map<int, Node> first;
    ForEach([&](Node node, const Instruction& i) {
      if (i.op != Op::REDUCE) return;
      const auto [one, is_first] = first.try_emplace(i.stage, node);
      if (!is_first) WriteEdge(one->second, node, " [style=dashed, dir=none, constraint=false]");
    });
  }

  template <typename Visit>
  void ForEach(Visit visit) {
    for (int rank = 0; rank < plan_.ranks; ++rank) {
      const Program& program = ProgramOf(rank);
      for (size_t i = 0; i < program.size(); ++i) visit(Node(rank, i), program[i]);
    }
  }

  static constexpr const char* kMessage = " [color=blue]";

  const Plan& plan_;
  std::string out_;
};

}  // namespace

std::string WriteDot(const Plan& plan) {
  const int64_t count = InstructionCount(plan);
  if (count > kMaxDotInstructions) {
    throw Error("the plan has " + std::to_string(count) +
                " instructions, too many for Graphviz, which is given at most " +
                std::to_string(kMaxDotInstructions) +
                "; contraflow show --format svg and --to chrome-trace draw plans of any size");
  }
  return Dot(plan).Write();
}

}  // namespace contraflow
