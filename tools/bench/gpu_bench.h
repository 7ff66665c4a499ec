#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/host/bf16.h"
#include "runtime/gpu/gpu.h"

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

}  // namespace contraflow
