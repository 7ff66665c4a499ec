#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "compiler/plan/cost.h"
#include "compiler/plan/plan.h"
#include "runtime/core/part_times.h"
#include "runtime/model/model.h"

namespace contraflow {

class Calibration;
class Job;
class Run;

/// Times of the devices of a rank for the parts of the model, in nanoseconds.
struct RankParts {
  int rank = 0;
  std::map<ModelPart, std::vector<Time>> times;
};

/// Parts of every device of the job, by what those of all processes say, for the one that leads;
/// empty where they cannot tell.
std::vector<RankParts> GatherParts(Run& run, Job& job);

/// The costs of a model by layer, as it was measured while a plan ran: the embedding, the layers
/// (all alike, so as one entry with `repeat`), and the head with the loss. In microseconds.
///
/// A time is the mean of the middle half of what all ranks took. On the host a rank computes one
/// thing after the other, its exchanges too: those are counted with the next compute, and no
/// all-to-all is left that could run concurrently with compute. STEP and REDUCE come from whole
/// stages, and are shared out by the parameters; of a plan without REDUCE that is an estimate, from
/// what a message takes. Bytes are those that the host allocates.
///
/// `model` is fitted to the plan; `calibration` has the plan's messages, STEP and REDUCE.
CostModel CostsByLayer(const Plan& plan, const Model& model, const std::vector<RankParts>& parts,
                       const Calibration& calibration);

/// Up to which part of their time ranks count as alike.
inline constexpr double kUnlikeRanks = 0.1;

/// How fast each of this many ranks computes a layer of the model, next to the fastest, by the
/// lower quartiles of its times and to three digits; empty if the slowest takes no more than
/// kUnlikeRanks longer, or a rank says nothing.
std::vector<double> SpeedsOf(const std::vector<RankParts>& parts, const Model& model, int ranks);

/// The same measurement as if every rank were as fast as the fastest.
std::vector<RankParts> AtOneSpeed(std::vector<RankParts> parts, const std::vector<double>& speeds);

/// Costs of CostsByLayer as the text of a cost file, with comments that say how far the times of
/// each part spread. `source` says where they are from.
std::string WriteLayerTimes(const CostModel& costs, const Model& model,
                            const std::vector<RankParts>& parts, const std::string& source);

}  // namespace contraflow
