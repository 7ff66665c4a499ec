#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "compiler/plan/plan.h"
#include "runtime/core/devices.h"
#include "runtime/core/transport.h"
#include "runtime/core/value_places.h"
#include "runtime/stages/stage_api.h"

namespace contraflow {

class CustomStages;

/// The table that a shared library exports (contraflow_stages), which stays loaded. Throws Error,
/// naming the file, if it is none or exports no table.
const contraflow_stage_api& LoadStages(const std::string& path);

/// The plan, if it has whole chunks and messages; else throws Error with the remedy.
const Plan& CheckCustom(const Plan& plan);

/// Cell that backward_weight gets for the cell of a backward.
contraflow_cell WeightCell(const contraflow_cell& backward);

/// One copy of a stage that somebody else wrote (runtime/stages/stage_api.h). An error that its
/// functions return is thrown as an Error that names stage and function, and so is an exception
/// that leaves one.
class CustomStage {
 public:
  /// On a GPU with a stream (a cudaStream_t) for this many SMs; else null and 0.
  CustomStage(const CustomStages& stages, int stage, Device device, void* stream, int sms);
  CustomStage(const CustomStage&) = delete;
  ~CustomStage();

  void BeginStep(int step, void* stream);
  void Forward(const contraflow_cell& cell, void* stream);
  void BackwardInput(const contraflow_cell& cell, void* stream);
  void BackwardWeight(const contraflow_cell& cell, void* stream);
  void Backward(const contraflow_cell& cell, void* stream);
  /// Forward of this stage, overlapped with the backward of `other`, which may be the same stage.
  void ForwardBackward(const contraflow_cell& forward, CustomStage* other,
                       const contraflow_cell& backward, void* stream);
  void OptimizerStep(void* stream);

  std::span<float> gradients() const { return gradients_; }
  /// Blocks that it must keep to go on later; names live as long as the stage.
  std::vector<contraflow_block> Blocks() const;

 private:
  const contraflow_stage_api& api_;
  const std::string name_;
  void* self_ = nullptr;
  std::span<float> gradients_;
};

/// The stages of a training that somebody else wrote.
class CustomStages {
 public:
  /// The table must outlive it, and the plan; `options` is for the stages alone. Throws Error if
  /// the table is of another version or lacks a function, its sizes cannot be, or the plan has
  /// components in place of chunks, or no messages.
  CustomStages(const contraflow_stage_api& api, const Plan& plan, bool on_gpu, uint64_t seed,
               std::string options);
  /// The same stages for another plan, which must outlive it, as must `same`'s table.
  CustomStages(const CustomStages& same, const Plan& plan);
  CustomStages(const CustomStages&) = delete;

  const Plan& plan() const { return plan_; }
  const contraflow_stage_api& api() const { return api_; }
  const contraflow_job& job() const { return job_; }
  /// Bytes of each value.
  const ValueBytes& bytes() const { return bytes_; }

 private:
  const contraflow_stage_api& api_;
  const Plan& plan_;
  const std::string options_;
  contraflow_job job_;
  ValueBytes bytes_{};
};

/// One device of a plan of custom stages: its copies of them, and where in its arenas the values
/// lie that an instruction touches.
class CustomDevice {
 public:
  /// `stages` must outlive it. `sms` and `stream` as of CustomStage. With `lanes` messages move
  /// while the device computes. Its arenas are still to be given.
  CustomDevice(const CustomStages& stages, Device device, bool lanes, void* stream, int sms);

  const ValuePlaces& places() const { return places_; }
  /// Memory of places().arena_bytes(), and a float for each micro-batch; before the first step.
  void PutValues(const std::array<std::byte*, kArenaCount>& arenas, float* losses);

  void BeginStep(int step, void* stream);
  /// F, B, W, BW, FB or R.
  void Compute(const Instruction& chunk, void* stream);
  std::span<std::byte> Message(const Instruction& message) const;
  CustomStage& At(int stage);
  /// The micro-batches whose loss Compute puts in its place, ascending.
  const std::vector<int>& losses_here() const { return losses_here_; }
  /// The stages that it holds, ascending.
  std::vector<int> Held() const;

 private:
  std::byte* At(const ValuePlaces::Use& use) const {
    return arenas_[static_cast<size_t>(use.place->arena)] + use.place->offset;
  }

  const CustomStages& stages_;
  const ValuePlaces places_;
  std::map<int, std::unique_ptr<CustomStage>> copies_;  // by stage
  std::vector<int> losses_here_;
  std::array<std::byte*, kArenaCount> arenas_{};
  float* losses_ = nullptr;  // by micro-batch
};

}  // namespace contraflow
