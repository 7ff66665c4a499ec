#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "compiler/lower/lower.h"
#include "compiler/plan/plan.h"
#include "compiler/plan/spec.h"
#include "schedules/search/search_control.h"

namespace contraflow {

/// How a plan is compiled.
struct CompileOptions {
  Level level = Level::kComm;  ///< how far it is lowered
  /// How far MoE components overlap. Unset: as the chunk costs were derived, or as far as they can.
  std::optional<Overlap> overlap = {};
  /// Called after every pass with its name and the plan it made.
  PassObserver observer = {};
  /// Follows the search where the schedule is searched ("auto"), and may end it early with the best
  /// so far: the plan's provenance says then that it was interrupted.
  SearchControl control = {};
  /// Takes a plan that does not fit the devices (DevicesOf) as well.
  bool any_device = false;
};

/// The plan of a spec: generated, held against Spec::memory_limit, lowered to the level, and proven
/// after every pass. Costs with "moe" and no stages get their chunk costs first
/// (DeriveChunkCosts). The costs that were used are in the plan, those of a searched schedule for
/// its own stages.
///
/// Throws Error if the spec is out of range or the schedule does not take it, and if a rank would
/// hold more than the limit or its device: which rank, during which instruction, how much of what,
/// and the least limit that would do. Throws InternalError if a pass breaks the plan (a bug of
/// ours).
Plan Compile(Spec spec, const CompileOptions& options = {});

/// Returns, for a plan that Compile made of layers whose partition was its own choice, one of the
/// same schedule whose step is at most 5 % longer and whose fullest rank holds over 10 % less.
std::optional<Plan> LighterPlan(const Spec& spec, const Plan& plan, CompileOptions options);

/// Returns the bytes that the fullest rank of a compiled plan holds at most, all counted.
int64_t FullestRank(const Plan& plan);

/// The spec with costs of the stages that its schedule makes, where Spec::partition says that its
/// costs are of stages of a model: cut or merged; for `auto`, which finds its own, those of P
/// stages. Costs of layers stay as they are. Throws Error if the costs cannot be cut or merged so.
Spec WithStages(Spec spec);

/// The limit that `text` means for the schedule of the spec: "80000" bytes of activations on a rank
/// (activations where the costs give no bytes), or "1.5x" of what 1F1B's fullest rank holds.
/// `held_by_1f1b`: HeldBy1F1B of the model, if it is known. Throws Error if the text means no
/// limit, or the spec is out of range.
int64_t MemoryLimitOf(const Spec& spec, const std::string& text, double held_by_1f1b = 0);

/// Sets Spec::memory_limit, and limit_stages, as `text` says (MemoryLimitOf). A multiple without
/// bytes is rounded down for each placement of `auto` by itself. Throws as MemoryLimitOf.
void SetMemoryLimit(const std::string& text, double held_by_1f1b, Spec* spec);

/// Activations of 1F1B's fullest rank for the model of a spec, without limits, recompute and
/// offloading: bytes or, where the costs give none, those of a rank's whole share of the model.
double HeldBy1F1B(Spec spec, MadePlans* made = nullptr);

/// Spec::memory_limit of `auto` where neither a limit nor the memory of a device is known: as much
/// as 1F1B holds.
int64_t LimitOf1F1B(const Spec& spec, double held);

}  // namespace contraflow
