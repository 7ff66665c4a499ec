#include "tests/support/lane_run.h"

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "compiler/plan/access.h"
#include "tests/support/lane_inputs.h"
#include "tests/support/naive.h"

namespace contraflow {
namespace {

struct Wrong : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Lane of a rank: its kind and, for messages, the peer.
using LaneKey = std::pair<int, int>;

enum class State : uint8_t { kWaiting, kRunning, kEnded };

/// One touch of a value that has bytes.
struct Touched {
  size_t value;  // its number on the rank
  bool makes;
};

/// The slots of a rank, and what touches them.
struct RankBytes {
  std::vector<std::vector<size_t>> on_same_bytes;  // of each slot
  std::vector<std::vector<size_t>> slots_of;       // of a value: one for each time it is made
  std::vector<std::vector<Touched>> touched;       // by each instruction
};

RankBytes BytesOfRank(const Plan& plan, const Accesses& accesses, size_t r) {
  RankBytes bytes;
  const std::vector<Slot>& slots = plan.slots[r];
  std::map<std::tuple<Value, int, int, int>, size_t> numbers;
  bytes.on_same_bytes.resize(slots.size());
  std::vector<size_t> by_place(slots.size());
  for (size_t a = 0; a < slots.size(); ++a) {
    by_place[a] = a;
    const Slot& s = slots[a];
    const size_t value =
        numbers.emplace(std::tuple(s.value, s.stage, s.layer, s.microbatch), numbers.size())
            .first->second;
    bytes.slots_of.resize(numbers.size());
    bytes.slots_of[value].push_back(a);
  }
  std::ranges::sort(by_place, [&](size_t a, size_t b) {
    return std::tie(slots[a].arena, slots[a].offset) < std::tie(slots[b].arena, slots[b].offset);
  });
  for (auto a = by_place.begin(); a != by_place.end(); ++a) {
    const Slot& s = slots[*a];
    for (auto b = a + 1; b != by_place.end(); ++b) {
      const Slot& o = slots[*b];
      if (o.arena != s.arena || o.offset >= s.offset + s.bytes) break;
      if (o.offset + o.bytes <= s.offset) continue;  // none of no bytes
      bytes.on_same_bytes[*a].push_back(*b);
      bytes.on_same_bytes[*b].push_back(*a);
    }
  }
  std::vector<Access> all;
  for (const Instruction& i : plan.programs[r]) {
    accesses.Of(i, &all);
    std::vector<Touched>& touched = bytes.touched.emplace_back();
    for (const Access& access : all) {
      const auto found =
          numbers.find({access.value, access.stage, access.layer, access.microbatch});
      if (found != numbers.end()) touched.push_back({found->second, access.makes});  // has bytes
    }
  }
  return bytes;
}

/// The part that does not change from run to run of a plan.
class Lanes {
 public:
  explicit Lanes(const Plan& of)
      : plan(of), inputs(InputsInLanes(of)), holders(HoldersOfStage(of)) {
    const Accesses accesses(plan);
    for (size_t r = 0; r < plan.programs.size(); ++r) {
      if (plan.level == Level::kBuffer) bytes.push_back(BytesOfRank(plan, accesses, r));
      others.emplace_back(plan.programs[r].size());
      reduces.emplace_back(static_cast<size_t>(plan.stages));
      for (size_t k = plan.programs[r].size(); k-- > 0;) {
        const Instruction& i = plan.programs[r][k];
        if (i.op == Op::REDUCE) reduces[r][static_cast<size_t>(i.stage)] = k;
      }
    }
    MatchMessages();
  }

  const Plan& plan;
  const std::vector<RankInputs> inputs;
  const std::vector<std::vector<int>> holders;
  std::vector<RankBytes> bytes;  // empty below level buffer
  // Tables of each rank.
  std::vector<std::vector<std::optional<size_t>>> others;   // of a message: the other end
  std::vector<std::vector<std::optional<size_t>>> reduces;  // of a stage: its first REDUCE

