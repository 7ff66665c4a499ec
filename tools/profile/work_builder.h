#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>

#include "tools/profile/layer_work.h"

namespace contraflow {

/// Collects the parts of one layer. Sizes are those of one device: columns divided by the
/// tensor-parallel group where it splits them.
class WorkBuilder {
 public:
  WorkBuilder(const ModelShape& of_model, const CostSetup& of_setup,
              const LayerShape& of_layer = {})
      : model(of_model),
        layer(of_layer),
        setup(of_setup),
        tp(setup.tensor_parallel),
        tokens(setup.tokens() / setup.context_parallel),
        own_tokens(tokens / tp),
        hidden(model.hidden),
        cast(setup.fp8 ? 1 : 2) {}

  struct Linear {
    std::string name;
    int64_t rows = 0, in = 0, out = 0;
    WorkKind kind = WorkKind::kMatmul;
    bool fp8 = true;       ///< if the setup has it
    int64_t matrices = 1;  ///< alike, that the rows are spread over
    bool bias = false;
    bool cast_in = true;   ///< with fp8: what comes in is bf16
    bool cast_out = true;  ///< with fp8: so is the gradient of what goes out
  };
  /// y = x W: 2 x rows x in x out FLOPs in each pass. Its parameters are counted.
  void Add(const Linear& linear);
  /// A pass over rows x width elements that reads and writes this many bytes of each.
  void AddMemory(const std::string& name, int64_t rows, int64_t width, int64_t f, int64_t b,
                 int64_t w = 0);
  /// Gathers (or scatters) this many rows over a group of this many devices this often in each
  /// pass; nothing if there is none.
  void AddGather(int64_t rows, int64_t devices, int64_t f, int64_t b, int64_t w);
  void Add(LayerPart part);
  void AddParameters(int64_t rows, int64_t width = 1);
  /// Bytes that this half of a layer keeps; where that is not what it makes, of the value that is
  /// named.
  void Keep(const std::string& name, KeptUntil until, int64_t rows, int64_t width, int64_t bytes,
            std::optional<Value> value = {});
  /// Adds the casts to fp8 of the half so far, and begins the second half.
  void EndHalf();
  WorkOfLayer Take() { return std::move(work_); }

  WorkOfLayer* work() { return &work_; }

  const ModelShape& model;
  const LayerShape layer;
  const CostSetup& setup;
  const int64_t tp;
  const int64_t tokens;      ///< of a tensor-parallel group
  const int64_t own_tokens;  ///< of a device between the halves
  const int64_t hidden;
  const int64_t cast;  ///< bytes of what a matmul takes

 private:
  WorkOfLayer work_;
  bool mlp_ = false;
  double cast_f_ = 0, cast_b_ = 0, cast_w_ = 0;  ///< bytes of the casts to fp8 of this half
};

/// Bytes of an activation.
inline constexpr int64_t kBf16 = 2;

// The parts of a layer, which is in `layer` of the builder.

/// Norms, the sum with what passes by the first half, and the layer's input.
void AddBegin(WorkBuilder* builder);
void AddAttention(WorkBuilder* builder);
void AddLinearMixer(WorkBuilder* builder);
/// The output of the mixers, which the second half takes where there is one.
void AddMiddle(WorkBuilder* builder);
/// The sum with what passes by the second half, and norms of its output.
void AddSecondHalf(WorkBuilder* builder);
/// A dense MLP, or router, experts and all-to-alls. The router belongs to the first half.
void AddDenseMlp(WorkBuilder* builder);
void AddRouter(WorkBuilder* builder);
void AddExperts(WorkBuilder* builder);
/// Width of the rows that experts take.
int64_t OuterWidth(const WorkBuilder& work);

/// Before a half of a layer, and after it; the weight gradient needs what was gathered again.
void AddGathers(int64_t rows, int64_t devices, WorkBuilder* builder);

/// "2 x 3 x 5"
std::string Product(std::initializer_list<int64_t> factors);

}  // namespace contraflow
