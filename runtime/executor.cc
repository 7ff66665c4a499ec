#include "runtime/executor.h"

#include <map>
#include <new>
#include <span>
#include <string>

#include "compiler/error.h"

namespace contraflow {
namespace {

class Walk {
 public:
  Walk(const Plan& plan, int rank, Backend& backend, Transport& transport, Clock::time_point origin)
      : program_(plan.programs[static_cast<size_t>(rank)]),
        rank_(rank),
        holders_(HoldersOfStage(plan)),
        backend_(backend),
        transport_(transport),
        origin_(origin),
        transfers_(program_.size()),
        spans_(program_.size()) {}

  std::vector<Span> Run(int step) {
    try {
      backend_.BeginStep(step);
      begun_ = true;
      while (next_ < program_.size()) {
        const size_t first = next_;
        next_ = GroupEnd(first);
        at_ = first;
        Execute(first);
        FreeSent();
      }
      Finish();
      backend_.EndStep();
    } catch (const Aborted&) {
      throw;
    } catch (const InternalError& error) {
      throw InternalError(Place() + error.what());
    } catch (const Error& error) {
      throw Error(Place() + error.what());
    } catch (const std::bad_alloc&) {
      throw Error(Place() + "out of memory; use a smaller model, or fewer ranks or micro-batches");
    } catch (const std::exception& error) {
      throw InternalError(Place() + "internal error: " + error.what());
    }
    return std::move(spans_);
  }

 private:
  std::string Place() const {
    const std::string place = "rank " + std::to_string(rank_) + ", ";
    if (!begun_) return place + "start of step: ";
    if (at_ >= program_.size()) return place + "end of step: ";
    return place + "instruction " + std::to_string(at_) + " (" + ToString(program_[at_]) + "): ";
  }

  Time Since(Clock::time_point moment) const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(moment - origin_).count();
  }

  static bool IsMessage(const Instruction& i) {
    return WorkOf(i.op) == Work::kSend || WorkOf(i.op) == Work::kRecv;
  }

  /// One behind the messages that are posted together with the instruction `first`.
  size_t GroupEnd(size_t first) const {
    size_t end = first + 1;
    if (program_[first].group < 0 || !IsMessage(program_[first])) return end;
    while (end < program_.size() && program_[end].group == program_[first].group) ++end;
    return end;
  }

  void Execute(size_t index) {
    const Instruction& i = program_[index];
    switch (WorkOf(i.op)) {
      case Work::kCompute:
        AwaitInputs(i);
        return Timed(index, [&] { backend_.Compute(i); });
      case Work::kSend:
      case Work::kRecv:
        return PostGroup(index);
      case Work::kReduce: {
        const std::span<float> gradients = backend_.Gradients(i.stage);
        const Clock::time_point start =
            transport_.Sum(i, Transport::Over::kAllMembers, holders_[static_cast<size_t>(i.stage)], gradients);
        spans_[index] = {Since(start), Since(Clock::now())};
        return;
      }
      case Work::kStep:
        return Timed(index, [&] { backend_.OptimizerStep(i.stage); });
      case Work::kComponent:
      case Work::kAllToAll:
        break;
    }
    throw Error("a plan of level comm has no such instruction");
  }

  template <typename Action>
  void Timed(size_t index, const Action& action) {
    const Clock::time_point start = Clock::now();
    action();
    spans_[index] = {Since(start), Since(Clock::now())};
  }

  void PostGroup(size_t first) {
    group_.clear();
    for (size_t index = first; index < next_; ++index) {
      at_ = index;
      const Instruction& i = program_[index];
      if (!IsMessage(i)) throw Error("only SEND and RECV can be posted together as a group");
      const bool send = WorkOf(i.op) == Work::kSend;
      transfers_[index] = {i, send ? backend_.Outgoing(i) : backend_.Incoming(i)};
      if (send) {
        leaving_.push_back(index);
      } else if (!arriving_.emplace(TagOf(i), index).second) {
        throw Error("receives what is already on its way to this rank");
      }
      group_.push_back(&transfers_[index]);
    }
    at_ = first;
    transport_.Post(group_);
  }

  /// What F and the backward part of B, BW and FB consume must have arrived, where it comes in a
  /// message at all.
  void AwaitInputs(const Instruction& i) {
    if (HasForward(i.op)) Await({true, i.stage - 1, i.microbatch});
    if (HasBackward(i.op)) Await({false, BackStage(i) + 1, BackMicrobatch(i)});
  }

  void Await(const Tag& tag) {
    const auto arriving = arriving_.find(tag);
    if (arriving == arriving_.end()) return;
    const size_t index = arriving->second;
    transport_.Wait(transfers_[index]);
    Record(index);
    arriving_.erase(arriving);
  }

  void Record(size_t index) {
    spans_[index] = {Since(transfers_[index].start), Since(transfers_[index].end)};
  }

  /// Frees the bytes of messages that have left.
  void FreeSent() {
    std::erase_if(leaving_, [&](size_t index) {
      if (!transport_.Done(transfers_[index])) return false;
      Record(index);
      backend_.Sent(program_[index]);
      return true;
    });
  }

  void Finish() {
    for (const size_t index : leaving_) {
      at_ = index;
      transport_.Wait(transfers_[index]);
      Record(index);
      backend_.Sent(program_[index]);
    }
    for (const auto& [tag, index] : arriving_) {
      at_ = index;
      transport_.Wait(transfers_[index]);
      Record(index);
    }
    at_ = program_.size();
  }

  const Program& program_;
  const int rank_;
  const std::vector<std::vector<int>> holders_;
  Backend& backend_;
  Transport& transport_;
  const Clock::time_point origin_;
  std::vector<Transfer> transfers_;  // by instruction
  std::vector<Span> spans_;
  bool begun_ = false;
  size_t next_ = 0, at_ = 0;  // where the walk goes on; what it is doing, for messages
  std::vector<Transfer*> group_;
  std::vector<size_t> leaving_;     // SENDs that are not done yet
  std::map<Tag, size_t> arriving_;  // RECVs that nothing has waited for yet
};

}  // namespace

void CheckExecutable(const Plan& plan) {
  if (plan.level == Level::kComm) return;
  const std::string level(Name(plan.level));
  if (plan.level == Level::kCompute) {
    throw Error(
        "a plan of level compute has no messages and cannot be executed; compile it with "
        "--level comm");
  }
  throw Error("plans of level " + level +
              " cannot be executed by this version; compile with --level comm");
}

std::vector<Span> ExecuteProgram(const Plan& plan, int rank, int step, Backend& backend,
                                 Transport& transport, Clock::time_point origin) {
  return Walk(plan, rank, backend, transport, origin).Run(step);
}

}  // namespace contraflow
