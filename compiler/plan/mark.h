#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace contraflow {

/// Entry of a schedule written elsewhere between its instructions. Names are those of PyTorch's
/// cells, each with its operands:
///
///     IDLE                        an empty cell, `count` of them in a row
///     WAIT_SEND_F WAIT_SEND_B     s3 m7: the rank computes and posts nothing more before this SEND
///                                 of its own is over
///     UNSHARD RESHARD             s3: parameters of a stage are gathered, and let go
///     REDUCE_GRAD WAIT_REDUCE_GRAD  s3: the sum of its gradients over replicas is begun, is over
enum class MarkKind : uint8_t {
  kIdle,
  kWaitSendF,
  kWaitSendB,
  kUnshard,
  kReshard,
  kReduceGrad,
  kWaitReduceGrad,
};
inline constexpr int kMarkKinds = 7;

/// One of them. It stands before an instruction of its rank, or after the last one.
struct Mark {
  MarkKind kind = MarkKind::kIdle;
  int32_t stage = -1;       ///< -1: IDLE
  int32_t microbatch = -1;  ///< WAIT_SEND only
  int32_t count = 1;        ///< IDLE only: 1 or more
  int32_t before = 0;       ///< index into the program; its size: after the last instruction

  bool operator==(const Mark&) const = default;
};

std::string_view Name(MarkKind kind);  ///< "WAIT_SEND_F"
inline bool IsWaitSend(MarkKind kind) {
  return kind == MarkKind::kWaitSendF || kind == MarkKind::kWaitSendB;
}

/// `WAIT_SEND_F s3 m7 before=12`, `UNSHARD s3 before=0`, `IDLE before=4`, `IDLE before=4 count=2`
std::string ToString(const Mark& mark);
/// Inverse of ToString: accepts exactly the text it writes. Throws Error that says what is wrong.
Mark ParseMark(std::string_view text);

}  // namespace contraflow
