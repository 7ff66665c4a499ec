#pragma once

#include <string>
#include <vector>

#include "compiler/plan/spec.h"
#include "schedules/published/schedule.h"

namespace contraflow {

/// Why the system that the spec is for (Spec::target) does not run such a plan, beginning with a
/// verb as in "is not ..."; "" where it does, or where it is for none.
///
/// torch: plans of one route, recomputed by stages and not offloaded. megatron: 1f1b and
/// interleaved-1f1b in rounds of at least P micro-batches, recomputed as a whole or not at all, and
/// combined-1f1b with experts on several devices and nothing recomputed.
/// dualpipe (deepseek-ai/DualPipe): dualpipe and dualpipe-v, not recomputed. These schedules say
/// what they ask of P and M (Schedule::reject).
std::string RejectTarget(const Spec& spec);

/// Schedules of its own; none where it runs any plan of one route.
std::vector<const Schedule*> SchedulesOf(Target target);

/// True where `auto`, or automatic recompute, means the best of few plans that the target runs
/// (TargetSpecs), and no search.
bool HasFewSpecs(const Spec& spec);

/// Specs of those plans: the schedules of the target, interleaved ones in several depths, each with
/// every recompute that it may have. The memory limit is that of their stages.
std::vector<Spec> TargetSpecs(const Spec& spec);

}  // namespace contraflow
