#include "runtime/core/transport.h"

namespace contraflow {

Tag TagOf(const Instruction& message) {
  const Op op = message.op;
  CF_ASSERT(WorkOf(op) == Work::kSend || WorkOf(op) == Work::kRecv);
  int producer = message.stage;
  if (op == Op::RECV_F) --producer;  // Names the stage that it is the input of.
  if (op == Op::RECV_B) ++producer;  // Names the stage whose output it is the gradient of.
  return {op == Op::SEND_F || op == Op::RECV_F, producer, message.microbatch};
}

Aborted::Aborted() : Error("stopped because another rank failed") {}

}  // namespace contraflow
