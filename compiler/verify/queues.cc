// Does the plan run to its end where a rank has several queues? Each rank walks its program: what
// is no message or reduction waits for the messages it needs (and at a WAIT_SEND for that SEND),
// the others are put into their queues as the walk comes to them. PyTorch does so over gloo, and
// over NCCL, where the stream of a queue waits for what was computed before. A queue stands at its
// first message, or at all of a group, until each has met its other side: a rendezvous. The result
// does not depend on speeds, so one execution stands for all.
//
//     pair      a rank has a queue for each other rank
//     edge      one for each other rank and direction
//     buffered  the same, but a SEND is over as soon as it is posted
//
// REDUCE has a queue of its own. Which queue waits for which is a graph over ranks and queues; a
// deadlock is a cycle in it.

#include <algorithm>
#include <utility>

#include "compiler/verify/checks.h"

namespace contraflow::check {
namespace {

/// A message, group or REDUCE at which a queue stands is [begin, end) of what was posted.
struct Queue {
  int rank = 0;
  std::vector<int32_t> posted;  ///< indices into the program of the rank
  size_t begin = 0, end = 0;
  int32_t open = 0;  ///< how many of these have not met their other side
};

/// Place at which an instruction was posted.
struct Post {
  int32_t queue = -1;  ///< -1: not posted
  int32_t at = -1;     ///< in that queue
  bool done = false;
};

class Execution {
 public:
  Execution(const Tables& tables, Semantics semantics)
      : tables_(tables),
        plan_(tables.plan),
        semantics_(semantics),
        hosts_(static_cast<size_t>(plan_.ranks)),
        arrived_(static_cast<size_t>(plan_.stages), 0),
        awaited_(static_cast<size_t>(plan_.stages), 0) {
    for (const Copy& copy : tables.copies) {
      if (copy.reduce >= 0) ++awaited_[static_cast<size_t>(copy.stage)];
    }
    MakeQueues();
    for (int r = plan_.ranks - 1; r >= 0; --r) ready_.push_back(r);
  }

  Standstill Run(Findings* findings) {
    while (!ready_.empty()) {
      const int rank = ready_.back();
      ready_.pop_back();
      Walk(rank);
    }
    return Report(findings);
  }

 private:
  struct Host {
    int32_t next = 0;     ///< instruction
    size_t mark = 0;      ///< next of its marks
    int32_t awaits = -1;  ///< the instruction of the rank that it waits for
    std::vector<Post> posts;
  };

  Host& At(int rank) { return hosts_[static_cast<size_t>(rank)]; }
  const Host& At(int rank) const { return hosts_[static_cast<size_t>(rank)]; }
  Post& PostOf(int rank, int32_t index) { return At(rank).posts[static_cast<size_t>(index)]; }
  const Post& PostOf(int rank, int32_t index) const {
    return At(rank).posts[static_cast<size_t>(index)];
  }
  Queue& QueueOf(const Post& post) { return queues_[static_cast<size_t>(post.queue)]; }
  const Queue& QueueOf(const Post& post) const { return queues_[static_cast<size_t>(post.queue)]; }

  bool HasQueue(const Instruction& i) const {
    return i.op == Op::REDUCE || (IsMessage(i.op) && !Buffered(i));
  }
  bool Buffered(const Instruction& i) const {
    return semantics_ == Semantics::kBuffered && IsSend(i.op);
  }

  /// Numbers the queues by rank and first use; instructions know theirs in advance.
  void MakeQueues() {
    // Last user by peer and direction, and one for REDUCE: the rank, and its queue.
    std::vector<std::pair<int, int32_t>> used(static_cast<size_t>(plan_.ranks) * 2 + 1, {-1, -1});
    for (int r = 0; r < plan_.ranks; ++r) {
      At(r).posts.resize(plan_.program(r).size());
      queue_of_.emplace_back(plan_.program(r).size(), -1);
      for (size_t at = 0; at < plan_.program(r).size(); ++at) {
        const Instruction& i = plan_.program(r)[at];
        if (!HasQueue(i)) continue;
        const bool second = semantics_ != Semantics::kPair && IsSend(i.op);
        auto& [rank, queue] =
            used[i.op == Op::REDUCE ? used.size() - 1
                                    : static_cast<size_t>(i.peer) * 2 + (second ? 1 : 0)];
        if (rank != r) {
          rank = r;
          queue = static_cast<int32_t>(queues_.size());
          queues_.push_back({.rank = r, .posted = {}});
        }
        queue_of_.back()[at] = queue;
      }
    }
  }

