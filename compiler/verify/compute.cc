// Checks of every plan, of level compute and above: each piece of work once, on its rank, and in an
// order that its inputs allow.

#include <algorithm>
#include <map>

#include "compiler/verify/checks.h"

namespace contraflow::check {
namespace {

std::string OfChunk(int stage, int microbatch) {
  return " of stage " + std::to_string(stage) + ", micro-batch " + std::to_string(microbatch);
}

std::string Text(Op op, int stage, int microbatch) {
  return ToString(CellOp(op, stage, microbatch));
}

/// Walks the programs and records the place of each instruction.
class Placer : Placing {
 public:
  using Placing::Placing;

  void Run() {
    PlaceAll([this](const Instruction& i) {
      if (HasForward(i.op)) Forward(i);
      if (i.op == Op::B || HasWeight(i.op)) Backward(i);
      if (i.op == Op::R) Recompute(i);
    });
  }

 private:
  void Forward(const Instruction& i) {
    int32_t& f = tables_.work[tables_.At(i.stage, i.microbatch)].f;
    if (!Owned(i, i.stage, i.microbatch, "forward")) {
      if (f == kMissing) f = kMisplaced;
    } else if (f >= 0) {
      Repeats(i, "forward", i.stage, i.microbatch, f);
    } else {
      f = index_;
    }
  }

  void Backward(const Instruction& i) {
    const int stage = BackStage(i), m = BackMicrobatch(i);
    const bool back = HasBackward(i.op), weight = HasWeight(i.op);
    CellWork& work = tables_.work[tables_.At(stage, m)];
    if (!Owned(i, stage, m, back ? "backward" : "weight gradient")) {
      if (back && work.b == kMissing) work.b = kMisplaced;
      if (weight && work.w == kMissing) work.w = kMisplaced;
      return;
    }
    // One complaint about an instruction is enough, also where it repeats both halves.
    if (back && work.b >= 0) {
      Repeats(i, "backward", stage, m, work.b);
    } else if (weight && work.w >= 0) {
      Repeats(i, "weight gradient", stage, m, work.w);
    }
    if (back && work.b < 0) work.b = index_;
    if (weight) Weight(stage, m, &work.w);
  }

  void Recompute(const Instruction& i) {
    if (!Owned(i, i.stage, i.microbatch, "forward")) return;
    tables_.recompute.resize(tables_.work.size(), kMissing);
    int32_t& recompute = tables_.recompute[tables_.At(i.stage, i.microbatch)];
    if (recompute >= 0) return Repeats(i, "recomputation", i.stage, i.microbatch, recompute);
    recompute = index_;
    const RecomputeExtent extent = ExtentOf(i);
    if (!extent.whole() && plan_.level == Level::kBuffer) {
      Add(Check::kComplete, i,
          " runs a part again, of which a chunk at level buffer has no values; compile it with "
          "components, or drop the part");
    }
    const int layers = plan_.costs ? plan_.costs->LayersIn(i.stage) : 0;
    if (layers > 0 && extent.layers > layers) {
      Add(Check::kComplete, i,
          " runs more layers again than the stage has by the costs, " + std::to_string(layers) +
              "; name at most so many");
    }
    const auto [first, added] = extents_.try_emplace(i.stage, extent);
    if (first->second == extent) return;
    Add(Check::kComplete, i,
        " runs something else again than the stage's first R, " + ToString(first->second) +
            "; recompute the same of all cells of a stage");
  }

  std::map<int, RecomputeExtent> extents_;  // the extent of recompute of each stage

  /// In which order a copy adds its micro-batches is the plan's to say: here it says it once.
  void Weight(int stage, int m, int32_t* w) {
    tables_.CopyFor(stage, m).last_weight = index_;
    if (*w < 0) *w = index_;
  }

