#include "compiler/simulate/message_queues.h"

#include <algorithm>

namespace contraflow {

MessageQueues::MessageQueues(const Plan& plan, const CommCost& comm, Edges* edges)
    : plan_(plan), comm_(comm), edges_(edges) {
  if (!comm_.queued()) return;
  const size_t ranks = plan.programs.size();
  const size_t each = comm_.queues == Semantics::kRank ? 1 : ranks;
  queues_.resize(ranks * each);
  for (size_t q = 0; q < queues_.size(); ++q) queues_[q].rank = static_cast<int>(q / each);
}

MessageQueues::Queue& MessageQueues::QueueOf(int rank, int peer) {
  const auto r = static_cast<size_t>(rank);
  if (comm_.queues == Semantics::kRank) return queues_[r];
  return queues_[r * plan_.programs.size() + static_cast<size_t>(peer)];
}

void MessageQueues::Post(const InstructionRef& at, Time time, Span* span, Engine* engine) {
  const Program& program = plan_.program(at.rank);
  const auto index = static_cast<size_t>(at.index);
  const Instruction& message = program[index];
  Queue& queue = QueueOf(at.rank, message.peer);
  const bool joins = message.group >= 0 && !queue.entries.empty() &&
                     queue.entries.back().group == message.group && !queue.entries.back().complete;
  if (!joins) queue.entries.push_back({.group = message.group});
  Entry& entry = queue.entries.back();
  entry.ready = std::max(entry.ready, time);
  entry.messages.push_back(&message);
  entry.spans.push_back(span);
  const bool more =
      message.group >= 0 && index + 1 < program.size() && program[index + 1].group == message.group;
  if (more) return;
  // The end of a group is that of its entries in all queues.
  size_t first = index;
  while (message.group >= 0 && first > 0 && program[first - 1].group == message.group) --first;
  for (size_t i = first; i <= index; ++i) {
    Queue& own = QueueOf(at.rank, program[i].peer);
    if (own.entries.empty() || own.entries.back().complete) continue;
    own.entries.back().complete = true;
    Advance(&own, engine);
  }
}

void MessageQueues::Advance(Queue* queue, Engine* engine) {
  std::vector<Queue*> next = {queue};
  while (!next.empty()) {
    Queue& here = *next.back();
    next.pop_back();
    if (here.stands || here.entries.empty() || !here.entries.front().complete) continue;
    here.stands = true;
    const Entry entry = here.entries.front();
    const Time ready = std::max(here.free, entry.ready);
    for (size_t i = 0; i < entry.spans.size(); ++i) {
      Span* const span = entry.spans[i];
      const auto [other, first] = waiting_.try_emplace(span, Side{&here, ready});
      if (first) continue;
      const Instruction& message = *entry.messages[i];
      Queue* const there = other->second.queue;
      const bool sends = IsSend(message.op);
      const int from = sends ? here.rank : there->rank, to = sends ? there->rank : here.rank;
      // Messages of a group may share an edge.
      *span =
          edges_->Send(from, to, CommCost::PairOf(message), std::max(ready, other->second.ready));
      waiting_.erase(other);
      engine->Wake(here.rank);
      engine->Wake(there->rank);
      if (Pass(there, span->end)) next.push_back(there);
      if (Pass(&here, span->end)) next.push_back(&here);
    }
  }
}

bool MessageQueues::Pass(Queue* queue, Time end) {
  queue->free = std::max(queue->free, end);
  Entry& entry = queue->entries.front();
  if (++entry.met < entry.spans.size()) return false;
  queue->entries.pop_front();
  queue->stands = false;
  return true;
}

}  // namespace contraflow
