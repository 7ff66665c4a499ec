#include "tests/support/naive.h"

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

namespace contraflow {
namespace {

/// Values that a rank holds: 'y' the output of a stage, 'g' the gradient of a stage's input, 'f'
/// what its forward and 'b' what its backward left; 'a' that its forward was run again.
using Value = std::tuple<char, int, int>;

struct Wrong : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class SymbolicRun {
 public:
  explicit SymbolicRun(const Plan& plan) : plan_(plan), holders_(HoldersOfStage(plan)) {
    ranks_.resize(plan.programs.size());
  }

  std::string Run() {
    try {
      for (bool progress = true; progress;) {
        progress = false;
        for (size_t r = 0; r < ranks_.size(); ++r) {
          while (Advance(static_cast<int>(r))) progress = true;
        }
      }
      CheckEnd();
    } catch (const Wrong& wrong) {
      return wrong.what();
    }
    return "";
  }

 private:
  struct Rank {
    size_t next = 0;  // the instruction it is at, or the first after what it has posted
    int open = 0;     // posted and not met
    std::set<Value> holds;
    std::map<int, std::vector<int>> sums;  // micro-batches in each stage's weight gradient
    std::set<int> reduced, stepped;
  };

  [[noreturn]] static void Fail(const std::string& what) { throw Wrong(what); }

  bool ComputeOnly() const { return plan_.level == Level::kCompute; }
  /// At level compute outputs are wherever they are needed as soon as they are made.
  std::set<Value>& Holds(int rank, const Value& value) {
    const char kind = std::get<0>(value);
    const bool stays = kind == 'f' || kind == 'b' || kind == 'a';
    return ComputeOnly() && !stays ? everywhere_ : ranks_[static_cast<size_t>(rank)].holds;
  }
  Value Take(int rank, Value value, const std::string& who) {
    if (Holds(rank, value).erase(value) == 0) Fail(who + " misses an input");
    return value;
  }
  void Put(int rank, Value value, const std::string& who) {
    if (!Holds(rank, value).insert(value).second) Fail(who + " repeats");
  }

  /// At level compute: whether the output of the stage before, and the gradient of the one after
  /// it, have been made.
  bool InputsMade(const Instruction& i) const {
    const int s = BackStage(i);
    const bool forward = HasForward(i.op) && i.stage > 0;
    const bool backward = HasBackward(i.op) && s + 1 < plan_.stages;
    return (!forward || everywhere_.count({'y', i.stage - 1, i.microbatch}) > 0) &&
           (!backward || everywhere_.count({'g', s + 1, BackMicrobatch(i)}) > 0);
  }

  bool Advance(int r) {
    Rank& rank = ranks_[static_cast<size_t>(r)];
    const Program& program = plan_.program(r);
    if (rank.open > 0 || rank.next == program.size()) return false;
    const Instruction& i = program[rank.next];
    if (ComputeOnly() && !InputsMade(i)) return false;
    ++rank.next;
    const Work work = WorkOf(i.op);
    if (work == Work::kSend || work == Work::kRecv) {
      Post(r, i);
      while (i.group >= 0 && rank.next < program.size() && program[rank.next].group == i.group) {
        Post(r, program[rank.next++]);
      }
    } else if (i.op == Op::REDUCE) {
      Reduce(r, i.stage);
    } else if (i.op == Op::STEP) {
      Step(r, i.stage);
    } else {
      RunChunk(r, i);
    }
    return true;
  }

  void RunChunk(int r, const Instruction& i) {
    const std::string text = ToString(i);
    Rank& rank = ranks_[static_cast<size_t>(r)];
    const int s = BackStage(i), m = BackMicrobatch(i);
    // Away, what a forward left is no longer there; and it is recomputed or reloaded, not both.
    if (i.op == Op::OFFLOAD) {
      Take(r, {'f', s, m}, text);
      Put(r, {'h', s, m}, text);
      return Put(r, {'a', s, m}, text);
    }
    if (i.op == Op::RELOAD) {
      Take(r, {'h', s, m}, text);
      return Put(r, {'f', s, m}, text);
    }
    if (i.op == Op::R) {
      Put(r, Take(r, {'f', s, m}, text), text);
      Put(r, {'a', s, m}, text);
    }
    // The backward of an FB comes first: it must not need what its forward makes.
    if (HasBackward(i.op)) {
      Take(r, {'f', s, m}, text);
      Holds(r, {'a', s, m}).erase({'a', s, m});
      if (s + 1 < plan_.stages) Take(r, {'g', s + 1, m}, text);
      if (s > 0) Put(r, {'g', s, m}, text);
      Put(r, {'b', s, m}, text);
    }
    if (HasWeight(i.op)) {
      Take(r, {'b', s, m}, text);
      if (rank.reduced.count(s) + rank.stepped.count(s) > 0) Fail(text + " comes too late");
      rank.sums[s].push_back(m);
    }
    if (HasForward(i.op)) {
      const auto& holders = holders_[static_cast<size_t>(i.stage)];
      if (std::ranges::find(holders, r) == holders.end()) Fail(text + " is astray");
      if (i.stage > 0) Take(r, {'y', i.stage - 1, i.microbatch}, text);
      if (i.stage + 1 < plan_.stages) Put(r, {'y', i.stage, i.microbatch}, text);
      Put(r, {'f', i.stage, i.microbatch}, text);
    }
  }

