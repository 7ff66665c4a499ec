#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "compiler/plan/instruction.h"
#include "kernels/gpu/exchange.h"
#include "kernels/gpu/stream.h"
#include "runtime/core/run.h"

namespace contraflow {

/// What one member of an expert group has to do with an all-to-all component: what it shows to the
/// others, and where it pulls their rows.
struct ExchangePart {
  gpu::ExchangePeer peer;
  bool to_experts;           ///< DISPATCH_F, COMBINE_B; else COMBINE_F, DISPATCH_B
  int32_t* first = nullptr;  ///< where DISPATCH_F puts the counts of the rows that came; else null
  int32_t* received = nullptr;
  int32_t* overflow;  ///< becomes 1 if more rows came than there is memory for
  int local_experts, width, capacity, most_rows, sent_rows;
};

/// What the instructions of one device are on a GPU: work that is given to a stream, and the memory
/// that messages and exchanges move. Everything but Upload and Results may be captured once and
/// replayed for every step, so nothing in it depends on the step, waits, or allocates. Used by the
/// issuing thread.
class GpuBackend {
 public:
  virtual ~GpuBackend() = default;

  /// Draws the micro-batches of a step and gives them, with the step size of the optimizer, to the
  /// stream. Steps count from 1. Not captured; the work of the step before is done.
  virtual void Upload(int step, gpu::Stream stream) = 0;
  /// Forgets the gradients, losses and counts of the last step.
  virtual void BeginStep(gpu::Stream stream) = 0;
  /// ATTN_F, MLP_F, ATTN_B, MLP_B, ATTN_W or MLP_W; ATTN_R, MLP_R.
  virtual void Compute(const Instruction& component, gpu::Stream stream) = 0;
  /// What an all-to-all component does on this device before its exchange (COMBINE_B: the gradient
  /// of combine, and of the head), and behind it (COMBINE_F: combine, head and loss; DISPATCH_B:
  /// the gradient of the gather). Nothing for the others.
  virtual void BeforeExchange(const Instruction& component, gpu::Stream stream) = 0;
  virtual void AfterExchange(const Instruction& component, gpu::Stream stream) = 0;
  virtual ExchangePart Exchange(const Instruction& component) = 0;
  /// Device memory that a SEND sends, or a RECV receives.
  virtual std::span<std::byte> Message(const Instruction& message) = 0;
  /// Gradients for REDUCE, as Backend::Gradients and Backend::ExpertGradients.
  virtual std::span<float> Gradients(int stage) = 0;
  virtual std::span<float> ExpertGradients(int stage) = 0;
  /// STEP.
  virtual void OptimizerStep(int stage, gpu::Stream stream) = 0;
  /// Gives the losses and counts of the step to the stream for the host to read.
  virtual void Download(gpu::Stream stream) = 0;
  /// Those, once the stream has come so far; spans are empty. Throws Error if rows overflowed or a
  /// loss is not finite.
  virtual DeviceStep Results() = 0;
};

}  // namespace contraflow
