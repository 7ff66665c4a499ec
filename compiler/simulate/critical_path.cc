// Walks back from the last instruction to end: whatever it had to wait for and ended exactly when
// it began. With integer ticks "exactly" is exact.

#include <algorithm>
#include <vector>

#include "compiler/plan/grid.h"
#include "compiler/simulate/simulate.h"

namespace contraflow {
namespace {

constexpr InstructionRef kNone = {-1, -1};

class Walker {
 public:
  Walker(const Plan& plan, const Timeline& timeline)
      : plan_(plan),
        timeline_(timeline),
        send_f_(plan.stages, plan.microbatches, -1),
        send_b_(plan.stages, plan.microbatches, -1) {
    for (const Program& program : plan.programs) {
      for (size_t i = 0; i < program.size(); ++i) {
        const Instruction& send = program[i];
        if (!IsSend(send.op)) continue;
        (send.op == Op::SEND_F ? send_f_ : send_b_)(send.stage, send.microbatch) =
            static_cast<int>(i);
      }
    }
  }

  std::vector<InstructionRef> Walk() const {
    std::vector<InstructionRef> path;
    for (InstructionRef at = Last(); at != kNone; at = Cause(at)) path.push_back(at);
    std::reverse(path.begin(), path.end());
    return path;
  }

 private:
  const Instruction& At(InstructionRef ref) const {
    return plan_.program(ref.rank)[static_cast<size_t>(ref.index)];
  }
  const Span& SpanOf(InstructionRef ref) const {
    return timeline_.ranks[static_cast<size_t>(ref.rank)][static_cast<size_t>(ref.index)];
  }
  bool OnLane(InstructionRef ref) const {
    const Work work = WorkOf(At(ref).op);
    return work == Work::kCompute || work == Work::kComponent || work == Work::kStep;
  }

  InstructionRef Last() const {
    InstructionRef last = kNone;
    for (int r = 0; r < plan_.ranks; ++r) {
      for (int i = 0; i < static_cast<int>(plan_.program(r).size()); ++i) {
        const InstructionRef ref{r, i};
        if (IsMessage(At(ref).op)) continue;
        if (last == kNone || SpanOf(ref).end > SpanOf(last).end) last = ref;
      }
    }
    return last;
  }

  InstructionRef Cause(InstructionRef at) const {
    if (SpanOf(at).start == 0) return kNone;
    const InstructionRef cause = plan_.level > Level::kComm ? CauseInLanes(at) : CauseInChunks(at);
    if (cause != kNone) return cause;
    if (At(at).op == Op::REDUCE) return BusyHolder(At(at).stage, SpanOf(at).start);
    return BlockedBy(at);
  }

  InstructionRef CauseInChunks(InstructionRef at) const {
    if (IsSend(At(at).op)) return CauseOfSend(at);
    if (IsHostCopy(At(at).op)) return CauseOfCopy(at);
    if (At(at).op == Op::REDUCE) return LastWeight(At(at).stage, SpanOf(at).start);
    return CauseOfCompute(at);
  }

  /// The instruction before it on the lane, else its own input.
  InstructionRef CauseOfCompute(InstructionRef at) const {
    const Instruction& wants = At(at);
    const Time start = SpanOf(at).start;
    bool lane_seen = false;
    for (int i = at.index - 1; i >= 0; --i) {
      const InstructionRef before{at.rank, i};
      if (SpanOf(before).end != start) {
        lane_seen = lane_seen || OnLane(before);
        continue;
      }
      if (OnLane(before) && !lane_seen) return before;
      const Instruction& input = At(before);
      const bool forward = input.op == Op::RECV_F && HasForward(wants.op) &&
                           input.stage == wants.stage && input.microbatch == wants.microbatch;
      const bool backward = input.op == Op::RECV_B && HasBackward(wants.op) &&
                            input.stage == BackStage(wants) &&
                            input.microbatch == BackMicrobatch(wants);
      if (forward || backward) return Sender(input);
      const bool reloaded = input.op == Op::RELOAD && HasBackward(wants.op) &&
                            input.stage == BackStage(wants) &&
                            input.microbatch == BackMicrobatch(wants);
      const bool gone = input.op == Op::OFFLOAD && (HasForward(wants.op) || wants.op == Op::R);
      if (reloaded || gone) return before;
      if (wants.op == Op::STEP && input.op == Op::REDUCE && input.stage == wants.stage) {
        return before;
      }
    }
    return kNone;
  }

  /// The copy before it on its lane, what made it, or what a RELOAD stands behind.
  InstructionRef CauseOfCopy(InstructionRef at) const {
    const Instruction& copy = At(at);
    for (InstructionRef before{at.rank, at.index - 1}; before.index >= 0; --before.index) {
      if (SpanOf(before).end != SpanOf(at).start) continue;
      const Instruction& other = At(before);
      const bool own = other.stage == copy.stage && other.microbatch == copy.microbatch;
      if (other.op == copy.op || other.op == Op::OFFLOAD) return before;
      if (copy.op == Op::RELOAD ? OnLane(before) : own && HasForward(other.op)) return before;
    }
    return kNone;
  }

  /// Its producer, or, where the edge was taken, the message before it on that edge.
  InstructionRef CauseOfSend(InstructionRef at) const {
    const Time start = SpanOf(at).start;
    for (int i = at.index - 1; i >= 0; --i) {
      const InstructionRef before{at.rank, i};
      if (OnLane(before) && SpanOf(before).end == start) return before;
      if (!IsRecv(At(before).op) && At(before).peer == At(at).peer &&
          SpanOf(before).start < start) {
        return before;
      }
    }
    return kNone;
  }