  /// Messages meet first in first out, whatever they are, and must arrive as expected.
  void Post(int r, const Instruction& i) {
    const std::string text = ToString(i);
    ++ranks_[static_cast<size_t>(r)].open;
    const bool send = WorkOf(i.op) == Work::kSend;
    const bool forward = i.op == Op::SEND_F || i.op == Op::RECV_F;
    auto& edge = send ? edges_[{r, i.peer}] : edges_[{i.peer, r}];
    if (send) {
      edge.first.push_back(Take(r, {forward ? 'y' : 'g', i.stage, i.microbatch}, text));
    } else {
      edge.second.push_back({forward ? 'y' : 'g', i.stage + (forward ? -1 : 1), i.microbatch});
    }
    while (!edge.first.empty() && !edge.second.empty()) {
      if (edge.first.front() != edge.second.front()) Fail(text + " meets another message");
      const int from = send ? r : i.peer, to = send ? i.peer : r;
      Put(to, edge.first.front(), text);
      edge.first.pop_front();
      edge.second.pop_front();
      --ranks_[static_cast<size_t>(from)].open;
      --ranks_[static_cast<size_t>(to)].open;
    }
  }

  /// The weight gradient of a copy, complete?
  void CheckSum(int r, int stage, const std::string& who) {
    std::vector<int> wanted;
    for (const Route& route : plan_.routes) {
      if (route.ranks[static_cast<size_t>(stage)] != r) continue;
      wanted.insert(wanted.end(), route.microbatches.begin(), route.microbatches.end());
    }
    std::vector<int> sum = ranks_[static_cast<size_t>(r)].sums[stage];
    std::ranges::sort(wanted);
    std::ranges::sort(sum);
    if (sum != wanted) Fail(who + " with a wrong gradient");
  }

  bool Alone(int stage) const {
    return holders_[static_cast<size_t>(stage)].size() == 1 && plan_.data_parallel == 1;
  }

  void Reduce(int r, int stage) {
    const std::string text = ToString(StageOp(Op::REDUCE, stage));
    CheckSum(r, stage, text);
    if (Alone(stage)) Fail(text + " of a single copy");
    if (!ranks_[static_cast<size_t>(r)].reduced.insert(stage).second) Fail(text + " repeats");
    ++ranks_[static_cast<size_t>(r)].open;
    const std::vector<int>& holders = holders_[static_cast<size_t>(stage)];
    if (++arrived_[stage] < static_cast<int>(holders.size())) return;
    for (const int holder : holders) --ranks_[static_cast<size_t>(holder)].open;
  }

  void Step(int r, int stage) {
    const std::string text = ToString(StageOp(Op::STEP, stage));
    Rank& rank = ranks_[static_cast<size_t>(r)];
    CheckSum(r, stage, text);
    if (!Alone(stage) && rank.reduced.count(stage) == 0) Fail(text + " before the sum");
    if (!rank.stepped.insert(stage).second) Fail(text + " repeats");
  }

  void CheckEnd() {
    for (size_t r = 0; r < ranks_.size(); ++r) {
      if (ranks_[r].open > 0 || ranks_[r].next < plan_.programs[r].size()) {
        Fail("stuck: rank " + std::to_string(r));
      }
      if (!ranks_[r].holds.empty() || !everywhere_.empty()) Fail("something is left over");
    }
    for (int s = 0; s < plan_.stages; ++s) {
      for (const int holder : holders_[static_cast<size_t>(s)]) {
        CheckSum(holder, s, "end");
        if (ComputeOnly()) continue;
        if (ranks_[static_cast<size_t>(holder)].stepped.count(s) == 0) Fail("a step is missing");
      }
    }
  }

