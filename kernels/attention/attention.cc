#include "kernels/attention/attention.h"

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <utility>

namespace contraflow::gpu {
namespace {

constexpr int kMaxWidth = 128;
constexpr int kMaxGrid = 65535;  // blocks of a grid in y and z

std::string ToString(const AttentionShape& shape) {
  return "attention of " + std::to_string(shape.batch) + " x " + std::to_string(shape.sequence) +
         " tokens, " + std::to_string(shape.heads) + " heads of " +
         std::to_string(shape.head_width) + ": ";
}

void CheckShape(const AttentionShape& shape) {
  if (shape.batch < 1 || shape.sequence < 1 || shape.heads < 1 || shape.head_width < 1) {
    throw GpuError(ToString(shape) + "every size must be at least 1");
  }
  if (shape.head_width % 8 != 0 || shape.head_width > kMaxWidth) {
    throw GpuError(ToString(shape) + "a head's width must be a multiple of 8 and at most 128");
  }
  const int64_t pairs = int64_t{shape.batch} * shape.sequence * shape.heads;
  if (shape.batch > kMaxGrid || shape.heads > kMaxGrid ||
      pairs * shape.head_width > std::numeric_limits<int32_t>::max() / 3) {
    throw GpuError(ToString(shape) + "that is more than the kernels can number; make micro-" +
                   "batches smaller");
  }
}

/// Copies of 16 bytes need it.
void CheckAligned(const AttentionShape& shape,
                  std::initializer_list<std::pair<const char*, const void*>> operands) {
  for (const auto& [name, operand] : operands) {
    if (operand != nullptr && reinterpret_cast<uintptr_t>(operand) % 16 == 0) continue;
    throw GpuError(ToString(shape) + name +
                   (operand == nullptr ? " is null" : " is not 16-aligned"));
  }
}

AttentionForward OwnForward(const AttentionShape& shape) {
  return {"own", 0, [shape](Stream stream, const Bf16* qkv, void*, Bf16* out, float* lse) {
            MmaAttentionForward(stream, shape, qkv, out, lse);
          }};
}

AttentionBackward OwnBackward(const AttentionShape& shape) {
  return {"own",
          sizeof(float) * static_cast<size_t>(shape.batch) * static_cast<size_t>(shape.sequence) *
              static_cast<size_t>(shape.heads),
          [shape](Stream stream, const Bf16* qkv, const Bf16* out, const float* lse,
                  const Bf16* dout, void* work, Bf16* dqkv) {
            MmaAttentionBackward(stream, shape, qkv, out, lse, dout, static_cast<float*>(work),
                                 dqkv);
          }};
}

/// cuDNN's or, where it has none, our own with its reason.
template <typename Direction>
Direction Best(const AttentionShape& shape, size_t most_work,
               Direction (*cudnn)(const AttentionShape&, size_t),
               Direction (*own)(const AttentionShape&)) {
  try {
    return cudnn(shape, most_work);
  } catch (const GpuError& error) {
    Direction ours = own(shape);
    ours.why_own = error.what();
    return ours;
  }
}

}  // namespace

Attention::Attention(const AttentionShape& shape, int sms, Engine engine, size_t most_work)
    : shape_(shape) {
  CheckShape(shape);
  if (sms < 1) throw GpuError(ToString(shape) + "it needs at least 1 SM");
  const bool best = engine == Engine::kBest;
  forward_ = best ? Best(shape, most_work, CudnnForward, OwnForward) : OwnForward(shape);
  backward_ = best ? Best(shape, most_work, CudnnBackward, OwnBackward) : OwnBackward(shape);
}

std::string Attention::engine() const {
  if (forward_.engine == backward_.engine) return forward_.engine;
  return forward_.engine + " forward, " + backward_.engine + " backward";
}

std::string Attention::Report() const {
  const std::string& why = backward_.why_own.empty() ? forward_.why_own : backward_.why_own;
  return why.empty() ? engine() : engine() + " (" + why + ")";
}

void Attention::Forward(Stream stream, const Bf16* qkv, void* work, Bf16* out, float* lse) const {
  CheckAligned(shape_, {{"qkv", qkv}, {"out", out}, {"lse", lse}, {"work", work}});
  forward_.run(stream, qkv, work, out, lse);
}

void Attention::BackwardInput(Stream stream, const Bf16* qkv, const Bf16* out, const float* lse,
                              const Bf16* dout, void* work, Bf16* dqkv) const {
  CheckAligned(
      shape_,
      {{"qkv", qkv}, {"out", out}, {"lse", lse}, {"dout", dout}, {"work", work}, {"dqkv", dqkv}});
  backward_.run(stream, qkv, out, lse, dout, work, dqkv);
}

}  // namespace contraflow::gpu