 private:
  /// Finds of every message the instruction at the other end of its edge: as many of the edge come
  /// before it.
  void MatchMessages() {
    std::map<std::tuple<size_t, size_t, bool>, std::vector<size_t>>
        edges;  // from, to, whether SEND
    for (size_t r = 0; r < plan.programs.size(); ++r) {
      for (size_t k = 0; k < plan.programs[r].size(); ++k) {
        const Instruction& i = plan.programs[r][k];
        const auto peer = static_cast<size_t>(i.peer);
        if (WorkOf(i.op) == Work::kSend) edges[{r, peer, true}].push_back(k);
        if (WorkOf(i.op) == Work::kRecv) edges[{peer, r, false}].push_back(k);
      }
    }
    for (const auto& [edge, messages] : edges) {
      const auto& [from, to, send] = edge;
      const auto ends = edges.find({from, to, !send});
      auto& ours = others[send ? from : to];
      for (size_t k = 0; k < messages.size(); ++k) {
        if (ends != edges.end() && k < ends->second.size()) ours[messages[k]] = ends->second[k];
      }
    }
  }
};

struct LaneQueue {
  std::vector<size_t> order;  // instructions
  size_t next = 0;            // the first that has not ended
};

struct RankRun {
  std::vector<LaneQueue> lanes;
  std::vector<size_t> lane_of;  // each instruction
  std::vector<State> states;
  std::vector<bool> facts;
  std::vector<std::vector<int>> sums;  // of weight gradients: micro-batches as they are added
  std::vector<bool> made, spoilt;      // slots
  std::vector<size_t> times_made;      // values
};

class LaneRun {
 public:
  LaneRun(const Lanes& lanes, PacedRun run) : lanes_(lanes), plan_(lanes.plan), pace_(run.pace) {
    random_.seed(run.seed);
    for (size_t r = 0; r < plan_.programs.size(); ++r) ranks_.push_back(MakeRank(r));
    favourite_ = static_cast<int>(random_() % 5);
    lazy_ = random_() % 2 == 0;
  }

  std::string Run() {
    try {
      while (Act()) {
      }
      CheckEnd();
    } catch (const Wrong& wrong) {
      return wrong.what();
    }
    return "";
  }

 private:
  [[noreturn]] static void Fail(const std::string& what) { throw Wrong(what); }

  const Program& ProgramOf(size_t r) const { return plan_.programs[r]; }

  RankRun MakeRank(size_t r) const {
    RankRun rank;
    const Program& program = ProgramOf(r);
    std::map<LaneKey, std::vector<size_t>> lanes;
    for (size_t k = 0; k < program.size(); ++k) {
      LaneKey key = {static_cast<int>(program[k].lane), program[k].peer};
      if (pace_ == Pace::kProgramOrder) key = {0, 0};
      lanes[key].push_back(k);
    }
    rank.lane_of.resize(program.size());
    for (auto& [key, order] : lanes) {
      for (const size_t k : order) rank.lane_of[k] = rank.lanes.size();
      rank.lanes.push_back({std::move(order)});
    }
    rank.states.assign(program.size(), State::kWaiting);
    rank.facts.assign(lanes_.inputs[r].facts, false);
    rank.sums.resize(lanes_.inputs[r].sums);
    if (lanes_.bytes.empty()) return rank;
    rank.made.assign(lanes_.bytes[r].on_same_bytes.size(), false);
    rank.spoilt = rank.made;
    rank.times_made.assign(lanes_.bytes[r].slots_of.size(), 0);
    return rank;
  }

  // The next event.

  struct Move {
    size_t rank;
    size_t index;
    bool begin;
  };

