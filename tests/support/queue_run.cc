#include "tests/support/queue_run.h"

#include <map>
#include <set>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

namespace contraflow {
namespace {

/// An activation ('a': the input of a stage) or a gradient ('g': of its output), by stage and
/// micro-batch.
using Data = std::tuple<char, int, int>;

struct Wrong : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Posted {
  const Instruction* instruction;
  Data data;
  bool over = false;
};

/// All that a queue ever gets; the head is the first that is not over.
using Queue = std::vector<Posted*>;

struct Rank {
  size_t next = 0, mark = 0;
  std::map<const Instruction*, Posted> posted;
  std::map<std::string, Queue> queues;
  std::set<Data> has;
  std::set<std::tuple<char, int, int>> did;  ///< 'F' 'B' 'W', stage, micro-batch
  std::multiset<std::pair<Op, int>> stage_ops;
  std::set<const Instruction*> waited;
};

class Run {
 public:
  Run(const Plan& plan, Semantics semantics)
      : plan_(plan), semantics_(semantics), ranks_(plan.programs.size()) {
    for (const auto& marks : plan.marks) {
      for (const Mark& mark : marks) waits_ |= IsWaitSend(mark.kind);
    }
  }

  void Go() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int r = 0; r < plan_.ranks; ++r) {
        while (Step(r)) moved = true;
      }
      for (int a = 0; a < plan_.ranks; ++a) {
        for (int b = 0; b < plan_.ranks; ++b) {
          while (Meet(a, b)) moved = true;
        }
      }
      while (Reduce()) moved = true;
    }
    for (int r = 0; r < plan_.ranks; ++r) CheckEnd(r);
  }

 private:
  Rank& At(int rank) { return ranks_[static_cast<size_t>(rank)]; }

  int Owner(int stage, int m) const {
    for (const Route& route : plan_.routes) {
      for (const int mine : route.microbatches) {
        if (mine == m) return route.ranks[static_cast<size_t>(stage)];
      }
    }
    throw Wrong("no route");
  }

  int Holders(int stage) const {
    std::set<int> holders;
    for (const Route& route : plan_.routes) holders.insert(route.ranks[static_cast<size_t>(stage)]);
    return static_cast<int>(holders.size());
  }

  std::string QueueName(const Instruction& i) const {
    if (semantics_ == Semantics::kRank) return "all";
    if (i.op == Op::REDUCE) return "reduce";
    std::string name = std::to_string(i.peer);
    if (semantics_ != Semantics::kPair) name += IsSend(i.op) ? " to" : " from";
    return name;
  }

  static Posted* Head(Queue* queue) {
    for (Posted* posted : *queue) {
      if (!posted->over) return posted;
    }
    return nullptr;
  }

  /// One step of a rank's own; false if it waits, or is at its end.
  bool Step(int r) {
    Rank& rank = At(r);
    const Program& program = plan_.program(r);
    if (!plan_.marks.empty()) {
      const std::vector<Mark>& marks = plan_.marks[static_cast<size_t>(r)];
      if (rank.mark < marks.size() && marks[rank.mark].before == static_cast<int>(rank.next)) {
        const Mark& mark = marks[rank.mark];
        if (IsWaitSend(mark.kind) && !WaitSend(&rank, mark)) return false;
        if (mark.kind == MarkKind::kReduceGrad) NeedWeights(rank, r, mark.stage);
        ++rank.mark;
        return true;
      }
    }
    if (rank.next == program.size()) return false;
    const Instruction& i = program[rank.next];
    if (IsMessage(i.op) || i.op == Op::REDUCE) {
      PostOne(r, i);
    } else if (!Compute(r, i)) {
      return false;
    }
    ++rank.next;
    return true;
  }

  bool WaitSend(Rank* rank, const Mark& mark) {
    const Op op = mark.kind == MarkKind::kWaitSendF ? Op::SEND_F : Op::SEND_B;
    for (auto& [instruction, posted] : rank->posted) {
      if (instruction->op != op || instruction->stage != mark.stage ||
          instruction->microbatch != mark.microbatch) {
        continue;
      }
      if (!posted.over) return false;
      if (!rank->waited.insert(instruction).second) throw Wrong("waited for twice");
      return true;
    }
    throw Wrong("waits for what was not sent");
  }

  void PostOne(int r, const Instruction& i) {
    Rank& rank = At(r);
    const int m = i.microbatch, s = i.stage;
    const int other = s + (i.op == Op::SEND_F || i.op == Op::RECV_B ? 1 : -1);
    Posted posted{&i, {}, false};
    if (i.op != Op::REDUCE) {
      if (other < 0 || other >= plan_.stages) throw Wrong("no other side");
      if (Owner(s, m) != r || Owner(other, m) != i.peer || i.peer == r) throw Wrong("wrong peer");
      for (const auto& [old, unused] : rank.posted) {
        if (old->op == i.op && old->stage == s && old->microbatch == m) throw Wrong("twice");
      }
    }
    if (i.op == Op::SEND_F) {
      posted.data = {'a', other, m};
      if (rank.did.count({'F', s, m}) == 0) throw Wrong("sent before it is made");
    } else if (i.op == Op::SEND_B) {
      posted.data = {'g', other, m};
      if (rank.did.count({'B', s, m}) == 0) throw Wrong("sent before it is made");
    } else if (i.op == Op::REDUCE) {
      NeedWeights(rank, r, s);
      if (rank.stage_ops.count({Op::REDUCE, s}) > 0) throw Wrong("reduced twice");
      rank.stage_ops.insert({Op::REDUCE, s});
    }
    Posted& kept = rank.posted[&i] = posted;
    if (semantics_ == Semantics::kBuffered && IsSend(i.op)) kept.over = true;
    rank.queues[QueueName(i)].push_back(&kept);
    if (IsSend(i.op)) sent_[{r, i.peer}].push_back(kept.data);
  }

  /// Waits for what it needs; throws if nobody will bring it.
  bool Compute(int r, const Instruction& i) {
    Rank& rank = At(r);
    if (i.op == Op::STEP) return Update(r, i.stage);
    if (HasForward(i.op) && !Ready(r, Op::RECV_F, i.stage, i.microbatch)) return false;
    if (HasBackward(i.op) && !Ready(r, Op::RECV_B, BackStage(i), BackMicrobatch(i))) return false;
    if (HasForward(i.op)) Do(r, 'F', i.stage, i.microbatch);
    if (HasBackward(i.op)) Do(r, 'B', BackStage(i), BackMicrobatch(i));
    if (HasWeight(i.op)) {
      const int s = BackStage(i), m = BackMicrobatch(i);
      if (rank.did.count({'B', s, m}) == 0) throw Wrong("W before B");
      Do(r, 'W', s, m);
    }
    return true;
  }

  /// Whether what comes by a message is there.
  bool Ready(int r, Op op, int s, int m) {
    const bool forward = op == Op::RECV_F;
    const int other = forward ? s - 1 : s + 1;
    if (other < 0 || other >= plan_.stages || Owner(other, m) == Owner(s, m)) return true;
    for (const auto& [instruction, posted] : At(r).posted) {
      if (instruction->op != op || instruction->stage != s || instruction->microbatch != m)
        continue;
      if (!posted.over) return false;
      if (posted.data != Data{forward ? 'a' : 'g', s, m}) throw Wrong("received another's value");
      return true;
    }
    throw Wrong("nothing was received");
  }

  void Do(int r, char what, int s, int m) {
    Rank& rank = At(r);
    if (Owner(s, m) != r) throw Wrong("wrong rank");
    if (!rank.did.insert({what, s, m}).second) throw Wrong("done twice");
    if (what == 'F' && s > 0 && Owner(s - 1, m) == r && rank.did.count({'F', s - 1, m}) == 0) {
      throw Wrong("F before the F before it");
    }
    if (what != 'B') return;
    if (rank.did.count({'F', s, m}) == 0) throw Wrong("B before F");
    if (s + 1 < plan_.stages && Owner(s + 1, m) == r && rank.did.count({'B', s + 1, m}) == 0) {
      throw Wrong("B before the B after it");
    }
  }

  void NeedWeights(const Rank& rank, int r, int s) const {
    for (int m = 0; m < plan_.microbatches; ++m) {
      if (Owner(s, m) == r && rank.did.count({'W', s, m}) == 0) throw Wrong("gradient missing");
    }
  }

  bool Update(int r, int s) {
    Rank& rank = At(r);
    NeedWeights(rank, r, s);
    if (Holders(s) > 1) {
      const Posted* reduce = nullptr;
      for (const auto& [i, posted] : rank.posted) {
        if (i->op == Op::REDUCE && i->stage == s) reduce = &posted;
      }
      if (reduce == nullptr) throw Wrong("STEP before REDUCE");
      if (!reduce->over) return false;
    }
    if (rank.stage_ops.count({Op::STEP, s}) > 0) throw Wrong("stepped twice");
    rank.stage_ops.insert({Op::STEP, s});
    return true;
  }

  /// The head of a's queue to b, a SEND, with the head of b's queue from a.
  bool Meet(int a, int b) {
    if (semantics_ == Semantics::kBuffered) return Deliver(a, b);
    for (auto& [name, from] : At(a).queues) {
      Posted* send = Head(&from);
      if (send == nullptr || !IsSend(send->instruction->op) || send->instruction->peer != b)
        continue;
      for (auto& [unused, to] : At(b).queues) {
        Posted* receive = Head(&to);
        if (receive == nullptr || !IsRecv(receive->instruction->op)) continue;
        if (receive->instruction->peer != a) continue;
        receive->data = send->data;
        send->over = receive->over = true;
        return true;
      }
    }
    return false;
  }

  bool Deliver(int a, int b) {
    Posted* receive = Head(&At(b).queues[std::to_string(a) + " from"]);
    std::vector<Data>& sent = sent_[{a, b}];
    if (receive == nullptr || sent.empty()) return false;
    receive->data = sent.front();
    receive->over = true;
    sent.erase(sent.begin());
    return true;
  }

  bool Reduce() {
    for (int s = 0; s < plan_.stages; ++s) {
      std::vector<Posted*> heads;
      for (Rank& rank : ranks_) {
        for (auto& [name, queue] : rank.queues) {
          Posted* head = Head(&queue);
          if (head == nullptr || head->instruction->op != Op::REDUCE) continue;
          if (head->instruction->stage == s) heads.push_back(head);
        }
      }
      if (heads.empty() || static_cast<int>(heads.size()) < Holders(s)) continue;
      for (Posted* head : heads) head->over = true;
      return true;
    }
    return false;
  }

  void CheckEnd(int r) {
    Rank& rank = At(r);
    if (rank.next < plan_.program(r).size()) throw Wrong("stuck: rank " + std::to_string(r));
    if (!plan_.marks.empty() && rank.mark < plan_.marks[static_cast<size_t>(r)].size()) {
      throw Wrong("stuck at a wait: rank " + std::to_string(r));
    }
    for (const auto& [instruction, posted] : rank.posted) {
      if (!posted.over) throw Wrong("a message is under way for ever");
      if (waits_ && IsSend(instruction->op) && rank.waited.count(instruction) == 0) {
        throw Wrong("a send is not waited for");
      }
      if (semantics_ != Semantics::kBuffered || !IsSend(instruction->op)) continue;
      if (!sent_[{r, instruction->peer}].empty()) throw Wrong("a message is never received");
    }
    for (const Route& route : plan_.routes) {
      for (int s = 0; s < plan_.stages; ++s) {
        if (route.ranks[static_cast<size_t>(s)] != r) continue;
        for (const int m : route.microbatches) {
          if (rank.did.count({'F', s, m}) == 0) throw Wrong("a forward is missing");
        }
        NeedWeights(rank, r, s);
        if (rank.stage_ops.count({Op::STEP, s}) == 0) throw Wrong("no STEP");
      }
    }
  }

  const Plan& plan_;
  const Semantics semantics_;
  bool waits_ = false;  ///< some rank waits for its SENDs
  std::vector<Rank> ranks_;
  std::map<std::pair<int, int>, std::vector<Data>> sent_;  ///< buffered: by from and to
};

}  // namespace

std::string RunQueues(const Plan& plan, Semantics semantics) {
  try {
    Run(plan, semantics).Go();
  } catch (const Wrong& wrong) {
    return wrong.what();
  }
  return "";
}

}  // namespace contraflow
