#pragma once

#include <cstddef>
#include <deque>
#include <unordered_map>
#include <vector>

#include "compiler/plan/plan.h"
#include "compiler/simulate/engine.h"

namespace contraflow {

/// The queues through which the messages of a plan pass, where CommCost::queues says that a rank
/// has one, or one for each other rank. A queue stands at its first message, or at all of a group,
/// until each has met its other side. Then the transfer begins, and both queues wait for its end.
/// Plan, costs, edges and spans must outlive it.
class MessageQueues {
 public:
  MessageQueues(const Plan& plan, const CommCost& comm, Edges* edges);

  /// A rank comes to a SEND or RECV at `time`. `span`, by which both sides know the message, is set
  /// once both queues stand at it, and both ranks are woken.
  void Post(const InstructionRef& at, Time time, Span* span, Engine* engine);

 private:
  /// A message by itself, or those of a group.
  struct Entry {
    int group = -1;
    bool complete = false;  ///< all of the group has come
    Time ready = 0;
    std::vector<const Instruction*> messages = {};
    std::vector<Span*> spans = {};
    size_t met = 0;  ///< that have met their other side
  };
  struct Queue {
    int rank = 0;
    std::deque<Entry> entries;
    bool stands = false;  ///< at its first entry, whose other sides know of it
    Time free = 0;        ///< the end of what has passed
  };
  struct Side {
    Queue* queue = nullptr;
    Time ready = 0;
  };

  Queue& QueueOf(int rank, int peer);
  /// Tells the other sides of the first entry that the queue stands there, and so on with the next
  /// while all sides are there.
  void Advance(Queue* queue, Engine* engine);
  /// One message of the first entry has passed. True if that was the last of them.
  static bool Pass(Queue* queue, Time end);

  const Plan& plan_;
  const CommCost& comm_;
  Edges* const edges_;
  std::vector<Queue> queues_;
  std::unordered_map<const Span*, Side> waiting_;  // the side that came first
};

}  // namespace contraflow