  bool Act() {
    moves_.clear();
    for (size_t r = 0; r < ranks_.size(); ++r) {
      for (const LaneQueue& lane : ranks_[r].lanes) {
        if (lane.next == lane.order.size()) continue;
        const size_t index = lane.order[lane.next];
        const bool begin = ranks_[r].states[index] == State::kWaiting;
        if (begin ? MayBegin(r, index) : MayEnd(r, index)) moves_.push_back({r, index, begin});
      }
    }
    if (moves_.empty()) return false;
    const Move move = Choose();
    if (move.begin) {
      Begin(move.rank, move.index);
    } else {
      End(move.rank, move.index);
    }
    return true;
  }

  Move Choose() {
    if (pace_ == Pace::kGreedyLane) {
      liked_.clear();
      for (const Move& move : moves_) {
        const int lane = static_cast<int>(ProgramOf(move.rank)[move.index].lane);
        // Lazily: everything ends as late as it can.
        if (lazy_ ? move.begin : lane % 5 == favourite_) liked_.push_back(move);
      }
      if (!liked_.empty()) return liked_[random_() % liked_.size()];
    }
    return moves_[random_() % moves_.size()];
  }

  bool MayBegin(size_t r, size_t index) const {
    const Instruction& i = ProgramOf(r)[index];
    return std::all_of(i.after.begin(), i.after.begin() + i.after_count, [&](int on) {
      return on >= 0 && static_cast<size_t>(on) < ranks_[r].states.size() &&
             ranks_[r].states[static_cast<size_t>(on)] == State::kEnded;
    });
  }

  bool UnderWay(int rank, std::optional<size_t> index) const {
    return index && ranks_[static_cast<size_t>(rank)].states[*index] != State::kWaiting;
  }

  /// A message ends when its other side is under way too, REDUCE when all holders are.
  bool MayEnd(size_t r, size_t index) const {
    const Instruction& i = ProgramOf(r)[index];
    if (WorkOf(i.op) == Work::kSend || WorkOf(i.op) == Work::kRecv) {
      return UnderWay(i.peer, lanes_.others[r][index]);
    }
    if (i.op != Op::REDUCE) return true;
    const auto stage = static_cast<size_t>(i.stage);
    const std::vector<int>& holders = lanes_.holders[stage];
    return std::ranges::all_of(holders, [&](int holder) {
      return UnderWay(holder, lanes_.reduces[static_cast<size_t>(holder)][stage]);
    });
  }

  void Begin(size_t r, size_t index) {
    const Instruction& i = ProgramOf(r)[index];
    const LaneInputs& inputs = lanes_.inputs[r].instructions[index];
    RankRun& rank = ranks_[r];
    rank.states[index] = State::kRunning;
    if (!inputs.wrong.empty()) Fail(inputs.wrong);
    for (const size_t fact : inputs.needs) {
      if (!rank.facts[fact]) Fail(ToString(i) + " begins before an input of it is there");
    }
    if (inputs.takes_weights) CheckWeights(r, i.stage);
    if (inputs.sum >= 0) rank.sums[static_cast<size_t>(inputs.sum)].push_back(BackMicrobatch(i));
    Touch(r, index, true);
  }

  void End(size_t r, size_t index) {
    const Instruction& i = ProgramOf(r)[index];
    RankRun& rank = ranks_[r];
    Touch(r, index, false);
    rank.states[index] = State::kEnded;
    ++rank.lanes[rank.lane_of[index]].next;
    if (WorkOf(i.op) == Work::kRecv) {
      const Instruction& sent = ProgramOf(static_cast<size_t>(i.peer))[*lanes_.others[r][index]];
      const int producer = i.stage + (i.op == Op::RECV_F ? -1 : 1);
      if (sent.op != (i.op == Op::RECV_F ? Op::SEND_F : Op::SEND_B) || sent.stage != producer ||
          sent.microbatch != i.microbatch) {
        Fail(ToString(i) + " meets another message");
      }
    }
    for (const size_t fact : lanes_.inputs[r].instructions[index].makes) {
      if (rank.facts[fact]) Fail(ToString(i) + " repeats");
      rank.facts[fact] = true;
    }
  }

