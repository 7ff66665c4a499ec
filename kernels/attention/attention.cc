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

class MmaAttention : public AttentionEngine {
 public:
  explicit MmaAttention(const AttentionShape& shape) : shape_(shape) {}

  size_t work_bytes() const override {
    return sizeof(float) * static_cast<size_t>(shape_.batch) *
           static_cast<size_t>(shape_.sequence) * static_cast<size_t>(shape_.heads);
  }
  void Forward(Stream stream, const Bf16* qkv, void*, Bf16* out, float* lse) const override {
    MmaAttentionForward(stream, shape_, qkv, out, lse);
  }
  void Backward(Stream stream, const Bf16* qkv, const Bf16* out, const float* lse, const Bf16* dout,
                void* work, Bf16* dqkv) const override {
    MmaAttentionBackward(stream, shape_, qkv, out, lse, dout, static_cast<float*>(work), dqkv);
  }

 private:
  AttentionShape shape_;
};

}  // namespace

Attention::Attention(const AttentionShape& shape, int sms, Engine engine)
    : shape_(shape), name_("cudnn") {
  CheckShape(shape);
  if (sms < 1) throw GpuError(ToString(shape) + "it needs at least 1 SM");
  if (engine == Engine::kBest) engine_ = CudnnAttention(shape);
  if (engine_ != nullptr) return;
  name_ = "own";
  engine_ = std::make_unique<MmaAttention>(shape);
}
Attention::~Attention() = default;

size_t Attention::work_bytes() const { return engine_->work_bytes(); }

void Attention::Forward(Stream stream, const Bf16* qkv, void* work, Bf16* out, float* lse) const {
  CheckAligned(shape_, {{"qkv", qkv}, {"out", out}, {"lse", lse}, {"work", work}});
  engine_->Forward(stream, qkv, work, out, lse);
}

void Attention::BackwardInput(Stream stream, const Bf16* qkv, const Bf16* out, const float* lse,
                              const Bf16* dout, void* work, Bf16* dqkv) const {
  CheckAligned(
      shape_,
      {{"qkv", qkv}, {"out", out}, {"lse", lse}, {"dout", dout}, {"work", work}, {"dqkv", dqkv}});
  engine_->Backward(stream, qkv, out, lse, dout, work, dqkv);
}

}  // namespace contraflow::gpu