  void Walk(int rank) {
    Host& host = At(rank);
    const std::span<const Mark> marks = MarksOf(plan_, rank);
    const auto length = static_cast<int32_t>(plan_.program(rank).size());
    for (;;) {
      for (; host.mark < marks.size() && marks[host.mark].before <= host.next; ++host.mark) {
        if (IsWaitSend(marks[host.mark].kind) &&
            Waits(rank, SendOf(tables_, rank, marks[host.mark])))
          return;
      }
      if (host.next == length) break;
      const Instruction& i = tables_.InstructionAt(rank, host.next);
      if (HasQueue(i) || Buffered(i)) {
        PostFrom(rank);
        continue;
      }
      const Inputs inputs = InputsOf(tables_, rank, i);
      for (const int32_t input : inputs) {
        if (Waits(rank, input)) return;
      }
      ++host.next;
    }
    host.awaits = -1;
  }

  /// True if the instruction was posted by this rank and is not over. An instruction that is
  /// missing or comes too late is the business of other checks.
  bool Waits(int rank, int32_t index) {
    At(rank).awaits = -1;
    if (index < 0 || index >= At(rank).next) return false;
    const Instruction& i = tables_.InstructionAt(rank, index);
    if (!IsMessage(i.op) && i.op != Op::REDUCE) return false;
    if (PostOf(rank, index).done) return false;
    At(rank).awaits = index;
    return true;
  }

  /// Posts the next instruction, a group as a whole.
  void PostFrom(int rank) {
    Host& host = At(rank);
    const int32_t first = host.next;
    const Instruction& i = tables_.InstructionAt(rank, first);
    const auto length = static_cast<int32_t>(plan_.program(rank).size());
    do {
      PostOne(rank, host.next);
      ++host.next;
    } while (IsMessage(i.op) && i.group >= 0 && host.next < length &&
             IsMessage(tables_.InstructionAt(rank, host.next).op) &&
             tables_.InstructionAt(rank, host.next).group == i.group);
    for (int32_t at = first; at < host.next; ++at) {
      const Post& post = PostOf(rank, at);
      if (post.queue >= 0 && QueueOf(post).open == 0) Advance(post.queue);
      if (Buffered(tables_.InstructionAt(rank, at))) MeetReceiver(rank, at);
    }
    Settle();
  }

  void PostOne(int rank, int32_t index) {
    Post& post = PostOf(rank, index);
    if (Buffered(tables_.InstructionAt(rank, index))) {
      post.done = true;
      return;
    }
    post.queue = queue_of_[static_cast<size_t>(rank)][static_cast<size_t>(index)];
    Queue& queue = QueueOf(post);
    post.at = static_cast<int32_t>(queue.posted.size());
    queue.posted.push_back(index);
  }

  /// A buffered SEND is there: the RECV may wait for it.
  void MeetReceiver(int rank, int32_t index) {
    const int32_t partner = Partner(tables_, rank, index);
    if (partner < 0) return;
    const int peer = tables_.InstructionAt(rank, index).peer;
    if (AtHead(peer, partner)) Done(peer, partner);
  }

  bool AtHead(int rank, int32_t index) const {
    const Post& post = PostOf(rank, index);
    if (post.queue < 0 || post.done) return false;
    const Queue& queue = QueueOf(post);
    return queue.open > 0 && static_cast<size_t>(post.at) >= queue.begin &&
           static_cast<size_t>(post.at) < queue.end;
  }

  /// Ends the instruction at the head of its queue; the queue is taken up by Settle.
  void Done(int rank, int32_t index) {
    Post& post = PostOf(rank, index);
    post.done = true;
    if (--QueueOf(post).open == 0) settled_.push_back(post.queue);
    if (At(rank).awaits == index) ready_.push_back(rank);
  }

  void Settle() {
    while (!settled_.empty()) {
      const int32_t queue = settled_.back();
      settled_.pop_back();
      Advance(queue);
    }
  }

  /// The queue, of which nothing is open, goes on to what was posted next.
  void Advance(int32_t number) {
    Queue& queue = queues_[static_cast<size_t>(number)];
    while (queue.open == 0) {
      queue.begin = queue.end;
      if (queue.begin == queue.posted.size()) return;
      const Program& program = plan_.program(queue.rank);
      const Instruction& head = program[static_cast<size_t>(queue.posted[queue.begin])];
      ++queue.end;
      for (; head.group >= 0 && queue.end < queue.posted.size(); ++queue.end) {
        if (program[static_cast<size_t>(queue.posted[queue.end])].group != head.group) break;
      }
      queue.open = static_cast<int32_t>(queue.end - queue.begin);
      for (size_t at = queue.begin; at < queue.end; ++at) {
        const int32_t index = queue.posted[at];
        head.op == Op::REDUCE ? Arrive(queue.rank, index) : Meet(queue.rank, index);
      }
      // Taken up here, or once more by Settle, which then finds it open or at its end.
    }
  }

