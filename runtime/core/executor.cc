#include "runtime/core/executor.h"

#include <algorithm>
#include <map>
#include <new>

#include "compiler/plan/error.h"

namespace contraflow {

void CheckExecutable(const Plan& plan) {
  if (plan.level == Level::kCompute) {
    throw Error(
        "a plan of level compute has no messages and cannot be executed; compile it with "
        "`level` comm");
  }
  if (plan.level == Level::kBuffer && plan.layers == 0) {
    throw Error(
        "this plan places the buffers of stages without components, which cannot be executed; "
        "compile it with \"moe\" costs, or with `level` comm");
  }
}

Executor::Executor(const Plan& plan, int rank, Backend& backend, Transport& transport,
                   Progress* progress)
    : program_(plan.program(rank)),
      rank_(rank),
      holders_(HoldersOfStage(plan)),
      backend_(backend),
      transport_(transport),
      progress_(progress),
      needs_(program_.size()),
      transfers_(program_.size()),
      spans_(program_.size()) {
  FindNeeds(plan);
  const auto messages = static_cast<size_t>(std::count_if(
      program_.begin(), program_.end(), [](const Instruction& i) { return IsMessage(i.op); }));
  group_.reserve(messages);
  leaving_.reserve(messages);
}

void Executor::FindNeeds(const Plan& plan) {
  std::map<Tag, size_t> arriving;  // RECVs that nothing has consumed yet
  for (size_t index = 0; index < program_.size(); ++index) {
    const Instruction& i = program_[index];
    const auto consume = [&](const Tag& tag) {
      const auto receive = arriving.find(tag);
      if (receive == arriving.end()) return;  // made on this rank
      needs_[index].push_back(receive->second);
      arriving.erase(receive);
    };
    if (plan.level != Level::kComm) {
      for (int a = 0; a < i.after_count; ++a) {
        const auto other = static_cast<size_t>(i.after[static_cast<size_t>(a)]);
        CF_ASSERT(other < index);
        if (IsMessage(program_[other].op)) needs_[index].push_back(other);
      }
      continue;
    }
    if (HasForward(i.op)) consume({true, i.stage - 1, i.microbatch});
    if (HasBackward(i.op)) consume({false, BackStage(i) + 1, BackMicrobatch(i)});
    if (WorkOf(i.op) == Work::kRecv && !arriving.emplace(TagOf(i), index).second) {
      at_ = static_cast<int64_t>(index);
      throw Error(Place() + "receives what is already on its way to this rank");
    }
  }
}

void Executor::Enter(int64_t index) {
  at_ = index;
  if (progress_ != nullptr) progress_->Enter(step_, index);
}

void Executor::Run(int step, Clock::time_point origin) {
  origin_ = origin;
  step_ = step;
  Enter(Progress::kStart);
  try {
    backend_.BeginStep(step);
    for (size_t first = 0; first < program_.size();) {
      // Messages of one group are posted together.
      const Instruction& i = program_[first];
      size_t end = first + 1;
      while (IsMessage(i.op) && i.group >= 0 && end < program_.size() &&
             program_[end].group == i.group) {
        ++end;
      }
      Enter(static_cast<int64_t>(first));
      transport_.Poll();
      for (size_t index = first; index < end; ++index) {
        at_ = static_cast<int64_t>(index);
        for (const size_t needed : needs_[index]) transport_.Wait(transfers_[needed]);
      }
      at_ = static_cast<int64_t>(first);
      // Before the instruction: it may reuse the memory of what has left.
      FreeSent();
      Execute(first, end);
      first = end;
    }
    Enter(Progress::kEnd);
    Finish();
    // From here on the rank waits for the others, or does what is not in the plan.
    Enter(Progress::kEnd);
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
}

std::string Executor::Place() const {
  const std::string place = "rank " + std::to_string(rank_) + ", ";
  if (at_ < 0) return place + (at_ == Progress::kEnd ? "end" : "start") + " of step: ";
  return place + "instruction " + std::to_string(at_) + " (" +
         ToString(program_[static_cast<size_t>(at_)]) + "): ";
}

void Executor::Execute(size_t first, size_t end) {
  const Instruction& i = program_[first];
  if (IsMessage(i.op)) return PostGroup(first, end);
  if (WorkOf(i.op) == Work::kReduce) return Reduce(first);
  const Clock::time_point start = Clock::now();
  if (WorkOf(i.op) == Work::kStep) {
    backend_.OptimizerStep(i.stage);
  } else {
    backend_.Compute(i);
  }
  spans_[first] = {Since(start), Since(Clock::now())};
}

void Executor::Reduce(size_t index) {
  const Instruction& i = program_[index];
  const std::vector<int>& holders = holders_[static_cast<size_t>(i.stage)];
  const Clock::time_point start =
      transport_.Sum(i, Transport::Over::kAllMembers, holders, backend_.Gradients(i.stage));
  const std::span<float> experts = backend_.ExpertGradients(i.stage);
  if (!experts.empty()) transport_.Sum(i, Transport::Over::kSameMember, holders, experts);
  spans_[index] = {Since(start), Since(Clock::now())};
}

void Executor::PostGroup(size_t first, size_t end) {
  group_.clear();
  for (size_t index = first; index < end; ++index) {
    at_ = static_cast<int64_t>(index);
    const Instruction& i = program_[index];
    if (!IsMessage(i.op)) throw Error("only SEND and RECV can be posted together as a group");
    transfers_[index] = {i, IsSend(i.op) ? backend_.Outgoing(i) : backend_.Incoming(i)};
    if (IsSend(i.op)) leaving_.push_back(index);
    group_.push_back(&transfers_[index]);
  }
  at_ = static_cast<int64_t>(first);
  transport_.Post(group_);
}

/// Gives back the bytes of messages that have left.
void Executor::FreeSent() {
  std::erase_if(leaving_, [&](size_t index) {
    if (!transport_.Done(transfers_[index])) return false;
    backend_.Sent(program_[index]);
    return true;
  });
}

void Executor::Finish() {
  for (size_t index = 0; index < program_.size(); ++index) {
    if (!IsMessage(program_[index].op)) continue;
    at_ = static_cast<int64_t>(index);
    transport_.Wait(transfers_[index]);
    spans_[index] = {Since(transfers_[index].start), Since(transfers_[index].end)};
  }
  FreeSent();
}

}  // namespace contraflow
