#include "kernels/attention/attention.h"

#include <cstdint>
#include <limits>
#include <string>

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
void CheckAligned(const AttentionShape& shape, const char* name, const void* operand) {
  if (operand == nullptr || reinterpret_cast<uintptr_t>(operand) % 16 != 0) {
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

struct Attention::Impl {
  AttentionShape shape;
  std::unique_ptr<AttentionEngine> engine;
  std::string_view name;
};

Attention::Attention(const AttentionShape& shape, int sms, Engine engine)
    : impl_(std::make_unique<Impl>()) {
  CheckShape(shape);
  if (sms < 1) throw GpuError(ToString(shape) + "it needs at least 1 SM");
  impl_->shape = shape;
  impl_->name = "cudnn";
  if (engine == Engine::kBest) impl_->engine = CudnnAttention(shape);
  if (impl_->engine != nullptr) return;
  impl_->name = "own";
  impl_->engine = std::make_unique<MmaAttention>(shape);
}
Attention::~Attention() = default;

size_t Attention::work_bytes() const { return impl_->engine->work_bytes(); }
std::string_view Attention::engine() const { return impl_->name; }

void Attention::Forward(Stream stream, const Bf16* qkv, void* work, Bf16* out, float* lse) const {
  CheckAligned(impl_->shape, "qkv", qkv);
  CheckAligned(impl_->shape, "out", out);
  CheckAligned(impl_->shape, "lse", lse);
  CheckAligned(impl_->shape, "work", work);
  impl_->engine->Forward(stream, qkv, work, out, lse);
}

void Attention::BackwardInput(Stream stream, const Bf16* qkv, const Bf16* out, const float* lse,
                              const Bf16* dout, void* work, Bf16* dqkv) const {
  CheckAligned(impl_->shape, "qkv", qkv);
  CheckAligned(impl_->shape, "out", out);
  CheckAligned(impl_->shape, "lse", lse);
  CheckAligned(impl_->shape, "dout", dout);
  CheckAligned(impl_->shape, "work", work);
  CheckAligned(impl_->shape, "dqkv", dqkv);
  impl_->engine->Backward(stream, qkv, out, lse, dout, work, dqkv);
}

}  // namespace contraflow::gpu
