// Copies to the host and back: what a forward keeps leaves the memory of its rank at most once, and
// is there again before its backward. Between the two nothing else needs it: later stages have
// got their input, and a chunk that is recomputed keeps no more than its own input anyway, so that
// one of the two is enough.
//
//     F -> OFFLOAD -> RELOAD -> B, BW or FB

#include "compiler/verify/checks.h"

namespace contraflow::check {
namespace {

/// Walks the programs and notes where the copies stand.
class CopyPlacer : Placing {
 public:
  using Placing::Placing;

  void Run() {
    PlaceAll([this](const Instruction& i) {
      if (IsHostCopy(i.op)) Place(i);
    });
  }

 private:
  void Place(const Instruction& i) {
    const int owner = tables_.Owner(i.stage, i.microbatch);
    if (owner != rank_) {
      return Add(Check::kOwner, i,
                 " is on rank " + std::to_string(rank_) + "; route " +
                     std::to_string(tables_.route_of[static_cast<size_t>(i.microbatch)]) +
                     " has stage " + std::to_string(i.stage) + " on rank " + std::to_string(owner));
    }
    tables_.host_copies.resize(tables_.At(plan_.stages, 0));
    HostCopies& copies = tables_.host_copies[tables_.At(i.stage, i.microbatch)];
    int32_t& place = i.op == Op::OFFLOAD ? copies.offload : copies.reload;
    if (place >= 0) {
      return Add(Check::kComplete, i, " repeats " + tables_.Place(rank_, place) + "; drop one");
    }
    place = index_;
  }
};

class CellCheck {
 public:
  CellCheck(const Tables& tables, int stage, int m, Findings* findings)
      : tables_(tables),
        stage_(stage),
        microbatch_(m),
        rank_(tables.Owner(stage, m)),
        findings_(*findings) {}

  void Run() {
    const HostCopies copies = tables_.HostCopiesOf(stage_, microbatch_);
    if (copies.offload < 0 && copies.reload < 0) return;
    if (copies.reload < 0) {
      Missing(Op::RELOAD, copies.offload, "its backward needs on the device");
    } else if (copies.offload < 0) {
      Missing(Op::OFFLOAD, copies.reload, "is not in the memory of the host");
    }
    if (tables_.Recomputed(stage_, microbatch_)) {
      findings_.Add(Check::kComplete, rank_, copies.offload < 0 ? copies.reload : copies.offload,
                    "the cell is recomputed and offloaded, which does not go together; drop R, or "
                    "OFFLOAD and RELOAD");
    }
    Order(tables_.ForwardEnd(stage_, microbatch_), copies.offload);
    Order(copies.offload, copies.reload);
    Order(copies.reload, tables_.BackwardBegin(stage_, microbatch_));
  }

 private:
  void Missing(Op op, int32_t other, const std::string& why) {
    findings_.Add(Check::kComplete, rank_, other,
                  ToString(tables_.InstructionAt(rank_, other)) + " comes without " +
                      ToString(CellOp(op, stage_, microbatch_)) + ": what it copies " + why +
                      "; add that, or drop this");
  }

  void Order(int32_t first, int32_t second) {
    if (first < 0 || second < 0 || first < second) return;
    findings_.Add(Check::kOrder, rank_, second,
                  ToString(tables_.InstructionAt(rank_, second)) + " stands before " +
                      tables_.Place(rank_, first) + ", which it needs; move it after");
  }

  const Tables& tables_;
  const int stage_, microbatch_, rank_;
  Findings& findings_;
};

}  // namespace

void CheckHostCopies(Tables* tables, Findings* findings) {
  CopyPlacer(tables, findings).Run();
  if (tables->host_copies.empty()) return;
  for (int s = 0; s < tables->plan.stages; ++s) {
    for (int m = 0; m < tables->plan.microbatches; ++m) {
      CellCheck(*tables, s, m, findings).Run();
    }
  }
}

}  // namespace contraflow::check
