#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <tuple>
#include <vector>

#include "compiler/plan/plan.h"
#include "kernels/gpu/elementwise.h"
#include "runtime/core/transport.h"
#include "runtime/exec/gpu.h"
#include "runtime/exec/links.h"
#include "runtime/gpu/products.h"
#include "runtime/gpu/stage.h"
#include "runtime/model/dataset.h"
#include "runtime/model/gpu_views.h"

namespace contraflow {

/// The plan, if it says all that GpuDevice needs; else throws Error with the remedy.
const Plan& CheckGpuPlan(const Plan& plan, const Model& model);

/// The matrix products of each device of it (GpuProducts).
std::vector<gpu::MatmulShape> ProductsOf(const Plan& plan, const Model& model);

/// One device of a plan with components and lanes on a GPU, or on a part of one: its copies of
/// stages, its arenas, and where each value lies.
class GpuDevice : public GpuBackend, public StageHolder {
 public:
  /// The plan is sound (Verify). All arguments must outlive the device. `setup` is one of its
  /// streams; matrix products are chosen for `compute_sms` SMs and by `choices`; `arenas` allocates
  /// the arenas. Returns once all is in place; memory without a value is full of NaN. Throws Error,
  /// with the remedy, if the plan is for another model or kind of device, or the model none for a
  /// GPU.
  GpuDevice(const Plan& plan, const Model& model, const Dataset& dataset, uint64_t seed,
            Device device, Gpu& gpu, gpu::Stream setup, int compute_sms,
            const MatmulChoices& choices = {}, const AllocateMemory& arenas = {});

  void Prepare(int step) override;
  void Upload(int step, gpu::Stream stream) override;
  void BeginStep(gpu::Stream stream) override;
  void Compute(const Instruction& component, gpu::Stream stream) override;
  void BeforeExchange(const Instruction& component, gpu::Stream stream) override;
  void AfterExchange(const Instruction& component, gpu::Stream stream) override;
  ExchangePart Exchange(const Instruction& component) override;
  std::span<std::byte> Message(const Instruction& message) override;
  std::span<std::byte> LinkMemory() const override { return arenas_.all; }
  std::span<float> Gradients(int stage) override;
  std::span<float> ExpertGradients(int stage) override;
  void OptimizerStep(int stage, gpu::Stream stream) override;
  UpdateGuard GuardOfUpdates() const override;
  void PutGuard(double* numbers, const gpu::Clip* guard) override;
  void NoteFailure(gpu::Stream stream) override;
  void ClippedStep(gpu::Stream stream) override;
  void Download(int step, gpu::Stream stream) override;
  DeviceStep Results(int step) override;

  /// From the next step on the experts that tokens visit are copied to the host.
  void KeepChoices();
  /// Returns the choices of a micro-batch of the last step in a layer of a stage, [T x k].
  const int32_t* ChoiceAt(int stage, int layer, int microbatch) const;

  /// On the host. Both wait for the GPU.
  Stage& StageAt(int stage) override;
  void Put(int stage) override;
  StageState StateAt(int stage) override { return At(stage).State(); }
  const std::array<int64_t, kArenaCount>& arena_bytes() const override { return arena_bytes_; }

 private:
  using Key = std::tuple<Op, int, int, int>;  // of an instruction: stage, layer, micro-batch
  struct Copy {
    std::unique_ptr<GpuStage> stage;
    std::unique_ptr<Stage> mirror;  // once it was asked for
    int32_t* choices = nullptr;  // [layers x micro-batches x T x k] on the host, if they are kept
  };

  static Key KeyOf(const Instruction& i) { return {i.op, i.stage, i.layer, i.microbatch}; }
  void PlaceValues(const Plan& plan, int rank, const AllocateMemory& allocate);
  void ShareOnePlace();
  void Update(int stage, gpu::Stream stream);
  /// Whether all experts are here, so that exchanges move nothing.
  bool Alone() const { return shape_.members == 1; }
  GpuStage& At(int stage);
  const GpuViews& ViewsOf(const Instruction& component) const;
  GpuLane LaneOf(const Instruction& component, gpu::Stream stream) const;
  const int32_t* TokensOf(int microbatch) const {
    return reinterpret_cast<const int32_t*>(input_) + ptrdiff_t{microbatch} * shape_.tokens;
  }
  const int32_t* TargetsOf(int microbatch) const { return TokensOf(microbatches_ + microbatch); }
  float* losses() const { return reinterpret_cast<float*>(output_); }
  int32_t* dropped() const { return reinterpret_cast<int32_t*>(losses() + microbatches_); }
  int32_t* overflow() const { return dropped() + 1; }
  int32_t* not_finite() const { return overflow() + 1; }
  size_t OutputBytes() const;
  size_t ChoiceSize() const {
    return static_cast<size_t>(shape_.tokens) * static_cast<size_t>(shape_.top_k);
  }
  int32_t* ChoicePlace(const Copy& copy, int layer, int microbatch) const {
    return copy.choices + static_cast<size_t>(layer * microbatches_ + microbatch) * ChoiceSize();
  }

  const Model model_;
  const Dataset& dataset_;
  const uint64_t seed_;
  const int member_, device_number_;  // the latter over replicas and members
  const int stages_, microbatches_;
  const LayerShape shape_;
  const float loss_scale_;
  Gpu& gpu_;
  const gpu::Stream setup_;
  const GpuProducts products_;
  std::array<int64_t, kArenaCount> arena_bytes_{};
  Arenas arenas_;
  std::map<int, Copy> copies_;                    // by stage
  std::map<Key, GpuViews> views_;                 // of components and messages
  std::map<Key, std::byte*> messages_;            // memory that SENDs and RECVs move
  const std::vector<int> begin_here_, end_here_;  // micro-batches, ascending
  MicroBatch micro_;
  double* numbers_ = nullptr;         // squares of gradients, by block of the model, and a note
  const gpu::Clip* guard_ = nullptr;  // null: nobody guards updates
  // Inputs of a step: tokens, then targets, [micro-batches x T]; AdamWStepSize. And what it gives:
  // losses [micro-batches], dropped, overflow, and of each stage a note of gradients that are not
  // finite (GpuStage::NotFinite).
  struct HostInput {
    std::byte* at;
    int step = 0;  // of which it is
  };
  // Inputs of the step under way and of the next one, by turns.
  std::array<HostInput, 2> host_inputs_;
  const std::array<std::byte*, 2> host_outputs_;
  std::byte *const input_, *const output_;
};

}  // namespace contraflow
