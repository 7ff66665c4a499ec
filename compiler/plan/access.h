#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "compiler/plan/plan.h"

namespace contraflow {

/// One instruction touching one value.
struct Access {
  Value value;
  int16_t layer;
  int32_t stage, microbatch;
  bool makes;  ///< the first to touch it; again where a chunk is recomputed or reloaded: of a new
               ///< value
};

/// Which values instructions touch: what the buffer pass places and the runtime follows. Layers
/// without MoE have no bytes here, only the values by which they depend on each other. Verify has a
/// table of its own.
class Accesses {
 public:
  /// The plan must outlive this; its shape is right (Verify's "shape"). With `layers`, how many
  /// each stage has, what a plan without components comes down to can be followed too.
  explicit Accesses(const Plan& plan, std::vector<int> layers = {});

  /// Every value that the instruction makes, reads or changes, on the rank that runs it; replaces
  /// `accesses`. Each value at most once. Values of no bytes (ValueBytesOf) included. The values of
  /// a recomputed chunk are made twice: the first is over when its forward is, and what comes
  /// after the second making touches the second. So is what is reloaded, whose first is over when
  /// it has been offloaded.
  void Of(const Instruction& instruction, std::vector<Access>* accesses) const;

 private:
  bool SameRank(int stage, int other, int microbatch) const;
  int16_t LastLayer(int stage) const {
    return static_cast<int16_t>(layers_[static_cast<size_t>(stage)] - 1);
  }
  void Forward(const Instruction& i, std::vector<Access>* accesses) const;
  void Backward(const Instruction& i, std::vector<Access>* accesses) const;
  /// True if the layer after that of a component runs again with it.
  bool RunsOn(const Instruction& i) const;
  void Finish(const Instruction& i, std::vector<Access>* accesses) const;
  void Chunk(const Instruction& i, std::vector<Access>* accesses) const;
  void Kept(const Instruction& i, std::vector<Access>* accesses) const;

  const Plan& plan_;
  const std::vector<int> route_of_;
  const RecomputedCells recomputed_;
  std::vector<int> layers_;  // by stage; 0: opaque stages
};

}  // namespace contraflow
