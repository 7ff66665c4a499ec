#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "compiler/files/json.h"
#include "compiler/plan/plan.h"
#include "compiler/plan/timeline.h"
#include "compiler/plan/value.h"
#include "compiler/simulate/simulate.h"

namespace contraflow {

/// Time spent in the instructions of one kind.
struct KindTimes {
  int64_t count = 0;
  Time total = 0;

  double mean() const {
    return count == 0 ? 0 : static_cast<double>(total) / static_cast<double>(count);
  }
};

/// Use of the time of one or more steps.
struct RunTimes {
  std::map<Op, KindTimes> kinds;
  Time busy = 0;      ///< of the compute lanes: all but messages, and where instructions have lanes
                      ///< all-to-all and REDUCE
  Time capacity = 0;  ///< ranks times makespan
  int64_t steps = 0;
  Time bound = 0;  ///< LowerBound with the costs that these times follow

  double bubble_ratio() const {
    return capacity == 0 ? 0 : 1 - static_cast<double>(busy) / static_cast<double>(capacity);
  }
  /// Mean of the steps, from the first start of a compute lane.
  Time makespan(const Plan& plan) const { return steps == 0 ? 0 : capacity / steps / plan.ranks; }
  /// How much longer that is than the bound, as a part of the bound.
  double gap(const Plan& plan) const;
};

/// Adds a step.
void AddTimes(const Plan& plan, const Timeline& timeline, RunTimes* times);

/// The steps of a training, each simulated with the times that its own instructions took: what is
/// left of the difference to the measured ones is what the simulation does not know of.
class Replay {
 public:
  /// `lanes`: exchanges and REDUCE ran concurrently with compute (on a GPU). The plan must outlive
  /// it.
  Replay(const Plan& plan, bool lanes) : plan_(plan), lanes_(lanes) {}

  /// Remembers a step; however long a training is, the newest that fit in some megabytes count.
  void Add(const Timeline& timeline);
  void Clear() { steps_.clear(); }
  /// Times by `costs` of messages and the bound; at least one step was added.
  RunTimes Times(const CostModel& costs) const;

 private:
  const Plan& plan_;
  const bool lanes_;
  std::deque<Timeline> steps_;
};

/// A simulated step, with its bound. Throws Error if the costs do not fit the plan.
RunTimes SimulatedTimes(const Plan& plan, const CostModel& costs);

/// A training's times, side by side.
struct ComparedTimes {
  RunTimes measured;
  RunTimes simulated;                 ///< each step with the times of its own instructions
  std::optional<RunTimes> predicted;  ///< with the plan's costs, if it has any
};

/// Kind by kind, how often, how long each, and the share of the compute lanes' time, which compares
/// across machines; then makespan, bubble ratio and gap to the bound.
std::string FormatTimes(const Plan& plan, const ComparedTimes& times);

/// Like FormatTimes, as members "unit", "kinds", "bubble_ratio", "makespan" and "gap" of a
/// document.
void TimesToJson(const Plan& plan, const ComparedTimes& times, Json* document);

struct Plan;
class Job;
class Run;

/// The arenas of one rank.
struct RankArenas {
  std::array<int64_t, kArenaCount> predicted{};  ///< by the slots of the plan
  std::array<int64_t, kArenaCount> allocated{};  ///< by the device of it that allocated most
};

/// Arenas of every rank of a plan of level buffer, by what the devices of all processes say; for
/// the one that leads.
std::vector<RankArenas> ArenasOf(const Plan& plan, Run& run, Job& job);

/// Bytes of a device of each rank, arena by arena, and of all together predicted and allocated.
std::string FormatArenas(const std::vector<RankArenas>& ranks);

/// Like FormatArenas, as a member "arenas" of a document.
void ArenasToJson(const std::vector<RankArenas>& ranks, Json* document);

}  // namespace contraflow
