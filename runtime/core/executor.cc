#include "runtime/core/executor.h"

#include <algorithm>
#include <map>
#include <new>
#include <utility>

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
  if (!plan.AllMoe()) {
    throw Error(
        "this plan has an embedding, a head or dense layers as components of their own, and the "
        "runtime computes MoE layers, the ends with them; compile it with `model`, or with `level` "
        "comm");
  }
}

void Backend::StartCopy(const Instruction& copy, size_t /*offloads*/) {
  throw Error(ToString(copy) +
              " cannot be run here: only stages on the host keep activations in other memory; "
              "compile the plan without `offload`");
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
  if (OffloadedCells(plan).any()) FindCopies(plan);
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

/// Copies in one direction end in their order, so that of those an instruction waits for the last
/// one says all.
void Executor::FindCopies(const Plan& plan) {
  copies_.resize(program_.size());
  std::map<std::pair<int, int>, CopiesBefore> of_cell;  // up to the copies of a cell
  std::vector<size_t> number(program_.size(), 0);       // of each copy, from 1
  std::map<std::pair<int, int>, size_t> forward_of;
  size_t offloads = 0, reloads = 0;
  for (size_t index = 0; index < program_.size(); ++index) {
    const Instruction& i = program_[index];
    CopiesBefore& before = copies_[index];
    const bool forward_ends = HasForward(i.op) || (i.layer >= 0 && EndsForward(plan, i));
    if (forward_ends) forward_of[{i.stage, i.microbatch}] = index;
    // At level comm what takes memory waits for all that leaves before it.
    const bool takes = HasForward(i.op) || i.op == Op::R || i.op == Op::RELOAD;
    if (plan.level == Level::kComm && takes) before.offloads = offloads;
    for (int a = 0; a < i.after_count; ++a) {
      const auto other = static_cast<size_t>(i.after[static_cast<size_t>(a)]);
      const Op op = program_[other].op;
      if (op == Op::OFFLOAD) before.offloads = std::max(before.offloads, number[other]);
      if (op == Op::RELOAD) before.reloads = std::max(before.reloads, number[other]);
    }
    if (IsHostCopy(i.op)) {
      CopiesBefore& cell = of_cell[{i.stage, i.microbatch}];
      if (i.op == Op::RELOAD) before.offloads = std::max(before.offloads, cell.offloads);
      number[index] = i.op == Op::OFFLOAD ? ++offloads : ++reloads;
      (i.op == Op::OFFLOAD ? cell.offloads : cell.reloads) = number[index];
      if (i.op == Op::OFFLOAD) offloads_.push_back({forward_of.at({i.stage, i.microbatch}), index});
    } else if (plan.level == Level::kComm && HasBackward(i.op)) {
      const auto cell = of_cell.find({BackStage(i), BackMicrobatch(i)});
      if (cell != of_cell.end()) before.reloads = cell->second.reloads;
    }
  }
}

/// A copy does not keep what stands after it waiting: the backend sees to what it waits for.
void Executor::AwaitCopies(size_t index) {
  if (copies_.empty() || IsHostCopy(program_[index].op)) return;
  const CopiesBefore& before = copies_[index];
  if (before.offloads > 0) backend_.AwaitCopies(Op::OFFLOAD, before.offloads);
  if (before.reloads > 0) backend_.AwaitCopies(Op::RELOAD, before.reloads);
}

void Executor::Enter(int64_t index) {
  at_ = index;
  if (progress_ != nullptr) progress_->Enter(step_, index);
}

void Executor::Run(int step, Clock::time_point origin) {
  origin_ = origin;
  step_ = step;
  next_offload_ = 0;
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
        AwaitCopies(index);
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
  if (i.op == Op::RELOAD) return backend_.StartCopy(i, copies_[first].offloads);
  if (i.op == Op::OFFLOAD) return;  // since its forward has ended
  const Clock::time_point start = Clock::now();
  if (WorkOf(i.op) == Work::kStep) {
    backend_.OptimizerStep(i.stage);
  } else {
    backend_.Compute(i);
  }
  spans_[first] = {Since(start), Since(Clock::now())};
  StartOffloads(first);
}

/// Starts, in their order, the OFFLOADs whose forward has ended.
void Executor::StartOffloads(size_t index) {
  for (; next_offload_ < offloads_.size() && offloads_[next_offload_].forward <= index;
       ++next_offload_) {
    backend_.StartCopy(program_[offloads_[next_offload_].index], 0);
  }
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
  size_t offloads = 0, reloads = 0;
  for (size_t index = 0; index < program_.size() && !copies_.empty(); ++index) {
    const Op op = program_[index].op;
    if (!IsHostCopy(op)) continue;
    at_ = static_cast<int64_t>(index);
    size_t& number = op == Op::OFFLOAD ? offloads : reloads;
    backend_.AwaitCopies(op, number + 1);
    const CopyTimes times = backend_.TimesOfCopy(op, number++);
    spans_[index] = {Since(times.start), Since(times.end)};
  }
  for (size_t index = 0; index < program_.size(); ++index) {
    if (!IsMessage(program_[index].op)) continue;
    at_ = static_cast<int64_t>(index);
    transport_.Wait(transfers_[index]);
    spans_[index] = {Since(transfers_[index].start), Since(transfers_[index].end)};
  }
  FreeSent();
}

}  // namespace contraflow