  bool Owned(const Instruction& i, int stage, int m, const char* part) {
    const int owner = tables_.Owner(stage, m);
    if (owner == rank_) return true;
    Add(Check::kOwner, i,
        std::string(" runs the ") + part + OfChunk(stage, m) + " on rank " + std::to_string(rank_) +
            "; route " + std::to_string(tables_.route_of[static_cast<size_t>(m)]) +
            " has it on rank " + std::to_string(owner));
    return false;
  }

  void Repeats(const Instruction& i, const char* part, int stage, int m, int32_t first) {
    Add(Check::kComplete, i,
        std::string(" repeats the ") + part + OfChunk(stage, m) + ", done at " +
            tables_.Place(rank_, first) + "; drop one");
  }
};

void AddMissing(const Tables& tables, int stage, int m, Findings* findings) {
  const CellWork& work = tables.work[tables.At(stage, m)];
  const int rank = tables.Owner(stage, m);
  const auto add = [&](const std::string& part, const std::string& what) {
    findings->Add(Check::kComplete, rank, -1,
                  "no " + part + OfChunk(stage, m) + "; rank " + std::to_string(rank) +
                      " must run " + what + " once");
  };
  if (work.f == kMissing) add("forward", Text(Op::F, stage, m));
  if (work.b == kMissing && work.w == kMissing) {
    add("backward", Text(Op::BW, stage, m) + ", or B and W,");
  } else if (work.b == kMissing) {
    add("input gradient", Text(Op::B, stage, m));
  } else if (work.w == kMissing) {
    add("weight gradient", Text(Op::W, stage, m));
  }
}

/// F before B before W.
void CheckChunkOrder(const Tables& tables, int stage, int m, Findings* findings) {
  const CellWork& work = tables.work[tables.At(stage, m)];
  const int rank = tables.Owner(stage, m);
  const auto text = [&](int32_t index) { return ToString(tables.InstructionAt(rank, index)); };
  if (work.f >= 0 && work.b == work.f) {
    findings->Add(Check::kOrder, rank, work.b,
                  text(work.b) +
                      " overlaps a forward with its own backward, which needs it first; "
                      "an FB takes two different micro-batches");
  } else if (work.f >= 0 && work.b >= 0 && work.b < work.f) {
    findings->Add(Check::kOrder, rank, work.b,
                  text(work.b) + " stands before " + tables.Place(rank, work.f) +
                      ", whose activations it needs; move it after");
  }
  if (work.b >= 0 && work.w >= 0 && work.w < work.b) {
    findings->Add(Check::kOrder, rank, work.w,
                  text(work.w) + " stands before " + tables.Place(rank, work.b) +
                      ", whose gradients it needs; move it after");
  }
}

/// F before R before B.
void CheckRecompute(const Tables& tables, int stage, int m, Findings* findings) {
  const int32_t recompute = tables.recompute[tables.At(stage, m)];
  if (recompute < 0) return;
  const CellWork& work = tables.work[tables.At(stage, m)];
  const int rank = tables.Owner(stage, m);
  const std::string text = ToString(tables.InstructionAt(rank, recompute));
  if (work.f >= 0 && recompute < work.f) {
    findings->Add(Check::kOrder, rank, recompute,
                  text + " stands before " + tables.Place(rank, work.f) +
                      ", the forward that it runs again; move it after");
  }
  if (work.b >= 0 && work.b < recompute) {
    findings->Add(Check::kOrder, rank, recompute,
                  text + " stands after " + tables.Place(rank, work.b) +
                      ", which needs the activations that it makes; move it before, or drop it");
  }
}

/// Two neighbouring stages on one rank: nothing but its program puts them in order.
void CheckLocalOrder(const Tables& tables, int stage, int m, Findings* findings) {
  const CellWork& near = tables.work[tables.At(stage, m)];
  const CellWork& far = tables.work[tables.At(stage + 1, m)];
  const int rank = tables.Owner(stage, m);
  const auto check = [&](int32_t first, int32_t second, int producer, const char* what) {
    if (first < 0 || second < 0 || first < second) return;
    findings->Add(Check::kOrder, rank, second,
                  ToString(tables.InstructionAt(rank, second)) + " needs the " + what +
                      OfChunk(producer, m) + ", made at " + tables.Place(rank, first) +
                      "; move it after");
  };
  check(near.f, far.f, stage, "output");
  check(far.b, near.b, stage + 1, "input gradient");
}

}  // namespace

Tables::Tables(const Plan& the_plan)
    : plan(the_plan),
      route_of(RouteOfMicrobatch(the_plan)),
      copy_of(the_plan.routes.size() * static_cast<size_t>(the_plan.stages)) {
  const size_t chunks = At(plan.stages, 0);
  if (plan.layers == 0) {
    work.resize(chunks);
  } else {
    layers_before_ = {0};
    for (int s = 0; s < plan.stages; ++s) {
      layers_before_.push_back(LayerAt(s, 0, plan.microbatches));
    }
    parts.assign(Layers() * kPartCount, kMissing);
  }
  const auto stages = static_cast<size_t>(plan.stages);
  std::vector<int> holders;
  for (size_t s = 0; s < stages; ++s) {
    holders.clear();
    for (const Route& route : plan.routes) holders.push_back(route.ranks[s]);
    std::sort(holders.begin(), holders.end());
    holders.erase(std::unique(holders.begin(), holders.end()), holders.end());
    first_copy.push_back(static_cast<int32_t>(copies.size()));
    for (const int rank : holders) {
      copies.push_back({.stage = static_cast<int32_t>(s), .rank = rank});
    }
    for (size_t route = 0; route < plan.routes.size(); ++route) {
      const auto holder =
          std::lower_bound(holders.begin(), holders.end(), plan.routes[route].ranks[s]);
      copy_of[route * stages + s] =
          first_copy.back() + static_cast<int32_t>(holder - holders.begin());
    }
  }
  first_copy.push_back(static_cast<int32_t>(copies.size()));
}

int32_t Tables::FindCopy(int stage, int rank) const {
  const auto begin = copies.begin() + first_copy[static_cast<size_t>(stage)];
  const auto end = copies.begin() + first_copy[static_cast<size_t>(stage) + 1];
  const auto found = std::lower_bound(
      begin, end, rank, [](const Copy& copy, int wanted) { return copy.rank < wanted; });
  if (found == end || found->rank != rank) return -1;
  return static_cast<int32_t>(found - copies.begin());
}

int32_t Tables::Side(const Instruction& message) const {
  const bool forward = message.op == Op::SEND_F || message.op == Op::RECV_F;
  const int s = message.stage, m = message.microbatch;
  if (plan.layers == 0) {
    const CellWork& chunk = work[At(s, m)];
    return forward ? chunk.f : chunk.b;
  }
  if (forward) return message.op == Op::SEND_F ? ForwardEnd(s, m) : Part(Op::ATTN_F, s, 0, m);
  return message.op == Op::SEND_B ? Part(Op::ATTN_B, s, 0, m) : BackwardBegin(s, m);
}

std::string Tables::Place(int rank, int index) const {
  return std::to_string(index) + " (" + ToString(InstructionAt(rank, index)) + ")";
}

void CheckCompute(Tables* tables, Findings* findings) {
  Placer(tables, findings).Run();
  const int stages = tables->plan.stages;
  for (int s = 0; s < stages; ++s) {
    for (int m = 0; m < tables->plan.microbatches; ++m) {
      const CellWork& work = tables->work[tables->At(s, m)];
      if (work.f == kMissing || work.b == kMissing || work.w == kMissing) {
        AddMissing(*tables, s, m, findings);
      }
      // F, then B, then W or both in one.
      if (work.b <= work.f || work.w < work.b) CheckChunkOrder(*tables, s, m, findings);
      if (!tables->recompute.empty()) CheckRecompute(*tables, s, m, findings);
      if (s + 1 < stages && tables->Owner(s, m) == tables->Owner(s + 1, m)) {
        CheckLocalOrder(*tables, s, m, findings);
      }
    }
  }
}

}  // namespace contraflow::check
