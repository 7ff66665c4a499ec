#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compiler/plan/plan.h"

namespace contraflow {

/// One violation. Checks: "shape" "level" "owner" "complete" "order" "weight-order" "message"
/// "producer" "consumer" "group" "reduce" "step" "deadlock"; where instructions have lanes "lane"
/// "event"; of buffers "slot" "sharing".
struct Finding {
  std::string check;
  int rank = -1;   ///< -1: the plan as a whole
  int index = -1;  ///< instruction of that rank, -1: the program as a whole
  std::string message;

  bool operator==(const Finding&) const = default;
};

/// Every violation of what the plan's level promises (DESIGN section 3), in a fixed order: by
/// check, rank and index. Empty means proven: complete, in order, messages matched, and free of
/// deadlock under plan.semantics. Unless the plan was imported that is the strictest: one in-order
/// communication queue a rank, every operation a rendezvous without buffering, groups atomic, hence
/// free of it under any NCCL or MPI buffering. A deadlock names the minimal wait cycle. A plan of a
/// wrong shape gets these findings only; of one check the first thousand are listed and the rest
/// counted. Safe on any plan ReadPlan returns, however wrong. A group is posted as a whole, and its
/// queue goes on when all of it has been met. The order in which a copy of a stage adds
/// micro-batches to its weight gradients is data: that of its program, proven to be one for all of
/// the stage's components. Replicas and members of an expert group run the same program; copies on
/// several ranks have different micro-batches, and their sums are added in route order: so all
/// copies get the same bits. Linear in the instructions. Shares no code and no table with the
/// passes: includes the contract (compiler/plan) only.
std::vector<Finding> Verify(const Plan& plan);
/// Like the overload above under other semantics: only findings of "deadlock" depend on them.
std::vector<Finding> Verify(const Plan& plan, Semantics semantics);

/// A rank that goes no further: at this instruction it waits for another one.
struct BlockedAt {
  int rank = 0;
  int index = 0;
  int on_rank = 0;
};

/// How far a plan gets, executed as Verify does.
struct Standstill {
  std::vector<int> next;         ///< of each rank the first instruction that is not over at the end
  std::vector<BlockedAt> waits;  ///< of each rank that waits for another one the first, ascending
  std::vector<BlockedAt> cycle;  ///< a shortest cycle of waits; empty where there is none
};

/// Returns where any plan that is complete enough to be executed stands still: nothing for one of a
/// wrong shape, with what contradicts its level as a whole, or with far too few instructions.
std::optional<Standstill> FindStandstill(const Plan& plan);

/// "rank 2, instruction 17: BW s2 m3 ..." for people; "(BW s2 m3)" in front of the colon where the
/// message does not begin with it.
std::string ToString(const Finding& finding, const Plan& plan);

}  // namespace contraflow
