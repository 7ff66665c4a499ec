#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/plan/cost.h"
#include "compiler/plan/instruction.h"
#include "compiler/plan/provenance.h"
#include "compiler/plan/value.h"

namespace contraflow {

/// How far a plan is lowered. Each level adds to what Verify demands (DESIGN section 3).
enum class Level : uint8_t { kCompute, kComm, kComponent, kBuffer };

std::string_view Name(Level level);
/// Throws Error with the known names.
Level ParseLevel(std::string_view name);

/// Where the stages live for the micro-batches that take this route. DualPipe has two routes,
/// interleaved and V-shaped placements have one which visits a rank several times.
struct Route {
  std::vector<int> ranks;         ///< ranks[s] owns stage s; size = stages
  std::vector<int> microbatches;  ///< ascending

  bool operator==(const Route&) const = default;
};

/// The instructions of one rank, in issue order.
using Program = std::vector<Instruction>;

/// A compiled schedule: plain data. Passes take one and return one; nothing mutates a loaded plan.
struct Plan {
  std::string schedule;
  Level level = Level::kCompute;
  int ranks = 0;
  int stages = 0;
  int microbatches = 0;
  int data_parallel = 1;  ///< replicas of the whole pipeline; REDUCE sums over them as well
  /// Devices of one rank, which share its experts and run the same program with micro-batches of
  /// their own; REDUCE sums what is not an expert's over them as well.
  int expert_parallel = 1;
  int layers = 0;  ///< of each stage, where the program has components; else 0
  std::vector<Route> routes;
  std::optional<CostModel> costs;        ///< the costs it was compiled with
  std::optional<Provenance> provenance;  ///< of a searched plan; only where there are costs
  std::vector<Program> programs;         ///< size = ranks
  std::vector<std::vector<Slot>> slots;  ///< of each rank at level buffer, else empty

  /// Of one rank, 0..ranks-1.
  const Program& program(int rank) const { return programs[static_cast<size_t>(rank)]; }
  Program& program(int rank) { return programs[static_cast<size_t>(rank)]; }

  // Compiled once, in plan.cc, as those of CostModel are.
  Plan();
  Plan(const Plan&);
  Plan(Plan&&) noexcept;
  Plan& operator=(const Plan&);
  Plan& operator=(Plan&&) noexcept;
  ~Plan();
  bool operator==(const Plan&) const;
};

/// Sizes above these are refused wherever a plan or spec comes in, before anything is allocated for
/// them.
inline constexpr int kMaxRanks = 1 << 14;
inline constexpr int kMaxStages = 1 << 15;
inline constexpr int kMaxMicrobatches = 1 << 20;
inline constexpr int kMaxDataParallel = 1 << 14;
inline constexpr int kMaxExpertParallel = 1 << 10;
/// Most MoE layers of a stage.
inline constexpr int kMaxLayers = 64;
/// Largest stages * micro-batches of a plan.
inline constexpr int64_t kMaxCells = int64_t{1} << 27;

/// Route of every micro-batch, -1 where no route has it.
std::vector<int> RouteOfMicrobatch(const Plan& plan);

/// Ranks that hold a copy of each stage, in route order, without repeats: what REDUCE sums over.
std::vector<std::vector<int>> HoldersOfStage(const Plan& plan);

/// True where a stage's gradients must be summed: over its copies, replicas or expert group.
bool NeedsReduce(const Plan& plan, size_t copies);

/// Number of instructions over all ranks.
int64_t InstructionCount(const Plan& plan);

}  // namespace contraflow
