#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "compiler/bound/bound.h"
#include "compiler/plan/plan.h"
#include "compiler/plan/spec.h"
#include "schedules/partition/layer_work.h"

namespace contraflow {

/// How a placement with two stages a rank pairs them: a V (r and 2P-1-r), two routes (r and P-1-r,
/// mirrored on rank P-1-r), or interleaved (r and P+r).
struct Pairing {
  bool nested = true;          ///< the second stage of a rank is taken from the end of the layers
  int steps = 0;               ///< ranks, or pairs of them
  Time first = 0, second = 0;  ///< micro-batches of the two routes; of a single one in `first`
  bool middle = false;         ///< of an odd number of ranks the middle one has one stage

  /// Entries of all tables of the dynamic programme for this many layers.
  int64_t Entries(int layers) const;
};

/// Returns nothing for other placements.
std::optional<Pairing> PairingOf(const Plan& frame);

/// Times around stages of any layers, and what they say alone. A step is a rank, or ranks r and
/// P-1-r of two routes; they are filled one after the other, the first stages from the first layer
/// on.
class PairedRanks {
 public:
  /// All of these must outlive it.
  PairedRanks(const Spec& spec, LayerStages* layers, const LayerWork& work, const Pairing& pairing);

  const Pairing& pairing() const { return pairing_; }
  int layers() const { return layers_.layers(); }
  Time hop() const { return hop_; }
  int stages() const { return pairing_.second > 0 ? spec_.ranks : 2 * spec_.ranks; }

  /// Forwards and backwards of one micro-batch.
  Time Chain(int first, int last) const;
  /// Least time before a stage that begins with this layer, after this many hops; and after a
  /// stage.
  Time Head(int layer, int hops) const;
  Time Tail(int layer, int hops) const;
  /// Earliest time of the first micro-batch back at a stage, `layer` being the layer after it, and
  /// `hops` the hops before it.
  Time BackAt(int layer, int hops) const;

  /// Time of rank k, or of the fuller one of the two of step k, with two stages of so much each for
  /// a micro-batch.
  Time OfAll(int k, Time a, Time b) const;

  /// The bound from what step k says alone, with the layers i..to-1 and begin..end-1 (`alone`:
  /// without the second ones), however they overlap; for ranks that are alike.
  Time Prove(int k, int i, int to, int begin, int end, bool alone);

  /// Finds the room of the steps after step k in a step shorter than `most`.
  void FindRoom(Time most);
  /// True if they have no room for the layers left, to..inner-1 and, of two intervals, those from
  /// `outer` on.
  bool Leaves(int k, int to, int inner, int outer) const;

 private:
  int AllHops() const;
  RankStage Around(int s, int first, int last, Time microbatches);

  const Spec& spec_;
  LayerStages& layers_;
  const LayerWork& work_;
  const Pairing pairing_;
  const Time hop_;
  const double fastest_;
  std::vector<Time> room_;  // of a micro-batch's work, by step and layer
};

}  // namespace contraflow
