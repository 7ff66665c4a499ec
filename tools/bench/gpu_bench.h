#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "compiler/lower/interleave.h"
#include "compiler/plan/plan.h"
#include "compiler/plan/timeline.h"
#include "kernels/host/bf16.h"
#include "runtime/exec/gpu.h"
#include "runtime/model/model.h"
#include "tools/bench/figure.h"

namespace contraflow {

/// Sizes on which the kernels are measured.
struct BenchSizes {
  int tokens, width, heads, head_width;
  int sequence;  ///< of attention; divides tokens
  int experts, top_k, inner;
  int vocabulary, loss_rows;  ///< rows of logits
  int64_t parameters;         ///< of one optimizer step
  int gemm;                   ///< of the square product that gives the matrix rate
  int layer_tokens, layer_width;
  struct Layer {
    int inner, experts, top_k;
    double forward_target, backward_target;  ///< TFLOP/s, published for an H100 (SonicMoE, fig. 14)
  };
  std::vector<Layer> layers;
  size_t arena_bytes;  ///< device memory for all of it
  double seconds;      ///< one timing goes on for about as long
  int rounds = 5;      ///< of one timing, which is their median; at most 5

  static BenchSizes Full();
  /// For the emulator.
  static BenchSizes Tiny();
};

/// Times kernels on one GPU, with the operands they need: values that are random, and results that
/// begin poisoned. Used by one thread.
class GpuBench {
 public:
  GpuBench(Gpu& gpu, BenchSizes sizes);

  Gpu& gpu() { return gpu_; }
  gpu::Stream stream() const { return stream_; }
  const BenchSizes& sizes() const { return sizes_; }

  /// Device memory, 256-aligned, until the next Reset. Throws Error if the arena is used up.
  template <typename T>
  T* Take(int64_t count) {
    return reinterpret_cast<T*>(TakeBytes(static_cast<size_t>(count) * sizeof(T)));
  }
  void Reset() { used_ = 0; }
  /// `count` random values in [-1, 1).
  gpu::Bf16* Random(int64_t count);
  float* RandomFloats(int64_t count);
  /// From the host.
  int32_t* Integers(const std::vector<int32_t>& values);

  /// Seconds of one call of `work`, which gives work to stream(): the median of sizes().rounds runs
  /// of as many calls as take sizes().seconds, by the clock of the GPU.
  double Seconds(const std::function<void()>& work);

  /// Adds a line: bytes or operations a call by its time. The target is a share of CopyRate.
  void Bandwidth(const std::string& name, double bytes, double share_of_copy,
                 const std::function<void()>& work);
  void Rate(const std::string& name, double operations, double target,
            const std::function<void()>& work);
  void Add(Figure figure);
  /// Called with every figure once it is there, so that what follows cannot lose it.
  void OnFigure(std::function<void(const Figure&)> seen) { seen_ = std::move(seen); }
  const std::vector<Figure>& figures() const { return figures_; }
  /// TB/s, read and written, of a large copy; measured at the first call.
  double CopyRate();

 private:
  std::byte* TakeBytes(size_t bytes);
  void Repeat(std::byte* to, size_t bytes, const std::byte* from, size_t period);

  Gpu& gpu_;
  const BenchSizes sizes_;
  const gpu::Stream stream_;
  std::byte* const arena_;
  size_t used_ = 0;
  std::byte *pool_ = nullptr, *float_pool_ = nullptr;
  uint64_t* stamps_;
  std::vector<Figure> figures_;
  std::function<void(const Figure&)> seen_;
  double copy_rate_ = 0;
};

// Targets are those that were set before anything was measured; where memory bounds a rate, as
// shares of the copy rate that the same process measured.
void MeasureCeilings(GpuBench* bench);
/// TB/s of a large copy that others report of a GPU of this name; 0: none.
double CopyTarget(const std::string& gpu);
void MeasureExperts(GpuBench* bench);
// The same products in the other forms, each a family of its own: what hangs takes nothing along.
void MeasureLayers(GpuBench* bench);
void MeasureProjections(GpuBench* bench);
void MeasureAttention(GpuBench* bench);
void MeasureRouting(GpuBench* bench);
void MeasureNorms(GpuBench* bench);
void MeasurePositions(GpuBench* bench);
void MeasureActivation(GpuBench* bench);
void MeasureEnds(GpuBench* bench);
void MeasureOptimizer(GpuBench* bench);
void MeasureHost(GpuBench* bench);

/// Kernels that one process can measure on its own.
struct KernelFamily {
  const char* name;
  void (*measure)(GpuBench* bench);
};
/// The most valuable first.
std::span<const KernelFamily> KernelFamilies();

/// The GPU divided in 4 and in 8: whether partitions keep to themselves, how fast they are alone
/// and together, and what it costs to go from one to another. A new GPU for each division.
void MeasurePartitions(const std::function<std::unique_ptr<Gpu>()>& new_gpu,
                       const BenchSizes& sizes, const std::function<void(Figure)>& add);

/// Schedules to run on virtual ranks.
struct ScheduleSizes {
  struct Shape {
    int ranks, microbatches, expert_parallel;
  };
  struct Run {
    std::string schedule;
    Shape shape;
  };
  Model model;
  std::vector<Run> runs;  ///< the most valuable first
  Shape overlap;          ///< for F&B with its all-to-all overlapped, and without
  int steps;              ///< measured, after the first

  static ScheduleSizes Full();
  static ScheduleSizes Tiny();
  /// "dualpipe-4-16" and so on, and "overlap" as the second: what one process can measure.
  std::vector<std::string> Names() const;
};

/// How far the all-to-all of one rank is hidden by compute between the first and the last start of
/// a backward's first component, where the pipeline is full.
struct Hiding {
  Time window = 0, compute = 0, all_to_all = 0, exposed = 0;
};
Hiding HidingOf(const Program& program, const std::vector<Span>& spans);

/// Time of the compute lane of a stage for one micro-batch.
struct ComputeTimes {
  double f = 0, b = 0, w = 0;  ///< b: the input gradient only
};
/// The share of the ranks' time that a schedule computes, by its published bubble: (P-1)(F+B+W) for
/// 1f1b, (P-1)(F+B-W) for zb-1p, (P/2-1)(F&B+B-2W) for dualpipe, where F&B takes F+B+W.
double PublishedEfficiency(const std::string& schedule, const ScheduleSizes::Shape& shape,
                           const ComputeTimes& chunk);

/// The plan of a schedule on virtual ranks, with a layer of the model in each stage.
Plan BenchPlan(const std::string& schedule, const ScheduleSizes::Shape& shape, const Model& model,
               CostModel costs, Overlap overlap);
/// Costs of its components before any was measured: all take the same time.
CostModel AlikeCosts();

/// Measures what one of the names stands for, with a new GPU for each run. First come two runs for
/// costs: of one micro-batch, so that hardly more than one partition has work at a time (kernels
/// "alone"), and of the schedule itself (kernels "busy"). A third, of the plan compiled with the
/// latter, is what is reported, against a simulation with the costs of each of the two and against
/// PublishedEfficiency; a fourth is issued in streams instead of replayed as a graph. Throws Error,
/// and what runs throw.
void MeasureSchedule(const std::string& name, const std::function<std::unique_ptr<Gpu>()>& new_gpu,
                     const ScheduleSizes& sizes, const std::function<void(Figure)>& add);

}  // namespace contraflow
