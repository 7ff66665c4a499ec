#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "compiler/lower/interleave.h"
#include "compiler/plan/plan.h"
#include "compiler/plan/timeline.h"
#include "kernels/host/bf16.h"
#include "runtime/gpu/gpu.h"
#include "runtime/model/model.h"

namespace contraflow {

/// What the kernels are measured on.
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

  static BenchSizes Full();
  /// For the emulator.
  static BenchSizes Tiny();
};

/// One line of the report. A target of 0 is none; `at_most` says that less is better.
struct Figure {
  std::string name;
  double value = 0;
  std::string unit;
  double target = 0;
  bool at_most = false;
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

  /// Seconds of one call of `work`, which gives work to stream(): the median of five runs of as
  /// many calls as take sizes().seconds, by the clock of the GPU.
  double Seconds(const std::function<void()>& work);

  /// Adds a line: bytes or operations a call by its time.
  void Bandwidth(const std::string& name, double bytes, double share_of_copy,
                 const std::function<void()>& work);
  void Rate(const std::string& name, double operations, double target,
            const std::function<void()>& work);
  void Add(Figure figure);
  /// Called with every figure once it is there, so that what follows cannot lose it.
  void OnFigure(std::function<void(const Figure&)> seen) { seen_ = std::move(seen); }
  const std::vector<Figure>& figures() const { return figures_; }
  /// TB/s, read and written, of a large copy; measured by MeasureCeilings.
  double copy_rate() const { return copy_rate_; }
  void set_copy_rate(double rate) { copy_rate_ = rate; }

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

/// The parts of the report, in this order. Targets are those of the issue that asked for the
/// kernels; where a rate is bounded by memory, shares of the copy rate measured in the same run.
void MeasureCeilings(GpuBench* bench);
void MeasureStreams(GpuBench* bench);
void MeasureRouting(GpuBench* bench);
void MeasureProducts(GpuBench* bench);
void MeasureLayers(GpuBench* bench);
void MeasureHost(GpuBench* bench);

/// name, figure, target, and figure / target (or target / figure where less is better); with
/// headings.
std::string FormatFigures(const std::vector<Figure>& figures);
/// The same of one figure, on a line of its own.
std::string FormatFigure(const Figure& figure);

/// Schedules to run on virtual ranks.
struct ScheduleSizes {
  struct Shape {
    int ranks, microbatches, expert_parallel;
  };
  Model model;
  std::vector<Shape> shapes;  ///< 1f1b, zb-1p and dualpipe each
  Shape overlap;              ///< for F&B with its all-to-all overlapped, and without
  int steps;                  ///< measured, behind the first

  static ScheduleSizes Full();
  static ScheduleSizes Tiny();
};

/// How far the all-to-all of one rank hides behind compute between the first and the last start of
/// a backward's first component, where the pipeline is full.
struct Hiding {
  Time window = 0, compute = 0, all_to_all = 0, exposed = 0;
};
Hiding HidingOf(const Program& program, const std::vector<Span>& spans);

/// The plan of a schedule on virtual ranks, with a layer of the model in each stage.
Plan BenchPlan(const std::string& schedule, const ScheduleSizes::Shape& shape, const Model& model,
               CostModel costs, Overlap overlap);
/// Costs of its components before any was measured: all take the same time.
CostModel AlikeCosts();

/// Runs every schedule twice, first to measure what its instructions cost, then as compiled with
/// those costs; adds efficiency (the share of the ranks' time that they compute) measured against
/// simulated, and the same of the makespan. A new GPU for each run. Returns what went wrong, one
/// line each: a run that failed must not take the others' figures with it.
std::vector<std::string> MeasureSchedules(const std::function<std::unique_ptr<Gpu>()>& new_gpu,
                                          const ScheduleSizes& sizes,
                                          const std::function<void(Figure)>& add);

}  // namespace contraflow