  /// The weight gradients of a copy: every micro-batch of its routes, once, in one order for all
  /// components, and ended.
  void CheckWeights(size_t r, int s) const {
    const RankRun& rank = ranks_[r];
    const LaneWeights& weights = lanes_.inputs[r].stages[static_cast<size_t>(s)];
    const std::vector<int>& order = rank.sums[weights.sums.front()];
    std::vector<int> added = order;
    std::ranges::sort(added);
    if (added != weights.microbatches) Fail("a wrong weight gradient");
    for (const size_t sum : weights.sums) {
      if (rank.sums[sum] != order) Fail("a weight gradient of another order");
    }
    for (const size_t fact : weights.facts) {
      if (!rank.facts[fact]) Fail("a weight gradient under way");
    }
  }

  // Bytes.

  void Touch(size_t r, size_t index, bool begin) {
    if (lanes_.bytes.empty()) return;
    const Instruction& i = ProgramOf(r)[index];
    const RankBytes& bytes = lanes_.bytes[r];
    RankRun& rank = ranks_[r];
    bool moved = false;
    for (const auto& [value, makes] : bytes.touched[index]) {
      const std::vector<size_t>& slots = bytes.slots_of[value];
      size_t& made = rank.times_made[value];
      if (begin && makes && ++made > slots.size()) Fail(ToString(i) + " makes too much");
      const size_t slot = slots[std::max<size_t>(made, 1) - 1];
      if (begin && makes) {
        rank.made[slot] = true;
        for (const size_t other : bytes.on_same_bytes[slot]) rank.spoilt[other] = true;
        rank.spoilt[slot] = false;
      }
      if (!rank.made[slot] || rank.spoilt[slot]) {
        Fail(ToString(i) + " finds other bytes in " + ToString(plan_.slots[r][slot]));
      }
      const Work work = WorkOf(i.op);
      if (work == Work::kSend || work == Work::kRecv) {
        moved = true;
        if (i.slot != static_cast<int>(slot)) Fail(ToString(i) + " moves something else");
      }
    }
    if (!moved && i.slot >= 0) Fail(ToString(i) + " moves something else");
  }

  void CheckEnd() const {
    for (size_t r = 0; r < ranks_.size(); ++r) {
      for (const State state : ranks_[r].states) {
        if (state != State::kEnded) Fail("stuck: rank " + std::to_string(r));
      }
    }
    for (int s = 0; s < plan_.stages; ++s) {
      const auto stage = static_cast<size_t>(s);
      for (const int holder : lanes_.holders[stage]) {
        const auto r = static_cast<size_t>(holder);
        CheckWeights(r, s);
        if (!ranks_[r].facts[lanes_.inputs[r].stages[stage].step]) Fail("a step is missing");
      }
    }
  }

  const Lanes& lanes_;
  const Plan& plan_;
  const Pace pace_;
  std::mt19937_64 random_;
  std::vector<RankRun> ranks_;
  std::vector<Move> moves_, liked_;  // all that may happen next; of it, what the pace prefers
  int favourite_ = 0;
  bool lazy_ = false;
};

}  // namespace

std::string RunInLanes(const Plan& plan, const std::vector<PacedRun>& runs) {
  const Lanes lanes(plan);
  std::string wrong;
  for (size_t k = 0; k < runs.size() && wrong.empty(); ++k) wrong = LaneRun(lanes, runs[k]).Run();
  return wrong;
}

std::string RunAtAnyPace(const Plan& plan, std::mt19937_64* random) {
  if (plan.level < Level::kComponent) return RunSymbolically(plan);
  return RunInLanes(plan, {{Pace::kProgramOrder, (*random)()},
                           {Pace::kRandom, (*random)()},
                           {Pace::kGreedyLane, (*random)()}});
}

}  // namespace contraflow