  const Plan& plan_;
  const std::vector<std::vector<int>> holders_;
  std::vector<Rank> ranks_;
  std::set<Value> everywhere_;
  // Messages by sender and receiver: posted by the one and expected by the other.
  std::map<std::pair<int, int>, std::pair<std::deque<Value>, std::deque<Value>>> edges_;
  std::map<int, int> arrived_;
};

}  // namespace

std::string RunSymbolically(const Plan& plan) { return SymbolicRun(plan).Run(); }

namespace {

/// A queue of a rank: what came before its present message or group, and that.
struct FixpointQueue {
  int group = -1;
  Time before = 0, now = 0;  // ends
  Time ready = 0;            // when all that the group sends is made
};

}  // namespace

Timeline FixpointTimes(const Plan& plan, const CostModel& costs) {
  Timeline times;
  times.unit = costs.unit;
  for (const Program& program : plan.programs) times.ranks.emplace_back(program.size());
  // When the output of a forward ('y') or backward ('g') is where it is needed, the weight
  // gradients of a stage are there ('w') and are summed ('r').
  std::map<std::tuple<char, int, int>, Time> there;
  std::map<std::tuple<char, int, int>, Time> begun;  // messages in queues
  for (bool changed = true; changed;) {
    changed = false;
    const auto raise = [&](Time* time, Time to) {
      if (*time < to) changed = true;
      *time = std::max(*time, to);
    };
    for (size_t r = 0; r < plan.programs.size(); ++r) {
      Time lane = 0;
      std::map<int, Time> edge;
      std::map<int, FixpointQueue> queues;
      std::map<std::tuple<char, int, int>, Time> made;  // on this rank
      for (size_t k = 0; k < plan.programs[r].size(); ++k) {
        const Instruction& i = plan.programs[r][k];
        Span& span = times.ranks[r][k];
        const bool forward = i.op == Op::SEND_F || i.op == Op::RECV_F;
        const char kind = forward ? 'y' : 'g';
        if (IsMessage(i.op) && costs.comm.queued()) {
          const bool one = costs.comm.queues == Semantics::kRank;
          FixpointQueue& queue = queues[one ? 0 : i.peer];
          if (i.group < 0 || i.group != queue.group) {
            queue = {.group = i.group, .before = std::max(queue.before, queue.now)};
            for (size_t j = k; j < plan.programs[r].size(); ++j) {
              const Instruction& other = plan.programs[r][j];
              if (j > k && (i.group < 0 || other.group != i.group)) break;
              if (!IsSend(other.op) || (!one && other.peer != i.peer)) continue;
              const char output = other.op == Op::SEND_F ? 'y' : 'g';
              queue.ready = std::max(queue.ready, made[{output, other.stage, other.microbatch}]);
            }
          }
          const int producer = IsSend(i.op) ? i.stage : i.stage + (forward ? -1 : 1);
          Time& begins = begun[{kind, producer, i.microbatch}];
          raise(&begins, std::max(queue.before, queue.ready));
          if (IsSend(i.op)) {
            raise(&begins, edge[i.peer]);
            edge[i.peer] = costs.comm.exclusive() ? begins + costs.comm.occupancy : 0;
          }
          raise(&span.start, begins);
          raise(&span.end, begins + costs.comm.occupancy + costs.comm.latency);
          queue.now = std::max(queue.now, span.end);
          if (IsRecv(i.op)) made[{kind, producer, i.microbatch}] = span.end;
        } else if (WorkOf(i.op) == Work::kSend) {
          raise(&span.start, std::max(edge[i.peer], made[{kind, i.stage, i.microbatch}]));
          raise(&span.end, span.start + costs.comm.occupancy + costs.comm.latency);
          edge[i.peer] = costs.comm.exclusive() ? span.start + costs.comm.occupancy : 0;
          raise(&there[{forward ? 'Y' : 'G', i.stage, i.microbatch}], span.end);
        } else if (WorkOf(i.op) == Work::kRecv) {
          const int producer = i.stage + (forward ? -1 : 1);
          const Time arrived = there[{forward ? 'Y' : 'G', producer, i.microbatch}];
          raise(&span.end, arrived);
          raise(&span.start, arrived - costs.comm.occupancy - costs.comm.latency);
          made[{kind, producer, i.microbatch}] = arrived;
        } else if (i.op == Op::REDUCE) {
          raise(&span.start, there[{'w', i.stage, 0}]);
          raise(&span.end, span.start + costs.stage(i.stage).reduce);
          made[{'r', i.stage, 0}] = span.end;
        } else {
          Time ready = lane;
          if (HasForward(i.op)) ready = std::max(ready, made[{'y', i.stage - 1, i.microbatch}]);
          if (HasBackward(i.op)) {
            ready = std::max(ready, made[{'g', BackStage(i) + 1, BackMicrobatch(i)}]);
          }
          if (i.op == Op::STEP) ready = std::max(ready, made[{'r', i.stage, 0}]);
          raise(&span.start, ready);
          raise(&span.end, span.start + costs.Duration(i));
          lane = span.end;
          if (HasForward(i.op)) made[{'y', i.stage, i.microbatch}] = span.end;
          if (HasBackward(i.op)) made[{'g', BackStage(i), BackMicrobatch(i)}] = span.end;
          if (HasWeight(i.op)) raise(&there[{'w', BackStage(i), 0}], span.end);
        }
      }
    }
  }
  return times;
}

}  // namespace contraflow
