#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "compiler/plan/grid.h"
#include "compiler/plan/plan.h"
#include "compiler/plan/timeline.h"
#include "compiler/simulate/simulate.h"

namespace contraflow {

/// Reason why an instruction does not start earlier.
struct Wait {
  InstructionRef on;  ///< of a message its SEND
  Time until = 0;     ///< when that let go
};

/// Waits of the instructions of a plan in a run of it, predicted or measured, by the timing model
/// of Simulate. No instruction waits for one that never runs (SimulateUpTo). Plan, costs and
/// timeline must outlive it.
class Waits {
 public:
  Waits(const Plan& plan, const CostModel& costs, const Timeline& timeline);

  /// The wait that ended last; of several at once the one before it on its lane. Empty if it waits
  /// for nothing. A RECV waits for its SEND alone. Ask for nothing that never runs.
  std::optional<Wait> Last(InstructionRef at) const;
  /// That, what it waited for in turn, and so on back to the start of the step.
  std::vector<Wait> Back(InstructionRef at) const;
  /// Returns the wait of a SEND for its data, where it may have waited in a queue since
  /// (CommCost::queued).
  std::optional<Wait> Made(InstructionRef at) const;

  const Instruction& At(InstructionRef ref) const {
    return plan_.program(ref.rank)[static_cast<size_t>(ref.index)];
  }
  const Span& SpanOf(InstructionRef ref) const {
    return timeline_.ranks[static_cast<size_t>(ref.rank)][static_cast<size_t>(ref.index)];
  }

 private:
  /// For each instruction of each rank an index in the same program, or -1.
  using Indices = std::vector<std::vector<int>>;

  void Locate(int rank);
  void Chain(int rank);
  void QueueOnEdges(int rank);
  void Queue(int rank);
  std::optional<Wait> OnLane(InstructionRef at) const;
  /// All but the lane.
  std::vector<Wait> Others(InstructionRef at) const;
  void OfCompute(InstructionRef at, std::vector<Wait>* waits) const;
  void OfSend(InstructionRef at, std::vector<Wait>* waits) const;
  void OfReduce(int stage, std::vector<Wait>* waits) const;
  void After(InstructionRef at, std::vector<Wait>* waits) const;
  void Add(int rank, int index, std::vector<Wait>* waits) const;
  void AddSent(const Instruction& recv, std::vector<Wait>* waits) const;
  void AddCell(const Grid<int>& cells, int stage, int microbatch, std::vector<Wait>* waits) const;
  void AddOutput(Op send, int rank, int stage, int microbatch, std::vector<Wait>* waits) const;
  int Owner(int stage, int microbatch) const;
  bool Runs(int rank, int stage, int microbatch) const;

  const Plan& plan_;
  const CommCost& comm_;
  const Timeline& timeline_;
  const bool lanes_;  ///< each instruction lists what it waits for
  const std::vector<int> route_of_;
  /// The instruction before it on its lane, the last OFFLOAD before it, the last on the compute
  /// lane before it; the last two are empty where nothing is offloaded.
  Indices lane_before_, offload_before_, compute_before_;
  // Positions of cells in the programs of the ranks that run them; of messages by the stage that
  // sends.
  Grid<int> forward_, backward_, send_f_, send_b_, recv_f_, recv_b_;
  Grid<int> reload_;  ///< empty where nothing is offloaded
  std::vector<std::vector<InstructionRef>> weights_, reduces_;  ///< by stage, the last of each rank
  Indices edge_before_;  ///< of a SEND that before it on its edge; empty where edges have no queue
  /// For a message in a queue the one before it that passed last; empty where there are no queues.
  Indices queue_before_;
};

}  // namespace contraflow
