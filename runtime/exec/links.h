#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "compiler/plan/instruction.h"
#include "compiler/plan/plan.h"
#include "kernels/gpu/clip.h"
#include "kernels/gpu/exchange.h"
#include "kernels/gpu/stream.h"
#include "runtime/core/devices.h"
#include "runtime/core/step.h"
#include "runtime/core/transport.h"
#include "runtime/exec/gpu.h"

namespace contraflow {

/// Part of one member of an expert group in an all-to-all component: what it shows to the others,
/// and where it pulls their rows. In a group of one both ends of `peer` may be one place: the rows
/// are there already.
struct ExchangePart {
  gpu::ExchangePeer peer;
  bool to_experts;           ///< DISPATCH_F, COMBINE_B; else COMBINE_F, DISPATCH_B
  int32_t* first = nullptr;  ///< where DISPATCH_F puts the counts of the rows that came; else null
  int32_t* received = nullptr;
  int32_t* overflow;  ///< becomes 1 if more rows came than there is memory for
  int local_experts, width, capacity, most_rows, sent_rows;
};

/// Gives a stream the pull of member `self` of an expert group, whose part that is.
void Pull(gpu::Stream stream, const ExchangePart& part, const gpu::ExchangePeers& peers, int self,
          int ctas);

/// Instructions of one device on a GPU: work that is given to a stream, and the memory that
/// messages and exchanges move. Everything but Upload, Download and Results may be captured once
/// and replayed for every step, so nothing in it depends on the step, waits, or allocates. Used by
/// the issuing thread. A step may be issued while the one before it runs, but only after the one
/// before that has ended.
class GpuBackend {
 public:
  virtual ~GpuBackend() = default;

  /// Draws the micro-batches of a step before it comes to Upload, while the step before runs; the
  /// one ahead of that is done.
  virtual void Prepare(int /*step*/) {}
  /// Draws the micro-batches of a step, unless Prepare has, and gives them, with the step size of
  /// the optimizer, to the stream, after the step before. Steps count from 1. Not captured.
  virtual void Upload(int step, gpu::Stream stream) = 0;
  /// Forgets the gradients, losses and counts of the last step.
  virtual void BeginStep(gpu::Stream stream) = 0;
  /// ATTN_F, MLP_F, ATTN_B, MLP_B, ATTN_W or MLP_W; ATTN_R, MLP_R. Or a chunk of opaque stages.
  virtual void Compute(const Instruction& work, gpu::Stream stream) = 0;
  /// Work of an all-to-all component on this device before its exchange (COMBINE_B: the gradient of
  /// combine, and of the head; DISPATCH_F in a group of one: the rows), and after it (COMBINE_F:
  /// combine, head and loss; DISPATCH_B: the gradient of dispatch). Does nothing for the others.
  virtual void BeforeExchange(const Instruction& component, gpu::Stream stream) = 0;
  virtual void AfterExchange(const Instruction& component, gpu::Stream stream) = 0;
  virtual ExchangePart Exchange(const Instruction& component) = 0;
  /// Device memory that a SEND sends, or a RECV receives.
  virtual std::span<std::byte> Message(const Instruction& message) = 0;
  /// The memory that messages, and the ends of exchanges, lie in, where it is in one piece.
  virtual std::span<std::byte> LinkMemory() const { return {}; }
  /// Gradients for REDUCE, as Backend::Gradients and Backend::ExpertGradients.
  virtual std::span<float> Gradients(int stage) = 0;
  virtual std::span<float> ExpertGradients(int stage) = 0;
  /// STEP. If the norm of all gradients is limited, only adds up the squares of the stage's.
  virtual void OptimizerStep(int stage, gpu::Stream stream) = 0;
  /// Condition of the updates that all devices do.
  struct UpdateGuard {
    float limit = 0;  ///< to the norm of all gradients; 0: none
    /// Numbers of which that norm comes, one for each block of the model where there is a limit,
    /// and after them a note; 0: nothing holds updates back.
    int numbers = 0;
  };
  virtual UpdateGuard GuardOfUpdates() const { return {}; }
  /// Device memory for those numbers, which are 0, and for what comes of all devices'. Every STEP
  /// sets the sums of squares of its blocks. A stage is not updated if one of its gradients is not
  /// finite, nor where guard->failed.
  virtual void PutGuard(double* /*numbers*/, const gpu::Clip* /*guard*/) {}
  /// After all lanes: the note becomes NaN if something of the step is not finite or rows
  /// overflowed, else 0.
  virtual void NoteFailure(gpu::Stream /*stream*/) {}
  /// With a limit, after the notes of all devices: clips the gradients, and updates every stage.
  virtual void ClippedStep(gpu::Stream /*stream*/) {}
  /// Gives the losses and counts of the step to the stream for the host to read. Not captured.
  virtual void Download(int step, gpu::Stream stream) = 0;
  /// Returns those, once the stream has come so far; spans are empty. Throws Error if rows
  /// overflowed or something is not finite.
  virtual DeviceStep Results(int step) = 0;
};

/// One device of this process in a rendezvous: what it issues, and on which of its streams. The
/// waits of the instruction on its own device are over on that stream.
struct Participant {
  Device device;
  const Instruction* instruction;
  gpu::Stream stream;
  GpuBackend* backend;
};

/// How the devices of a plan reach each other. Each call gets all participants that this process
/// has, in the order that IssueOrder gives them; they leave their streams
/// such that what follows there comes after the transfer. Called in the plan's global order by the
/// issuing thread; never waits for the device.
class GpuLinks {
 public:
  virtual ~GpuLinks() = default;

