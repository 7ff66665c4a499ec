#include "tests/support/lane_inputs.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

namespace contraflow {
namespace {

/// Work that has ended: what it was, stage, layer, micro-batch.
using Fact = std::tuple<Op, int, int, int>;

/// A component of a chain, and its layer.
using Part = std::pair<Op, int>;

class InputMaker {
 public:
  InputMaker(const Plan& plan, int rank)
      : plan_(plan),
        holders_(HoldersOfStage(plan)),
        rank_(rank),
        program_(plan.programs[static_cast<size_t>(rank)]) {}

  RankInputs Make() {
    for (const Instruction& i : program_) {
      if (IsRecompute(i.op) || IsHostCopy(i.op)) again_[{i.stage, i.microbatch}].push_back(&i);
    }
    for (const Instruction& i : program_) {
      now_ = &inputs_.instructions.emplace_back();
      at_ = &i;
      Take();
      for (const Fact& fact : FactsOf(i)) now_->makes.push_back(Number(fact));
    }
    for (int s = 0; s < plan_.stages; ++s) inputs_.stages.push_back(WeightsOf(s));
    inputs_.facts = numbers_.size();
    inputs_.sums = sums_.size();
    return std::move(inputs_);
  }

 private:
  bool Opaque() const { return plan_.layers == 0; }

  size_t Number(const Fact& fact) { return numbers_.emplace(fact, numbers_.size()).first->second; }
  size_t Sum(int s, Op op, int l) {
    return sums_.emplace(std::tuple(s, op, l), sums_.size()).first->second;
  }
  void Need(const Fact& fact) { now_->needs.push_back(Number(fact)); }
  void Wrong(const std::string& what) { now_->wrong = ToString(*at_) + what; }

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