  void Meet(int rank, int32_t index) {
    const Instruction& i = tables_.InstructionAt(rank, index);
    const int32_t partner = Partner(tables_, rank, index);
    if (partner >= 0) {
      const bool sent = semantics_ == Semantics::kBuffered && PostOf(i.peer, partner).done;
      if (!sent && !AtHead(i.peer, partner)) return;
      if (!sent) Done(i.peer, partner);
    }
    // Messages without another side are the business of other checks and pass.
    Done(rank, index);
  }

  void Arrive(int rank, int32_t index) {
    const int stage = tables_.InstructionAt(rank, index).stage;
    const auto s = static_cast<size_t>(stage);
    const int32_t found = tables_.FindCopy(stage, rank);
    if (found < 0 || tables_.copies[static_cast<size_t>(found)].reduce != index) {
      return Done(rank, index);
    }
    if (++arrived_[s] < awaited_[s]) return;
    for (const Copy& copy : tables_.CopiesOf(stage)) {
      if (copy.reduce >= 0) Done(copy.rank, copy.reduce);
    }
  }

  // Nodes of the graph of waits: ranks, then queues.
  struct Edge {
    int from, to;
    int32_t index;  ///< the waiting message of `from`: the head of its queue, or the one that the
                    ///< rank awaits

    auto operator<=>(const Edge&) const = default;
  };

  int QueueNode(int32_t queue) const { return plan_.ranks + queue; }

  /// For what the other side of a message, or a holder, is waited for: its queue, or who posts it.
  int NodeOf(int rank, int32_t index) const {
    const Post& post = PostOf(rank, index);
    return post.queue >= 0 ? QueueNode(post.queue) : rank;
  }

  std::vector<Edge> Waits() const {
    std::vector<Edge> edges;
    for (int r = 0; r < plan_.ranks; ++r) {
      const int32_t awaits = At(r).awaits;
      if (awaits >= 0) edges.push_back({r, QueueNode(PostOf(r, awaits).queue), awaits});
    }
    for (size_t q = 0; q < queues_.size(); ++q) AddWaits(q, &edges);
    std::sort(edges.begin(), edges.end());
    return edges;
  }

  void AddWaits(size_t number, std::vector<Edge>* edges) const {
    const Queue& queue = queues_[number];
    if (queue.open == 0) return;
    const int node = QueueNode(static_cast<int32_t>(number));
    for (size_t at = queue.begin; at < queue.end; ++at) {
      const int32_t index = queue.posted[at];
      if (PostOf(queue.rank, index).done) continue;
      const Instruction& i = tables_.InstructionAt(queue.rank, index);
      if (IsMessage(i.op)) {
        edges->push_back({node, NodeOf(i.peer, Partner(tables_, queue.rank, index)), index});
        if (edges->size() > kEnoughWaits) return;
        continue;
      }
      for (const Copy& copy : tables_.CopiesOf(i.stage)) {
        if (copy.reduce < 0 || AtHead(copy.rank, copy.reduce)) continue;
        edges->push_back({node, NodeOf(copy.rank, copy.reduce), index});
        if (edges->size() > kEnoughWaits) return;
      }
    }
  }

