#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/plan/cost.h"

namespace contraflow {

/// Placement of the stages by a searched schedule.
enum class Placement : uint8_t {
  kAny,            ///< the one with the shortest step
  kSingle,         ///< of those with one route, where a rank holds its parameters once
  kLinear,         ///< one stage a rank
  kV,              ///< two stages a rank, 0..P-1 and back
  kInterleaved,    ///< `chunks` stages a rank, 0..P-1 again and again
  kWave,           ///< `chunks` stages a rank, more than two, 0..P-1 and back again and again
  kBidirectional,  ///< two routes, 0..P-1 and P-1..0, as in Chimera and DualPipe
};

/// "any" "single" "linear" "v" "interleaved" "wave" "bidirectional"
std::string_view Name(Placement placement);
/// True for kAny and kSingle, of which a search tries several.
bool IsChoice(Placement placement);
/// True if a search for `asked` may have `placement`, which is no choice itself.
bool Allows(Placement asked, Placement placement);
/// Throws Error with the known names.
Placement ParsePlacement(std::string_view name);

/// How `auto` searches. Its result depends on these and the rest of the spec alone, never on the
/// clock: the budget is counted in evaluated instructions, this many to a second.
struct SearchOptions {
  Placement placement = Placement::kAny;
  int64_t budget = 2'000'000'000;  ///< of the whole search: nanoseconds on a machine of 2024, about
  uint64_t seed = 0;
  /// Candidates and published orders are compared by component-level time with this overlap; unset:
  /// by chunk time.
  std::optional<Overlap> components = {};
  double noise = 0;  ///< standard deviation of each duration, relative; 0: none is assumed
  /// The search ends once the step is longer than its bound by no more than this share of it.
  double until = 0;

  bool operator==(const SearchOptions&) const = default;
};

/// Which stages run their forward again (R) before their backward, and so hold no activations from
/// the end of F to R.
struct Recompute {
  enum class Choice : uint8_t {
    kNone,
    kFull,    ///< every stage
    kStages,  ///< `stages`
    kAuto,    ///< those that cost the least time and make the schedule fit the memory limit
  };
  Choice choice = Choice::kNone;
  std::vector<int> stages = {};  ///< ascending, without repeats
  RecomputePart part =
      RecomputePart::kFull;  ///< part that these stages run again; kFull for kNone and kAuto
  /// How many of a stage's layers run again, from its first on: one number for all that are chosen,
  /// or one for each of `stages`, which are then all stages, 0 for none; empty: all layers.
  std::vector<int> layers = {};
  /// For kAuto: whole stages alone, neither parts nor some of their layers.
  bool whole_stages = false;

  /// True if no stage holds less with any other.
  bool everything() const {
    const bool whole = part == RecomputePart::kFull && layers.empty();
    return choice == Choice::kAuto || (choice == Choice::kFull && whole);
  }
  bool operator==(const Recompute&) const = default;
};

/// "none", "full", "auto" or a list of stages and ranges, "0,3,5-7"; "attention", "experts" or
/// "all-but-attention" for that part of every stage, "attention:0,3,5-7" for that of some;
/// "layers=2" for the first two layers of every stage, "layers=2:0,3" for those of some,
/// "layers=2,2,1,0" with a number for each stage. Throws Error that says what is wrong. That the
/// stages exist is for the schedule to check.
Recompute ParseRecompute(std::string_view text);

/// Which cells leave for the memory of the host between their forward and their backward (OFFLOAD,
/// RELOAD).
struct Offload {
  enum class Choice : uint8_t {
    kNone,
    kFull,    ///< those of every stage for which the link to the host has the time
    kStages,  ///< likewise, of `stages`
    kAuto,    ///< those that make the schedule fit the memory limit
  };
  Choice choice = Choice::kNone;
  std::vector<int> stages = {};  ///< ascending, without repeats