  /// Whether a layer has a component: dense ones no all-to-all, plain ones no MLP either.
  bool InLayer(int s, int l, Op op) const {
    const LayerKind kind = plan_.KindOf(s, l);
    if (kind == LayerKind::kMoe) return true;
    if (op == Op::ATTN_F || op == Op::ATTN_B || op == Op::ATTN_W) return true;
    return kind == LayerKind::kDense && (op == Op::MLP_F || op == Op::MLP_B || op == Op::MLP_W);
  }
  /// The components of a stage's chain, in order.
  std::vector<Part> ForwardOf(int s) const {
    std::vector<Part> chain;
    for (int l = 0; l < plan_.LayersOf(s); ++l) {
      for (const Op op : {Op::ATTN_F, Op::DISPATCH_F, Op::MLP_F, Op::COMBINE_F}) {
        if (InLayer(s, l, op)) chain.emplace_back(op, l);
      }
    }
    return chain;
  }
  std::vector<Part> BackwardOf(int s) const {
    std::vector<Part> chain;
    for (int l = plan_.LayersOf(s); l-- > 0;) {
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
  bool Here(int s, int m) const {
    for (const Route& route : plan_.routes) {
      if (std::ranges::count(route.microbatches, m) > 0) {
        return route.ranks[static_cast<size_t>(s)] == rank_;
      }
    }
    return false;
  }
  bool Shared(int s) const {
    return holders_[static_cast<size_t>(s)].size() > 1 || plan_.data_parallel > 1 ||
           plan_.expert_parallel > 1;
  }

  void NeedInput(int s, int m) {
    if (s == 0) return;
    Need(Here(s - 1, m) ? ForwardEnd(s - 1, m) : Fact{Op::RECV_F, s, -1, m});
  }
  void NeedGradient(int s, int m) {
    Need(ForwardEnd(s, m));
    // All that runs again, of the whole chunk, and all that went to the host.
    for (const Instruction* other : again_[{s, m}]) {
      if (IsHostCopy(other->op)) {
        Need({Op::RELOAD, s, -1, m});
      } else {
        Need({other->op, s, Opaque() ? 0 : other->layer, m});
      }
    }
    if (s + 1 == plan_.stages) return;
    Need(Here(s + 1, m) ? BackwardEnd(s + 1, m) : Fact{Op::RECV_B, s, -1, m});
  }

  /// The instruction needs all of its cell that comes before it in the forward and runs again too:
  /// a part of every layer.
  void NeedAgain(const Instruction& i) {
    constexpr std::array kOrder = {Op::ATTN_R, Op::DISPATCH_R, Op::MLP_R, Op::COMBINE_R};
    const auto turn = [&](const Instruction& x) {
      return std::pair(int{x.layer}, std::ranges::find(kOrder, x.op));
    };
    for (const Instruction* other : again_[{i.stage, i.microbatch}]) {
      if (!IsRecompute(other->op) || turn(*other) >= turn(i)) continue;
      Need({other->op, other->stage, other->layer, i.microbatch});
    }
  }

  /// The one before it in its chain; false for the first.
  bool NeedBefore(const std::vector<Part>& chain) {
    const auto own = std::ranges::find(chain, Part{at_->op, at_->layer});
    if (own == chain.end()) Wrong(" is of no such layer");
    if (own == chain.end() || own == chain.begin()) return false;
    Need({(own - 1)->first, at_->stage, (own - 1)->second, at_->microbatch});
    return true;
  }

  void NeedChunk(const Instruction& i) {
    const int s = BackStage(i), m = BackMicrobatch(i);
    if (HasForward(i.op)) NeedInput(i.stage, i.microbatch);
    if (HasBackward(i.op)) NeedGradient(s, m);
    if (!HasWeight(i.op)) return;
    if (!HasBackward(i.op)) Need({Op::B, s, 0, m});
    now_->sum = static_cast<int>(Sum(s, Op::W, 0));
  }

  void Take() {
    const Instruction& i = *at_;
    const int s = i.stage, m = i.microbatch, l = i.layer;
    if (m >= 0 && WorkOf(i.op) != Work::kCompute && !Here(s, m)) Wrong(" is astray");
    switch (i.op) {
      case Op::ATTN_F:
      case Op::DISPATCH_F:
      case Op::MLP_F:
      case Op::COMBINE_F:
        if (!NeedBefore(ForwardOf(s))) NeedInput(s, m);
        return;
      case Op::COMBINE_B:
      case Op::MLP_B:
      case Op::DISPATCH_B:
      case Op::ATTN_B:
        if (!NeedBefore(BackwardOf(s))) NeedGradient(s, m);
        return;
      case Op::MLP_W:
      case Op::ATTN_W:
        Need({i.op == Op::MLP_W ? Op::MLP_B : Op::ATTN_B, s, l, m});
        now_->sum = static_cast<int>(Sum(s, i.op, l));
        return;
      case Op::SEND_F:
        return Need(ForwardEnd(s, m));
      case Op::SEND_B:
        return Need(BackwardEnd(s, m));
      case Op::RECV_F:
      case Op::RECV_B:
        return;
      case Op::REDUCE:
        if (!Shared(s)) Wrong(" of a single copy");
        now_->takes_weights = true;
        return;
      case Op::STEP:
        if (Shared(s)) Need({Op::REDUCE, s, -1, -1});
        now_->takes_weights = true;
        return;
      case Op::F:
      case Op::B:
      case Op::W:
      case Op::BW:
      case Op::FB:
        return NeedChunk(i);
      case Op::R:
      case Op::OFFLOAD:
        return Need(ForwardEnd(s, m));
      case Op::RELOAD:
        return Need({Op::OFFLOAD, s, -1, m});
      case Op::ATTN_R:
      case Op::DISPATCH_R:
      case Op::MLP_R:
      case Op::COMBINE_R:
        Need(ForwardEnd(s, m));
        return NeedAgain(i);
    }
  }

  LaneWeights WeightsOf(int s) {
    LaneWeights weights;
    weights.step = Number({Op::STEP, s, -1, -1});
    std::vector<int>& wanted = weights.microbatches;
    for (const Route& route : plan_.routes) {
      if (route.ranks[static_cast<size_t>(s)] != rank_) continue;
      wanted.insert(wanted.end(), route.microbatches.begin(), route.microbatches.end());
    }
    std::ranges::sort(wanted);
    for (const Op op : Opaque() ? std::vector{Op::W} : std::vector{Op::MLP_W, Op::ATTN_W}) {
      for (int l = 0; l < std::max(plan_.LayersOf(s), 1); ++l) {
        if (!Opaque() && !InLayer(s, l, op)) continue;
        weights.sums.push_back(Sum(s, op, l));
        for (const int m : wanted) weights.facts.push_back(Number({op, s, l, m}));
      }
    }
    return weights;
  }

  const Plan& plan_;
  const std::vector<std::vector<int>> holders_;
  const int rank_;
  const Program& program_;
  std::map<Fact, size_t> numbers_;
  std::map<std::tuple<int, Op, int>, size_t> sums_;
  /// Instructions of a stage and micro-batch that run again, and go to the host and back.
  std::map<std::pair<int, int>, std::vector<const Instruction*>> again_;
  RankInputs inputs_;
  const Instruction* at_ = nullptr;  // the instruction that is looked at
  LaneInputs* now_ = nullptr;        // its state
};

}  // namespace

std::vector<RankInputs> InputsInLanes(const Plan& plan) {
  std::vector<RankInputs> inputs;
  for (int r = 0; r < plan.ranks; ++r) inputs.push_back(InputMaker(plan, r).Make());
  return inputs;
}

}  // namespace contraflow
