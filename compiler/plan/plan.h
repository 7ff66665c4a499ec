#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/plan/cost.h"
#include "compiler/plan/grid.h"
#include "compiler/plan/instruction.h"
#include "compiler/plan/mark.h"
#include "compiler/plan/value.h"

namespace contraflow {

/// How far a plan is lowered. Each level adds to what Verify demands.
enum class Level : uint8_t {
  kCompute,    ///< F B W BW FB R OFFLOAD RELOAD in order, on each rank
  kComm,       ///< and SEND, RECV, REDUCE, STEP; messages in groups
  kComponent,  ///< components of layers in place of chunks, and lanes
  kBuffer,     ///< and a slot for every value
};

std::string_view Name(Level level);  ///< "compute" "comm" "component" "buffer"
/// Throws Error with the known names.
Level ParseLevel(std::string_view name);

/// Placement of the stages for the micro-batches that take this route. DualPipe has two routes,
/// interleaved and V-shaped placements have one which visits a rank several times.
struct Route {
  std::vector<int> ranks;         ///< ranks[s] owns stage s; size = stages
  std::vector<int> microbatches;  ///< ascending

  bool operator==(const Route&) const = default;
};

/// Origin of a searched plan: all that it takes to make it again from its costs, and how far it is
/// from the best possible. Times are of the compute order, in the costs of the plan.
struct Provenance {
  std::string placement;  ///< "linear" "v" "interleaved" "wave" "bidirectional"
  std::string from;       ///< "1f1b", "policy ...", "local search from ..."
  /// Stages that the costs were given for, where they were cut or merged to those of the plan.
  std::optional<int> cost_stages;
  /// Limit of this plan's activations on each rank: bytes or, where its costs give none, a count.
  std::optional<int64_t> memory_limit;
  Time makespan = 0;
  Time bound = 0;  ///< proven for this placement and limit
  /// The same for all placements that were tried, at most `bound`, where there are several.
  std::optional<Time> bound_of_all = {};
  int64_t budget = 0;  ///< nanoseconds; evaluated instructions are counted, no clock
  uint64_t seed = 0;   ///< below 2^63
  double noise = 0;
  bool interrupted = false;  ///< ended before its budget, so that it may come out better again

  bool operator==(const Provenance&) const = default;
};

/// The instructions of one rank, in issue order; `after` of one counts in its own program.
using Program = std::vector<Instruction>;

/// A compiled schedule: plain data. Passes take one and return one; nothing mutates a loaded plan.
struct Plan {
  std::string schedule;  ///< name of what generated it: letters, digits, '-', '_', '.'
  Level level = Level::kCompute;
  int ranks = 0;          ///< 1..kMaxRanks
  int stages = 0;         ///< 1..kMaxStages
  int microbatches = 0;   ///< 1..kMaxMicrobatches
  int data_parallel = 1;  ///< replicas of the whole pipeline; REDUCE sums over them as well
  /// Devices of one rank, which share its experts and run the same program with micro-batches of
  /// their own; REDUCE sums what is not an expert's over them as well.
  int expert_parallel = 1;
  /// Layers of each stage, where the program has components; else 0. If stages differ, the most.
  int layers = 0;
  std::vector<StageLayers> stage_layers;  ///< of each stage; empty: all have `layers` MoE layers
  std::vector<Route> routes;              ///< at least one; every micro-batch takes exactly one
  std::optional<CostModel> costs;         ///< the costs it was compiled with
  std::optional<Provenance> provenance;   ///< of a searched plan; only where there are costs
  std::vector<Program> programs;          ///< size = ranks
  std::vector<std::vector<Slot>> slots;   ///< of each rank at level buffer, else empty
  /// Semantics that the messages need; other than kRank only where an imported schedule has its own
  /// (level comm).
  Semantics semantics = Semantics::kRank;
  /// Marks of each rank of an imported schedule, by `before`; empty where no rank has any. Levels
  /// compute and comm only.
  std::vector<std::vector<Mark>> marks;

  /// Layers of a stage, and of what kind each is, where the program has components.
  int LayersOf(int stage) const {
    return stage_layers.empty() ? layers
                                : static_cast<int>(stage_layers[static_cast<size_t>(stage)].size());
  }
  LayerKind KindOf(int stage, int layer) const {
    return stage_layers.empty()
               ? LayerKind::kMoe
               : stage_layers[static_cast<size_t>(stage)][static_cast<size_t>(layer)];
  }
  /// True if every layer of every stage has all components.
  bool AllMoe() const;