  /// A SEND and its RECV; where only one of both ends is in this process, that one.
  virtual void Transfer(std::span<const Participant> ends) = 0;
  /// The exchange of an all-to-all component in an expert group.
  virtual void Exchange(std::span<const Participant> members) = 0;
  /// REDUCE: gradients of a stage become their sums over replicas, members and holders, those of
  /// experts over replicas and holders; added in that order (Transport::Sum), the same bits for
  /// all.
  virtual void Sum(std::span<const Participant> holders) = 0;
  /// values[DeviceCount x n]: after the parts of this process's devices come those of all others,
  /// in an order that is no matter. After and before whatever a step does.
  virtual void Gather(double* /*values*/, size_t /*n*/, gpu::Stream /*stream*/) {}
  /// Transfers between these calls begin together: none waits for another of the group.
  virtual void BeginGroup() {}
  virtual void EndGroup() {}
  /// Throws Error if the links have failed meanwhile; never waits. Called now and then while the
  /// host waits for the device.
  virtual void Poll() {}
  /// Gives up what is under way, so that nothing waits for ever; from any thread.
  virtual void Abort() {}
  /// The orderly end, after the last step and once the device is done; all processes.
  virtual void Close() {}
};

/// Joins devices that share one GPU, or at least its address space: messages are copies out of the
/// sender's memory into the receiver's, exchanges and sums read the memory of all that take part.
/// The kernels take as many CTAs as the budget says, which bounds what a link carries.
class VirtualLinks : public GpuLinks {
 public:
  /// For participants on these streams, all devices of the plan among them. Throws Error if more of
  /// them meet than a kernel can reach (gpu::kMaxPeers).
  VirtualLinks(const Plan& plan, const SmBudget& budget, Gpu& gpu,
               std::span<const gpu::Stream> streams);

  void Transfer(std::span<const Participant> ends) override;
  void Exchange(std::span<const Participant> members) override;
  void Sum(std::span<const Participant> holders) override;

 private:
  void Join(std::span<const Participant> participants);
  void SumOver(std::span<const Participant> holders, int member);
  int ExpertCtas(gpu::Stream stream) const;

  const SmBudget budget_;
  Gpu& gpu_;
  std::map<void*, GpuEvent*> events_;  // by the handle of a stream
  std::vector<std::span<float>> spans_;
  std::vector<ExchangePart> parts_;
};

}  // namespace contraflow