  /// Names a shortest cycle of waits, and says how far each rank gets.
  Standstill Report(Findings* findings) const {
    Standstill standstill;
    for (const Host& host : hosts_) standstill.next.push_back(host.next);
    const std::vector<Edge> edges = Waits();
    if (edges.empty()) return standstill;
    // Instructions that are waited for wait too: numbered are those that wait.
    std::vector<int> nodes;
    for (const Edge& edge : edges) nodes.push_back(edge.from);
    nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
    const auto number = [&](int node) {
      return static_cast<int>(std::lower_bound(nodes.begin(), nodes.end(), node) - nodes.begin());
    };
    Digraph graph{.size = static_cast<int>(nodes.size()), .edges = {}};
    for (const Edge& edge : edges) graph.edges.push_back({number(edge.from), number(edge.to)});
    std::vector<int> cycle = CycleOf(graph);
    // It is told from a rank on, if there is one in it: ranks come before queues.
    std::rotate(cycle.begin(), std::min_element(cycle.begin(), cycle.end()), cycle.end());
    std::vector<Edge> waits;
    for (size_t k = 0; k < cycle.size(); ++k) {
      const Edge wanted = {nodes[static_cast<size_t>(cycle[k])],
                           nodes[static_cast<size_t>(cycle[(k + 1) % cycle.size()])], -1};
      waits.push_back(*std::lower_bound(edges.begin(), edges.end(), wanted));
    }
    const int rank = RankOf(waits[0].from);
    const int32_t index = IsRank(waits[0].from) ? At(rank).next : waits[0].index;
    findings->Add(Check::kDeadlock, rank,
                  index < static_cast<int32_t>(plan_.program(rank).size()) ? index : -1,
                  Tell(waits) + "; change the order on one of them");
    // Queues are numbered by rank.
    for (const Edge& edge : edges) {
      const int at = RankOf(edge.from), on = RankOf(edge.to);
      const bool first = standstill.waits.empty() || standstill.waits.back().rank != at;
      if (at != on && first) standstill.waits.push_back({at, edge.index, on});
    }
    for (const Edge& wait : waits) {
      const int at = RankOf(wait.from), on = RankOf(wait.to);
      if (at != on) standstill.cycle.push_back({at, wait.index, on});
    }
    return standstill;
  }

  bool IsRank(int node) const { return node < plan_.ranks; }
  int RankOf(int node) const {
    return IsRank(node) ? node : queues_[static_cast<size_t>(node - plan_.ranks)].rank;
  }

  /// A circle of waits in words, rank by rank.
  std::string Tell(const std::vector<Edge>& waits) const {
    std::string text;
    for (size_t k = 0; k < waits.size(); ++k) {
      const Edge& wait = waits[k];
      const int rank = RankOf(wait.from);
      const bool within = k > 0 && IsRank(waits[k - 1].from);
      if (k == 0) text = "rank " + std::to_string(rank) + " waits";
      if (k > 0 && !within) text += ", which waits";
      const std::string place = tables_.Place(rank, wait.index);
      if (IsRank(wait.from)) {
        text += " at " + Standing(rank) + " for its " + place;
        continue;
      }
      if (!within) text += " at " + place;
      if (within && waits[k - 1].index != wait.index) text += ", which is queued after " + place;
      text += (within ? ", and so for rank " : " for rank ") + std::to_string(RankOf(wait.to));
    }
    return text;
  }

  /// The instruction or mark that a rank waits at.
  std::string Standing(int rank) const {
    const Host& host = At(rank);
    const std::span<const Mark> marks = MarksOf(plan_, rank);
    const bool marked = host.mark < marks.size() && marks[host.mark].before <= host.next;
    return marked ? ToString(marks[host.mark]) : tables_.Place(rank, host.next);
  }

  /// A shortest cycle, where the search for it is not too long; else the one that the first wait of
  /// each node leads to.
  static std::vector<int> CycleOf(const Digraph& graph) {
    if (static_cast<uint64_t>(graph.size) * graph.edges.size() <= uint64_t{1} << 28) {
      return ShortestCycle(graph);
    }
    std::vector<int> to(static_cast<size_t>(graph.size), -1), turn(to.size(), -1);
    for (const Digraph::Edge& edge : graph.edges) {
      if (to[static_cast<size_t>(edge.from)] < 0) to[static_cast<size_t>(edge.from)] = edge.to;
    }
    int node = 0;
    for (int k = 0; turn[static_cast<size_t>(node)] < 0; ++k) {
      turn[static_cast<size_t>(node)] = k;
      node = to[static_cast<size_t>(node)];
    }
    std::vector<int> cycle;
    for (int at = node; cycle.empty() || at != node; at = to[static_cast<size_t>(at)]) {
      cycle.push_back(at);
    }
    return cycle;
  }

  // Thousands of ranks at reductions of thousands of holders, or at groups of millions: after the
  // first few million waits, one of each queue does.
  static constexpr size_t kEnoughWaits = size_t{1} << 22;

  const Tables& tables_;
  const Plan& plan_;
  const Semantics semantics_;
  std::vector<Host> hosts_;
  std::vector<Queue> queues_;
  std::vector<std::vector<int32_t>> queue_of_;  // by rank and instruction; -1: none
  std::vector<int32_t> arrived_, awaited_;      // holders of each stage at their REDUCE
  std::vector<int> ready_;                      // ranks to walk on with
  std::vector<int32_t> settled_;                // queues of which nothing is open any more
};

}  // namespace

Standstill CheckQueues(const Tables& tables, Semantics semantics, Findings* findings) {
  return Execution(tables, semantics).Run(findings);
}

}  // namespace contraflow::check