  InstructionRef Sender(const Instruction& recv) const {
    const bool forward = recv.op == Op::RECV_F;
    const int stage = recv.stage + (forward ? -1 : 1);
    return {recv.peer, (forward ? send_f_ : send_b_)(stage, recv.microbatch)};
  }

  InstructionRef LastWeight(int stage, Time end) const {
    for (int r = 0; r < plan_.ranks; ++r) {
      for (int i = static_cast<int>(plan_.program(r).size()) - 1; i >= 0; --i) {
        const InstructionRef ref{r, i};
        if (HasWeight(At(ref).op) && BackStage(At(ref)) == stage && SpanOf(ref).end == end) {
          return ref;
        }
      }
    }
    return kNone;
  }

  // Where REDUCE blocks a rank (CommCost::reduce_blocks).

  /// The REDUCE before it on its rank.
  InstructionRef BlockedBy(InstructionRef at) const {
    for (int i = at.index - 1; i >= 0; --i) {
      const InstructionRef before{at.rank, i};
      if (OnLane(before)) return kNone;
      if (At(before).op == Op::REDUCE && SpanOf(before).end == SpanOf(at).start) return before;
    }
    return kNone;
  }

  /// What the last holder of a stage to come to its REDUCE did before.
  InstructionRef BusyHolder(int stage, Time end) const {
    for (int r = 0; r < plan_.ranks; ++r) {
      InstructionRef before = kNone;
      for (int i = 0; i < static_cast<int>(plan_.program(r).size()); ++i) {
        const InstructionRef ref{r, i};
        const bool reduce = At(ref).op == Op::REDUCE;
        if (reduce && At(ref).stage == stage) {
          if (before != kNone && SpanOf(before).end == end) return before;
          break;
        }
        if (reduce || OnLane(ref)) before = ref;
      }
    }
    return kNone;
  }

  // Where instructions have lanes: what an instruction waits for is written in it.

  InstructionRef CauseInLanes(InstructionRef at) const {
    if (IsSend(At(at).op)) return CauseOfMessage(at);
    if (At(at).op == Op::REDUCE) return CauseOfReduce(at);
    const InstructionRef before = BeforeInLane(at);
    return before == kNone ? AwaitedBy(at, SpanOf(at).start) : before;
  }

  /// What `at` waits for that ended at this time; of a message its sender.
  InstructionRef AwaitedBy(InstructionRef at, Time end) const {
    const Instruction& waits = At(at);
    for (int k = 0; k < waits.after_count; ++k) {
      const InstructionRef before{at.rank, waits.after[static_cast<size_t>(k)]};
      if (SpanOf(before).end != end) continue;
      return IsRecv(At(before).op) ? Sender(At(before)) : before;
    }
    return kNone;
  }

  /// The instruction before it in its lane, if it ended when this one began.
  InstructionRef BeforeInLane(InstructionRef at) const {
    for (InstructionRef before{at.rank, at.index - 1}; before.index >= 0; --before.index) {
      if (LaneOf(At(before).op) != LaneOf(At(at).op)) continue;
      return SpanOf(before).end == SpanOf(at).start ? before : kNone;
    }
    return kNone;
  }

  /// Whichever side was ready last, or, where the edge was taken, the message before it on that
  /// edge.
  InstructionRef CauseOfMessage(InstructionRef send) const {
    const Time start = SpanOf(send).start;
    const InstructionRef sender = AwaitedBy(send, start);
    if (sender != kNone) return sender;
    const Instruction& message = At(send);
    InstructionRef receive{message.peer, 0}, queued = kNone;
    for (; receive.index < Length(receive.rank); ++receive.index) {
      const Instruction& other = At(receive);
      if (!IsRecv(other.op) || Sender(other) != send) continue;
      const InstructionRef receiver = AwaitedBy(receive, start);
      if (receiver != kNone) return receiver;
    }
    for (InstructionRef other{send.rank, 0}; other.index < Length(send.rank); ++other.index) {
      if (!IsSend(At(other).op) || At(other).peer != message.peer) continue;
      if (SpanOf(other).start >= start) continue;
      if (queued == kNone || SpanOf(other).start > SpanOf(queued).start) queued = other;
    }
    return queued;
  }

  /// What the last of its holders to come to a REDUCE waited for.
  InstructionRef CauseOfReduce(InstructionRef at) const {
    for (InstructionRef other{0, 0}; other.rank < plan_.ranks; ++other.rank) {
      for (other.index = 0; other.index < Length(other.rank); ++other.index) {
        if (At(other).op != Op::REDUCE || At(other).stage != At(at).stage) continue;
        const InstructionRef cause = AwaitedBy(other, SpanOf(at).start);
        if (cause != kNone) return cause;
      }
    }
    return kNone;
  }

  int Length(int rank) const { return static_cast<int>(plan_.program(rank).size()); }

  const Plan& plan_;
  const Timeline& timeline_;
  Grid<int> send_f_, send_b_;  // where each stage's message leaves its rank's program
};

}  // namespace

std::vector<InstructionRef> CriticalPath(const Plan& plan, const Timeline& timeline) {
  if (plan.level == Level::kCompute) return {};
  return Walker(plan, timeline).Walk();
}

}  // namespace contraflow