  /// Program of one rank, 0..ranks-1.
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

/// True for a component with which the forward of a cell begins or ends, or its backward.
inline bool BeginsForward(const Instruction& i) { return i.op == Op::ATTN_F && i.layer == 0; }
bool EndsForward(const Plan& plan, const Instruction& i);
bool BeginsBackward(const Plan& plan, const Instruction& i);
inline bool EndsBackward(const Instruction& i) { return i.op == Op::ATTN_B && i.layer == 0; }

/// Returns a plan of the same schedule, sizes and routes at level compute: without instructions,
/// layers, costs and all that was made of them.
Plan FrameOf(const Plan& plan);

/// Sets the layers of a plan from its costs: the same for all stages, or one list a stage.
void SetLayers(const CostModel& costs, Plan* plan);
/// Throws Error if a plan has components of other layers than the costs.
void CheckLayers(const Plan& plan, const CostModel& costs);

/// Route of every micro-batch, an index into plan.routes; -1 where no route has it. The routes'
/// micro-batches must be in range, as Verify and ReadPlan see to.
std::vector<int> RouteOfMicrobatch(const Plan& plan);

/// Ranks that hold a copy of each stage, in route order, without repeats: what REDUCE sums over.
/// One list for each stage. Every route must give each stage a rank.
std::vector<std::vector<int>> HoldersOfStage(const Plan& plan);

/// True where the gradients of a stage with that many copies (HoldersOfStage) must be summed: over
/// its copies, replicas or expert group.
bool NeedsReduce(const Plan& plan, size_t copies);

/// How the devices of a rank split the model: as the costs say, else over the plan's expert group.
Parallel ParallelOf(const Plan& plan, const CostModel& costs);

/// The costs of a plan's stages where `reduce` and `step` are as its own copies of them take: a
/// ring over n takes (n - 1) / n of one over many, and n that share by ZeRO step 1 / n each.
CostModel AtReplicas(const CostModel& costs, const Plan& plan);

/// The costs of the stages of a plan (only its routes matter) as they are on the ranks they live
/// on: durations divided by RankCost::speed, which is 1 afterwards; REDUCE, a message, takes as
/// long as before. Throws Error if the costs list another number of ranks.
CostModel OnRanks(const CostModel& costs, const Plan& frame);

/// Number of instructions over all ranks.
int64_t InstructionCount(const Plan& plan);
/// Number of messages: SENDs over all ranks.
int64_t MessageCount(const Plan& plan);

/// The cells of a plan that have a certain instruction.
class MarkedCells {
 public:
  bool any() const { return !cells_.empty(); }
  bool Has(int stage, int microbatch) const { return any() && cells_(stage, microbatch); }
  /// True if some micro-batch of the stage does.
  bool HasStage(int stage) const;

 protected:
  /// Cells of instructions whose operation `marks` is true for.
  template <typename Marks>
  MarkedCells(const Plan& plan, const Marks& marks) : microbatches_(plan.microbatches) {
    for (const Program& program : plan.programs) {
      for (const Instruction& i : program) {
        if (!marks(i.op)) continue;
        if (cells_.empty()) cells_ = Grid<bool>(plan.stages, microbatches_);
        cells_(i.stage, i.microbatch) = true;
      }
    }
  }

 private:
  int microbatches_;
  Grid<bool> cells_;  ///< empty where there is none
};

/// Which cells run their forward again (R).
class RecomputedCells : public MarkedCells {
 public:
  explicit RecomputedCells(const Plan& plan);

  /// Extent of each stage that runs again (Verify: all its cells the same); empty where none does.
  const std::vector<RecomputeExtent>& extents() const { return extents_; }
  /// Whether a stage runs some of its forward again, not all of it.
  bool in_parts() const;
  /// Whether a stage runs its first layers again, not all of them.
  bool in_layers() const;
  /// True for the first component that runs again of a cell.
  bool Begins(const Instruction& i) const {
    if (!any()) return false;
    const First& first = first_[static_cast<size_t>(i.stage)];
    return i.op == first.op && i.layer == first.layer;
  }
  RecomputeExtent extent(int stage) const {
    return any() ? extents_[static_cast<size_t>(stage)] : RecomputeExtent();
  }

 private:
  /// The first component that a stage runs again.
  struct First {
    Op op = Op::R;
    int layer = 0;
  };

  std::vector<RecomputeExtent> extents_;
  std::vector<First> first_;
};

struct CellBytes;  // compiler/plan/recompute_cost.h

/// BytesOfCell of each of this many stages.
std::vector<CellBytes> BytesOfCells(const CostModel& costs, const RecomputedCells& recomputed,
                                    int stages);

/// Which cells are kept in the memory of the host for some of the time (OFFLOAD).
class OffloadedCells : public MarkedCells {
 public:
  explicit OffloadedCells(const Plan& plan) : MarkedCells(plan, IsHostCopy) {}
};

}  // namespace contraflow
