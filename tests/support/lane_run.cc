#include "tests/support/lane_run.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "compiler/plan/access.h"
#include "tests/support/naive.h"

namespace contraflow {
namespace {

struct Wrong : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A component, message or chunk part that has ended: what it was, stage, layer, micro-batch.
using Fact = std::tuple<Op, int, int, int>;

/// Which lane of a rank: a number of its kind and, of messages, the peer.
using LaneKey = std::pair<int, int>;

enum class State : uint8_t { kWaiting, kRunning, kEnded };

struct RankRun {
  std::map<LaneKey, std::vector<size_t>> lanes;  // instructions in order
  std::map<LaneKey, size_t> next;                // of each lane: the first that has not ended
  std::vector<State> states;
  std::vector<std::optional<size_t>> others;  // of a message: the other end of its edge
  std::set<Fact> facts;
  std::map<std::pair<int, Op>, std::map<int, std::vector<int>>> weights;  // by stage, op; layer
  std::vector<bool> made, spoilt;                                         // slots
  std::vector<std::vector<size_t>> on_same_bytes;                         // of each slot
  /// The slots of a value, one for each time that it is made, and how often it was.
  std::map<std::tuple<Value, int, int, int>, std::pair<std::vector<size_t>, size_t>> slot_of;
};

class LaneRun {
 public:
  LaneRun(const Plan& plan, Pace pace, uint64_t seed)
      : plan_(plan), pace_(pace), random_(seed), holders_(HoldersOfStage(plan)), accesses_(plan) {
    for (size_t r = 0; r < plan.programs.size(); ++r) ranks_.push_back(MakeRank(r));
    MatchMessages();
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

  bool Buffers() const { return plan_.level == Level::kBuffer; }
  bool Opaque() const { return plan_.layers == 0; }
  const Program& ProgramOf(size_t r) const { return plan_.programs[r]; }

  RankRun MakeRank(size_t r) const {
    RankRun rank;
    const Program& program = ProgramOf(r);
    rank.states.assign(program.size(), State::kWaiting);
    rank.others.resize(program.size());
    for (size_t i = 0; i < program.size(); ++i) {
      LaneKey key = {static_cast<int>(program[i].lane), program[i].peer};
      if (pace_ == Pace::kProgramOrder) key = {0, 0};
      rank.lanes[key].push_back(i);
      rank.next[key] = 0;
    }
    if (!Buffers()) return rank;
    const std::vector<Slot>& slots = plan_.slots[r];
    rank.made.assign(slots.size(), false);
    rank.spoilt.assign(slots.size(), false);
    rank.on_same_bytes.resize(slots.size());
    std::vector<size_t> by_place(slots.size());
    for (size_t a = 0; a < slots.size(); ++a) {
      by_place[a] = a;
      const Slot& s = slots[a];
      rank.slot_of[{s.value, s.stage, s.layer, s.microbatch}].first.push_back(a);
    }
    std::sort(by_place.begin(), by_place.end(), [&](size_t a, size_t b) {
      return std::tie(slots[a].arena, slots[a].offset) < std::tie(slots[b].arena, slots[b].offset);
    });
    for (auto a = by_place.begin(); a != by_place.end(); ++a) {
      const Slot& s = slots[*a];
      for (auto b = a + 1; b != by_place.end(); ++b) {
        const Slot& o = slots[*b];
        if (o.arena != s.arena || o.offset >= s.offset + s.bytes) break;
        if (o.offset + o.bytes <= s.offset) continue;  // none of no bytes
        rank.on_same_bytes[*a].push_back(*b);
        rank.on_same_bytes[*b].push_back(*a);
      }
    }
    return rank;
  }

  // What happens next.

  struct Move {
    size_t rank;
    size_t index;
    bool begin;
  };

  bool Act() {
    std::vector<Move>& moves = moves_;
    moves.clear();
    for (size_t r = 0; r < ranks_.size(); ++r) {
      for (const auto& [key, order] : ranks_[r].lanes) {
        const size_t at = ranks_[r].next[key];
        if (at == order.size()) continue;
        const size_t index = order[at];
        if (ranks_[r].states[index] == State::kRunning) {
          if (MayEnd(r, index)) moves.push_back({r, index, false});
        } else if (MayBegin(r, index)) {
          moves.push_back({r, index, true});
        }
      }
    }
    if (moves.empty()) return false;
    const Move move = Choose(moves);
    if (move.begin) {
      Begin(move.rank, move.index);
    } else {
      End(move.rank, move.index);
    }
    return true;
  }

  Move Choose(const std::vector<Move>& moves) {
    if (pace_ == Pace::kGreedyLane) {
      std::vector<Move> liked;
      for (const Move& move : moves) {
        const int lane = static_cast<int>(ProgramOf(move.rank)[move.index].lane);
        // Lazily: everything ends as late as it can.
        if (lazy_ ? move.begin : lane % 5 == favourite_) liked.push_back(move);
      }
      if (!liked.empty()) return liked[random_() % liked.size()];
    }
    return moves[random_() % moves.size()];
  }

  bool MayBegin(size_t r, size_t index) const {
    const Instruction& i = ProgramOf(r)[index];
    return std::all_of(i.after.begin(), i.after.begin() + i.after_count, [&](int on) {
      return on >= 0 && static_cast<size_t>(on) < ranks_[r].states.size() &&
             ranks_[r].states[static_cast<size_t>(on)] == State::kEnded;
    });
  }

  /// A message ends when its other side is under way too, REDUCE when all holders are.
  bool MayEnd(size_t r, size_t index) const {
    const Instruction& i = ProgramOf(r)[index];
    if (WorkOf(i.op) == Work::kSend || WorkOf(i.op) == Work::kRecv) {
      const std::optional<size_t> other = ranks_[r].others[index];
      return other && ranks_[static_cast<size_t>(i.peer)].states[*other] != State::kWaiting;
    }
    if (i.op != Op::REDUCE) return true;
    const auto& holders = holders_[static_cast<size_t>(i.stage)];
    return std::all_of(holders.begin(), holders.end(), [&](int holder) {
      const auto rank = static_cast<size_t>(holder);
      for (size_t k = 0; k < ProgramOf(rank).size(); ++k) {
        const Instruction& other = ProgramOf(rank)[k];
        if (other.op == Op::REDUCE && other.stage == i.stage) {
          return ranks_[rank].states[k] != State::kWaiting;
        }
      }
      return false;
    });
  }

  /// Of every message, the instruction at the other end of its edge: as many of the edge come
  /// before it.
  void MatchMessages() {
    std::map<std::tuple<size_t, size_t, bool>, std::vector<size_t>>
        edges;  // from, to, whether SEND
    for (size_t r = 0; r < ranks_.size(); ++r) {
      for (size_t k = 0; k < ProgramOf(r).size(); ++k) {
        const Instruction& i = ProgramOf(r)[k];
        const auto peer = static_cast<size_t>(i.peer);
        if (WorkOf(i.op) == Work::kSend) edges[{r, peer, true}].push_back(k);
        if (WorkOf(i.op) == Work::kRecv) edges[{peer, r, false}].push_back(k);
      }
    }
    for (const auto& [edge, messages] : edges) {
      const auto& [from, to, send] = edge;
      const auto ends = edges.find({from, to, !send});
      auto& others = ranks_[send ? from : to].others;
      for (size_t k = 0; k < messages.size(); ++k) {
        if (ends != edges.end() && k < ends->second.size()) others[messages[k]] = ends->second[k];
      }
    }
  }

  void Begin(size_t r, size_t index) {
    const Instruction& i = ProgramOf(r)[index];
    ranks_[r].states[index] = State::kRunning;
    CheckInputs(r, i);
    Touch(r, i, true);
  }

  void End(size_t r, size_t index) {
    const Instruction& i = ProgramOf(r)[index];
    RankRun& rank = ranks_[r];
    Touch(r, i, false);
    rank.states[index] = State::kEnded;
    for (auto& [key, order] : rank.lanes) {
      size_t& next = rank.next[key];
      while (next < order.size() && rank.states[order[next]] == State::kEnded) ++next;
    }
    if (WorkOf(i.op) == Work::kRecv) {
      const Instruction& sent = ProgramOf(static_cast<size_t>(i.peer))[*rank.others[index]];
      const int producer = i.stage + (i.op == Op::RECV_F ? -1 : 1);
      if (sent.op != (i.op == Op::RECV_F ? Op::SEND_F : Op::SEND_B) || sent.stage != producer ||
          sent.microbatch != i.microbatch) {
        Fail(ToString(i) + " meets another message");
      }
    }
    for (const Fact& fact : FactsOf(i)) {
      if (!rank.facts.insert(fact).second) Fail(ToString(i) + " repeats");
    }
  }

  /// A chunk instruction is the last component of each of its chains.
  std::vector<Fact> FactsOf(const Instruction& i) const {
    if (WorkOf(i.op) != Work::kCompute) return {{i.op, i.stage, i.layer, i.microbatch}};
    std::vector<Fact> facts;
    if (HasForward(i.op)) facts.push_back({Op::F, i.stage, 0, i.microbatch});
    if (i.op == Op::R) facts.push_back({Op::R, i.stage, 0, i.microbatch});
    if (HasBackward(i.op)) facts.push_back({Op::B, BackStage(i), 0, BackMicrobatch(i)});
    if (HasWeight(i.op)) facts.push_back({Op::W, BackStage(i), 0, BackMicrobatch(i)});
    return facts;
  }

  // What must have ended.

  void Need(size_t r, const Instruction& i, const Fact& fact) const {
    if (ranks_[r].facts.count(fact) == 0) {
      Fail(ToString(i) + " begins before an input of it is there");
    }
  }

  /// Whether a layer has a component: dense ones no all-to-all, plain ones no MLP either.
  bool InLayer(int s, int l, Op op) const {
    if (plan_.stage_layers.empty()) return true;
    const LayerKind kind = plan_.stage_layers[static_cast<size_t>(s)][static_cast<size_t>(l)];
    if (kind == LayerKind::kMoe) return true;
    if (op == Op::ATTN_F || op == Op::ATTN_B || op == Op::ATTN_W) return true;
    return kind == LayerKind::kDense && (op == Op::MLP_F || op == Op::MLP_B || op == Op::MLP_W);
  }
  int LayersOf(int s) const {
    return plan_.stage_layers.empty()
               ? plan_.layers
               : static_cast<int>(plan_.stage_layers[static_cast<size_t>(s)].size());
  }
  using Part = std::pair<Op, int>;
  /// The components of a stage's chain, in order.
  std::vector<Part> ForwardOf(int s) const {
    std::vector<Part> chain;
    for (int l = 0; l < LayersOf(s); ++l) {
      for (const Op op : {Op::ATTN_F, Op::DISPATCH_F, Op::MLP_F, Op::COMBINE_F}) {
        if (InLayer(s, l, op)) chain.emplace_back(op, l);
      }
    }
    return chain;
  }
  std::vector<Part> BackwardOf(int s) const {
    std::vector<Part> chain;
    for (int l = LayersOf(s); l-- > 0;) {
      for (const Op op : {Op::COMBINE_B, Op::MLP_B, Op::DISPATCH_B, Op::ATTN_B}) {
        if (InLayer(s, l, op)) chain.emplace_back(op, l);
      }
    }
    return chain;
  }
  Fact ForwardEnd(int s, int m) const {
    if (Opaque()) return {Op::F, s, 0, m};
    const auto [op, layer] = ForwardOf(s).back();
    return {op, s, layer, m};
  }
  Fact BackwardEnd(int s, int m) const {
    return Opaque() ? Fact{Op::B, s, 0, m} : Fact{Op::ATTN_B, s, 0, m};
  }
  int OwnerOf(int s, int m) const {
    for (const Route& route : plan_.routes) {
      if (std::count(route.microbatches.begin(), route.microbatches.end(), m) > 0) {
        return route.ranks[static_cast<size_t>(s)];
      }
    }
    return -1;
  }

  void NeedInput(size_t r, const Instruction& i, int s, int m) const {
    if (s == 0) return;
    const bool here = OwnerOf(s - 1, m) == static_cast<int>(r);
    Need(r, i, here ? ForwardEnd(s - 1, m) : Fact{Op::RECV_F, s, -1, m});
  }
  void NeedGradient(size_t r, const Instruction& i, int s, int m) const {
    Need(r, i, ForwardEnd(s, m));
    for (const Instruction& other : ProgramOf(r)) {
      // All that runs again, of the whole chunk.
      if (IsRecompute(other.op) && other.stage == s && other.microbatch == m) {
        Need(r, i, {other.op, s, Opaque() ? 0 : other.layer, m});
      }
      if (!IsHostCopy(other.op) || other.stage != s || other.microbatch != m) continue;
      Need(r, i, {Op::RELOAD, s, -1, m});
    }
    if (s + 1 == plan_.stages) return;
    const bool here = OwnerOf(s + 1, m) == static_cast<int>(r);
    Need(r, i, here ? BackwardEnd(s + 1, m) : Fact{Op::RECV_B, s, -1, m});
  }

  /// Of its cell, all that comes before it in the forward and runs again too: a part of every
  /// layer.
  void NeedAgain(size_t r, const Instruction& i) const {
    constexpr std::array kOrder = {Op::ATTN_R, Op::DISPATCH_R, Op::MLP_R, Op::COMBINE_R};
    const auto turn = [&](const Instruction& x) {
      return std::pair(int{x.layer}, std::find(kOrder.begin(), kOrder.end(), x.op));
    };
    for (const Instruction& other : ProgramOf(r)) {
      if (!IsRecompute(other.op) || other.stage != i.stage || other.microbatch != i.microbatch) {
        continue;
      }
      if (turn(other) < turn(i)) Need(r, i, {other.op, other.stage, other.layer, i.microbatch});
    }
  }

  void CheckInputs(size_t r, const Instruction& i) {
    const int s = i.stage, m = i.microbatch, l = i.layer;
    if (m >= 0 && WorkOf(i.op) != Work::kCompute && OwnerOf(s, m) != static_cast<int>(r)) {
      Fail(ToString(i) + " is astray");
    }
    const auto need = [&](Op op, int layer) { Need(r, i, {op, s, layer, m}); };
    // The one before it in its chain; false for the first.
    const auto chain = [&](const std::vector<Part>& parts) {
      const auto own = std::find(parts.begin(), parts.end(), Part{i.op, l});
      if (own == parts.end()) Fail(ToString(i) + " is of no such layer");
      if (own != parts.begin()) need((own - 1)->first, (own - 1)->second);
      return own != parts.begin();
    };
    switch (i.op) {
      case Op::ATTN_F:
      case Op::DISPATCH_F:
      case Op::MLP_F:
      case Op::COMBINE_F:
        if (!chain(ForwardOf(s))) NeedInput(r, i, s, m);
        return;
      case Op::COMBINE_B:
      case Op::MLP_B:
      case Op::DISPATCH_B:
      case Op::ATTN_B:
        if (!chain(BackwardOf(s))) NeedGradient(r, i, s, m);
        return;
      case Op::MLP_W:
        need(Op::MLP_B, l);
        return ranks_[r].weights[{s, i.op}][l].push_back(m);
      case Op::ATTN_W:
        need(Op::ATTN_B, l);
        return ranks_[r].weights[{s, i.op}][l].push_back(m);
      case Op::SEND_F:
        return Need(r, i, ForwardEnd(s, m));
      case Op::SEND_B:
        return Need(r, i, BackwardEnd(s, m));
      case Op::RECV_F:
      case Op::RECV_B:
        return;
      case Op::REDUCE:
        if (!Shared(s)) Fail(ToString(i) + " of a single copy");
        return CheckWeights(r, s);
      case Op::STEP:
        CheckWeights(r, s);
        if (Shared(s)) Need(r, i, {Op::REDUCE, s, -1, -1});
        return;
      case Op::F:
      case Op::B:
      case Op::W:
      case Op::BW:
      case Op::FB:
        return CheckChunk(r, i);
      case Op::R:
      case Op::OFFLOAD:
        return Need(r, i, ForwardEnd(s, m));
      case Op::RELOAD:
        return Need(r, i, {Op::OFFLOAD, s, -1, m});
      case Op::ATTN_R:
      case Op::DISPATCH_R:
      case Op::MLP_R:
      case Op::COMBINE_R:
        Need(r, i, ForwardEnd(s, m));
        return NeedAgain(r, i);
    }
  }

  void CheckChunk(size_t r, const Instruction& i) {
    const int s = BackStage(i), m = BackMicrobatch(i);
    if (HasForward(i.op)) NeedInput(r, i, i.stage, i.microbatch);
    if (HasBackward(i.op)) NeedGradient(r, i, s, m);
    if (!HasWeight(i.op)) return;
    if (!HasBackward(i.op)) Need(r, i, {Op::B, s, 0, m});
    ranks_[r].weights[{s, Op::W}][0].push_back(m);
  }

  bool Shared(int s) const {
    return holders_[static_cast<size_t>(s)].size() > 1 || plan_.data_parallel > 1 ||
           plan_.expert_parallel > 1;
  }

  /// The weight gradients of a copy: every micro-batch of its routes, once, in one order for all
  /// components, and ended.
  void CheckWeights(size_t r, int s) {
    std::vector<int> wanted;
    for (const Route& route : plan_.routes) {
      if (route.ranks[static_cast<size_t>(s)] != static_cast<int>(r)) continue;
      wanted.insert(wanted.end(), route.microbatches.begin(), route.microbatches.end());
    }
    std::sort(wanted.begin(), wanted.end());
    const std::vector<Op> ops = Opaque() ? std::vector{Op::W} : std::vector{Op::MLP_W, Op::ATTN_W};
    const std::vector<int> order = ranks_[r].weights[{s, ops.back()}][0];
    std::vector<int> added = order;
    std::sort(added.begin(), added.end());
    if (added != wanted) Fail("a wrong weight gradient");
    for (const Op op : ops) {
      for (int l = 0; l < std::max(LayersOf(s), 1); ++l) {
        if (!Opaque() && !InLayer(s, l, op)) continue;
        if (ranks_[r].weights[{s, op}][l] != order) Fail("a weight gradient of another order");
        for (const int m : wanted) {
          if (ranks_[r].facts.count({op, s, l, m}) == 0) Fail("a weight gradient under way");
        }
      }
    }
  }

  // Bytes.

  void Touch(size_t r, const Instruction& i, bool begin) {
    if (!Buffers()) return;
    RankRun& rank = ranks_[r];
    accesses_.Of(i, &touched_);
    bool moved = false;
    for (const Access& access : touched_) {
      const auto found =
          rank.slot_of.find({access.value, access.stage, access.layer, access.microbatch});
      if (found == rank.slot_of.end()) continue;  // of no bytes
      auto& [slots, made] = found->second;
      if (begin && access.makes && ++made > slots.size()) Fail(ToString(i) + " makes too much");
      const size_t slot = slots[std::max<size_t>(made, 1) - 1];
      if (begin && access.makes) {
        rank.made[slot] = true;
        for (const size_t other : rank.on_same_bytes[slot]) rank.spoilt[other] = true;
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

  void CheckEnd() {
    for (size_t r = 0; r < ranks_.size(); ++r) {
      for (const State state : ranks_[r].states) {
        if (state != State::kEnded) Fail("stuck: rank " + std::to_string(r));
      }
    }
    for (int s = 0; s < plan_.stages; ++s) {
      for (const int holder : holders_[static_cast<size_t>(s)]) {
        const auto rank = static_cast<size_t>(holder);
        CheckWeights(rank, s);
        if (ranks_[rank].facts.count({Op::STEP, s, -1, -1}) == 0) Fail("a step is missing");
      }
    }
  }

  const Plan& plan_;
  const Pace pace_;
  std::mt19937_64 random_;
  const std::vector<std::vector<int>> holders_;
  const Accesses accesses_;
  std::vector<RankRun> ranks_;
  std::vector<Access> touched_;
  std::vector<Move> moves_;  // all that may happen next
  int favourite_ = 0;
  bool lazy_ = false;
};

}  // namespace

std::string RunInLanes(const Plan& plan, Pace pace, uint64_t seed) {
  return LaneRun(plan, pace, seed).Run();
}

std::string RunAtAnyPace(const Plan& plan, std::mt19937_64* random) {
  if (plan.level < Level::kComponent) return RunSymbolically(plan);
  std::string wrong;
  for (const Pace pace : {Pace::kProgramOrder, Pace::kRandom, Pace::kGreedyLane}) {
    if (wrong.empty()) wrong = RunInLanes(plan, pace, (*random)());
  }
  return wrong;
}

}  // namespace contraflow