  bool operator==(const Offload&) const = default;
};

/// Reads "none", "full", "auto" or "0,3,5-7". Throws Error.
Offload ParseOffload(std::string_view text);

/// Choice of how layers become stages.
struct PartitionChoice {
  enum class Kind : uint8_t {
    kAuto,  ///< the shortest step that is found
    kEven,  ///< as many layers in each stage, the first ones one more where that does not divide
    kList,  ///< `layers`
  };
  Kind kind = Kind::kAuto;
  /// For kList, the partition. For kAuto, the one with the shortest step, if it is known.
  Partition layers = {};
  /// For kAuto, published schedules and costs with bytes: the longest step that a partition may
  /// have, as a multiple of the shortest. The one whose fullest rank holds least is taken.
  double longer = 1.01;

  bool operator==(const PartitionChoice&) const = default;
};

/// "auto", "even" or a list with the layers of each stage, "4,4,5,3", where "4x3" is 4,4,4. Throws
/// Error that says what is wrong.
PartitionChoice ParsePartition(std::string_view text);
/// "4,4,5,3", with repeats as "4x15,1".
std::string FormatPartition(const Partition& partition);

/// The system that shall run the plan: schedules/target.h has what each of them runs.
enum class Target : uint8_t { kAny, kTorch, kMegatron, kDualPipe };
std::string_view Name(Target target);  ///< "any" "torch" "megatron" "dualpipe"
/// "torch", "megatron" or "dualpipe". Throws Error with these names.
Target ParseTarget(std::string_view name);

/// Specification of a schedule to be generated. CheckSpec says which values are in range.
struct Spec {
  std::string schedule;   ///< a name that FindSchedule knows
  int ranks = 0;          ///< of one pipeline
  int microbatches = 0;   ///< of one step
  int chunks = 0;         ///< stages a rank holds; 0: the schedule's own default
  int data_parallel = 1;  ///< replicas of the whole pipeline
  /// Devices of one rank (plan/plan.h); nothing: as the costs say, else 1.
  std::optional<int> expert_parallel = {};
  /// Costs of the stages that the schedule makes, one for every stage, or of the layers of a model.
  CostModel costs;
  /// Bytes of activations a rank may hold. Without activation_bytes in the costs, activations: for
  /// `auto` of the stages that the costs describe, else of the schedule's own (MemoryLimitOf).
  std::optional<int64_t> memory_limit;
  /// Stages whose activations memory_limit counts for `auto`; 0: those that the costs describe.
  int limit_stages = 0;
  /// Bytes of every rank's device, for all that it holds (MemoryFigures::total); nothing: any, or
  /// as the costs say of single ranks (DevicesOf).
  std::optional<int64_t> device_memory = {};
  SearchOptions search = {};  ///< of `auto` only
  Recompute recompute = {};   ///< put in after the generator (schedules/recompute/recompute.h)
  Offload offload = {};       ///< likewise (schedules/recompute/offload.h)
  /// Partition of costs with layers; none: auto. Given for costs of stages, these are those of a
  /// model in P stages or as many as they list, which are cut or merged evenly for the schedule.
  std::optional<PartitionChoice> partition = {};
  Target target = Target::kAny;  ///< Compile refuses, and searches, by it

  bool operator==(const Spec&) const = default;
};

/// How the devices of a rank split the model: as the costs say, else over the expert group.
Parallel ParallelOf(const Spec& spec);

/// Bytes of each rank's device: Spec::device_memory or, where the costs give less for a rank
/// (RankCost::memory_bytes), that; 2^62 for a rank without. Empty where no rank has any.
std::vector<int64_t> DevicesOf(const Spec& spec);

/// "80000000000", "80e9", "80GB" or "74.5GiB": a whole number of bytes, 1..2^62. Throws Error that
/// begins with `flag`.
int64_t ParseBytes(const std::string& text, const char* flag);

/// The number of "1.5x". Throws Error that begins with `place`.
double ParseMultiple(const std::string& text, const std::string& place = "");

/// "BYTES" or "Nx" (N times what 1F1B's fullest rank holds: P activations of a whole rank) for this
/// spec. Throws Error if malformed, not positive or too large.
int64_t ParseMemoryLimit(const std::string& text, const Spec& spec, int stages);

/// Throws Error if ranks, micro-batches, chunks, data_parallel or expert_parallel are out of range:
/// what is wrong with any schedule. Schedule::reject says what a certain schedule cannot do.
void CheckSpec(const Spec& spec);

}  // namespace contraflow
