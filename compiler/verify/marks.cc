// Checks of the marks between the instructions of an imported schedule, where they have a meaning
// here: a WAIT_SEND waits for a SEND before it; gradients are summed once, after the last of them.
// Both as PyTorch 2.15 demands them when it loads a file, and what it does not check there (a
// REDUCE_GRAD too early or too often) scales gradients wrongly. IDLE, UNSHARD and RESHARD promise
// nothing.

#include <algorithm>

#include "compiler/verify/checks.h"

namespace contraflow::check {
namespace {

class Marks {
 public:
  Marks(const Tables& tables, Findings* findings)
      : tables_(tables), plan_(tables.plan), findings_(*findings) {}

  void Run() {
    for (const std::vector<Mark>& marks : plan_.marks) {
      for (const Mark& mark : marks) seen_[static_cast<size_t>(mark.kind)] = true;
    }
    if (Seen(MarkKind::kWaitSendF) || Seen(MarkKind::kWaitSendB)) CheckSends();
    if (Seen(MarkKind::kReduceGrad) || Seen(MarkKind::kWaitReduceGrad)) CheckReductions();
  }

 private:
  bool Seen(MarkKind kind) const { return seen_[static_cast<size_t>(kind)]; }

  void Add(Check check, int rank, const Mark& mark, const std::string& what) {
    const auto length = static_cast<int32_t>(plan_.program(rank).size());
    findings_.Add(check, rank, mark.before < length ? mark.before : -1, ToString(mark) + what);
  }

  void CheckSends() {
    if (plan_.level == Level::kCompute) {
      for (int r = 0; r < plan_.ranks; ++r) {
        for (const Mark& mark : MarksOf(plan_, r)) {
          if (!IsWaitSend(mark.kind)) continue;
          Add(Check::kLevel, r, mark, ": level compute has no SEND to wait for; drop it");
        }
      }
      return;
    }
    // Marks awaited of each rank, by instruction.
    std::vector<bool> waited;
    for (int r = 0; r < plan_.ranks; ++r) {
      const Program& program = plan_.program(r);
      waited.assign(program.size(), false);
      for (const Mark& mark : MarksOf(plan_, r)) {
        if (IsWaitSend(mark.kind)) CheckWait(r, mark, &waited);
      }
      for (size_t at = 0; at < program.size(); ++at) {
        if (!IsSend(program[at].op) || waited[at]) continue;
        findings_.Add(Check::kMessage, r, static_cast<int>(at),
                      ToString(program[at]) +
                          " has no WAIT_SEND after it, as others have; add one: without it PyTorch "
                          "keeps the message for ever");
      }
    }
  }

  void CheckWait(int rank, const Mark& mark, std::vector<bool>* waited) {
    const int32_t send = SendOf(tables_, rank, mark);
    if (send < 0) return Add(Check::kMessage, rank, mark, ": the rank has no such SEND; drop it");
    if (send >= mark.before) {
      return Add(Check::kMessage, rank, mark,
                 " waits for " + tables_.Place(rank, send) + ", which comes later; move it after");
    }
    const auto at = static_cast<size_t>(send);
    if ((*waited)[at]) {
      return Add(Check::kMessage, rank, mark,
                 " waits for " + tables_.Place(rank, send) + " again; drop one");
    }
    (*waited)[at] = true;
  }

  void CheckReductions() {
    std::vector<bool> reduced(tables_.copies.size(), false);
    for (int r = 0; r < plan_.ranks; ++r) {
      pending_ = nullptr;
      for (const Mark& mark : MarksOf(plan_, r)) {
        if (mark.kind == MarkKind::kReduceGrad) CheckReduction(r, mark, &reduced);
        if (mark.kind == MarkKind::kReduceGrad || mark.kind == MarkKind::kWaitReduceGrad) {
          CheckPending(r, mark);
        }
      }
      if (pending_ != nullptr && Seen(MarkKind::kWaitReduceGrad)) {
        Add(Check::kReduce, r, *pending_, " has no WAIT_REDUCE_GRAD after it; add one");
      }
    }
    for (size_t at = 0; at < reduced.size(); ++at) {
      if (reduced[at]) continue;
      const Copy& copy = tables_.copies[at];
      findings_.Add(Check::kReduce, copy.rank, -1,
                    "no REDUCE_GRAD s" + std::to_string(copy.stage) +
                        ", which other stages have: its gradients are not scaled; add one after "
                        "its last weight gradient");
    }
  }

  void CheckReduction(int rank, const Mark& mark, std::vector<bool>* reduced) {
    const int32_t found = tables_.FindCopy(mark.stage, rank);
    if (found < 0) {
      return Add(Check::kOwner, rank, mark, ": the rank has no copy of the stage; drop it");
    }
    const auto at = static_cast<size_t>(found);
    const int32_t last = tables_.copies[at].last_weight;
    if (last >= mark.before) {
      Add(Check::kReduce, rank, mark,
          " comes before " + tables_.Place(rank, last) +
              ", whose gradient it needs; move it after");
    }
    if ((*reduced)[at]) {
      Add(Check::kReduce, rank, mark, " scales the gradients of the stage again; drop one");
    }
    (*reduced)[at] = true;
  }

  /// A rank has one sum under way at a time, and waits for it by name.
  void CheckPending(int rank, const Mark& mark) {
    if (!Seen(MarkKind::kWaitReduceGrad)) return;
    if (mark.kind == MarkKind::kReduceGrad) {
      if (pending_ != nullptr) {
        Add(Check::kReduce, rank, mark,
            " begins while that of stage " + std::to_string(pending_->stage) +
                " is under way; wait for that first");
      }
      pending_ = &mark;
      return;
    }
    if (pending_ == nullptr || pending_->stage != mark.stage) {
      Add(Check::kReduce, rank, mark,
          pending_ == nullptr
              ? ": no sum is under way; drop it"
              : ": the sum of stage " + std::to_string(pending_->stage) + " is under way instead");
    }
    pending_ = nullptr;
  }

  const Tables& tables_;
  const Plan& plan_;
  Findings& findings_;
  std::array<bool, kMarkKinds> seen_{};
  const Mark* pending_ = nullptr;
};

}  // namespace

int32_t SendOf(const Tables& tables, int rank, const Mark& wait) {
  if (tables.Owner(wait.stage, wait.microbatch) != rank) return kMissing;
  const Op op = wait.kind == MarkKind::kWaitSendF ? Op::SEND_F : Op::SEND_B;
  return tables.messages[tables.At(wait.stage, wait.microbatch)][MessageKind(op)];
}

std::span<const Mark> MarksOf(const Plan& plan, int rank) {
  if (plan.marks.empty()) return {};
  return plan.marks[static_cast<size_t>(rank)];
}

void CheckMarks(const Tables& tables, Findings* findings) { Marks(tables, findings).Run(); }

}  // namespace contraflow::check
