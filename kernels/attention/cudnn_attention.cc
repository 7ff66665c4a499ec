#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>

#include "kernels/attention/attention.h"
#include "kernels/attention/cudnn.h"

namespace contraflow::gpu {
namespace {

using Tensor = CudnnOperations::Tensor;

enum Id : int64_t {
  kQueries = 1,
  kKeys,
  kValues,
  kOut,
  kLse,
  kDout,
  kDqueries,
  kDkeys,
  kDvalues,
  kDot,  ///< dot(dout, out) of each row, in work memory
  kScale,
  kOne,
  kNever  ///< minus infinity
};

/// The tensors of a shape.
class Tensors {
 public:
  Tensors(const AttentionShape& shape, CudnnOperations* operations)
      : n_(shape), operations_(operations) {}

  /// A third of qkv or dqkv, and its matrices transposed.
  Tensor Rows(Id id) const {
    return operations_->Memory(id, CUDNN_DATA_BFLOAT16, RowSizes(), Strides(3));
  }
  Tensor Columns(Id id) const {
    const auto swapped = [](CudnnOperations::Sizes sizes) {
      std::swap(sizes[2], sizes[3]);
      return sizes;
    };
    return operations_->Memory(id, CUDNN_DATA_BFLOAT16, swapped(RowSizes()), swapped(Strides(3)));
  }
  /// out or dout.
  Tensor Out(Id id) const {
    return operations_->Memory(id, CUDNN_DATA_BFLOAT16, RowSizes(), Strides(1));
  }
  /// A float for each query.
  Tensor Sums(Id id) const {
    return operations_->Memory(id, CUDNN_DATA_FLOAT, {n_.batch, n_.heads, n_.sequence, 1},
                               {int64_t{n_.heads} * n_.sequence, n_.sequence, 1, 1});
  }

 private:
  CudnnOperations::Sizes RowSizes() const {
    return {n_.batch, n_.heads, n_.sequence, n_.head_width};
  }
  /// Of rows that have so many operands side by side.
  CudnnOperations::Sizes Strides(int64_t operands) const {
    const int64_t row = operands * n_.heads * n_.head_width;
    return {n_.sequence * row, n_.head_width, row, 1};
  }

  AttentionShape n_;
  CudnnOperations* operations_;
};

CudnnPlan ForwardPlan(const AttentionShape& shape, const CudnnDescriptor& device) {
  CudnnOperations graph;
  const Tensors tensors(shape, &graph);
  const Tensor products = graph.Multiply(tensors.Rows(kQueries), tensors.Columns(kKeys));
  const Tensor scaled = graph.Pointwise(CUDNN_POINTWISE_MUL, products, graph.Scalar(kScale));
  const Tensor scores = graph.LowerTriangle(scaled, graph.Scalar(kNever));
  const Tensor peak = graph.Reduce(CUDNN_REDUCE_TENSOR_MAX, scores);
  const Tensor below = graph.Pointwise(CUDNN_POINTWISE_SUB, scores, peak);
  const Tensor weights = graph.Pointwise(CUDNN_POINTWISE_EXP, below);
  const Tensor sum = graph.Reduce(CUDNN_REDUCE_TENSOR_ADD, weights);
  graph.Pointwise(CUDNN_POINTWISE_ADD, peak, graph.Pointwise(CUDNN_POINTWISE_LOG, sum),
                  tensors.Sums(kLse));
  const Tensor probabilities = graph.Virtual(CUDNN_DATA_BFLOAT16, weights->sizes);
  graph.Pointwise(CUDNN_POINTWISE_DIV, weights, sum, probabilities);
  graph.Multiply(probabilities, tensors.Rows(kValues), tensors.Out(kOut));
  return CudnnPlan(graph.Graph(), device);
}

CudnnPlan BackwardPlan(const AttentionShape& shape, const CudnnDescriptor& device) {
  CudnnOperations graph;
  const Tensors tensors(shape, &graph);
  const Tensor queries = tensors.Rows(kQueries), keys = tensors.Columns(kKeys);
  const Tensor dout = tensors.Out(kDout), scale = graph.Scalar(kScale);

  const Tensor both = graph.Pointwise(CUDNN_POINTWISE_MUL, dout, tensors.Out(kOut));
  const Tensor row_sum = graph.Reduce(CUDNN_REDUCE_TENSOR_ADD, both);
  const Tensor dot = tensors.Sums(kDot);
  graph.Pointwise(CUDNN_POINTWISE_MUL, row_sum, graph.Scalar(kOne), dot);

  const Tensor products = graph.Multiply(queries, keys);
  const Tensor scores = graph.Pointwise(CUDNN_POINTWISE_MUL, products, scale);
  const Tensor below = graph.Pointwise(CUDNN_POINTWISE_SUB, scores, tensors.Sums(kLse));
  const Tensor masked = graph.LowerTriangle(below, graph.Scalar(kNever));
  const Tensor weights = graph.Pointwise(CUDNN_POINTWISE_EXP, masked);
  graph.Multiply(graph.Transposed(weights), dout, tensors.Rows(kDvalues));

  const Tensor dweights = graph.Multiply(dout, tensors.Columns(kValues));
  const Tensor beyond = graph.Pointwise(CUDNN_POINTWISE_SUB, dweights, dot);
  const Tensor weighted = graph.Pointwise(CUDNN_POINTWISE_MUL, beyond, weights);
  const Tensor dscores = graph.Pointwise(CUDNN_POINTWISE_MUL, weighted, scale);
  graph.Multiply(graph.Transposed(dscores), queries, tensors.Rows(kDkeys));
  graph.Multiply(dscores, graph.Transposed(keys), tensors.Rows(kDqueries));
  return CudnnPlan(graph.Graph(), device);
}

/// cuDNN's variant packs take no pointers to const.
void* Plain(const void* pointer) { return const_cast<void*>(pointer); }

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity(), kUnit = 1;

/// What cuDNN wants of an address.
size_t Aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

size_t DotBytes(const AttentionShape& n) {
  return Aligned(sizeof(float) * static_cast<size_t>(n.batch) * static_cast<size_t>(n.heads) *
                 static_cast<size_t>(n.sequence));
}

ptrdiff_t WidthOf(const AttentionShape& n) {
  return static_cast<ptrdiff_t>(n.heads) * n.head_width;
}

struct DestroyHandle {
  void operator()(cudnnHandle_t handle) const { cudnnDestroy(handle); }
};

class Engine : public AttentionEngine {
 public:
  explicit Engine(const AttentionShape& shape)
      : handle_(NewHandle()), plans_(shape, CudnnDevice(handle_.get())) {}

  size_t work_bytes() const override { return plans_.work_bytes(); }
  void Forward(Stream stream, const Bf16* qkv, void* work, Bf16* out, float* lse) const override {
    plans_.Forward(On(stream), qkv, work, out, lse);
  }
  void Backward(Stream stream, const Bf16* qkv, const Bf16* out, const float* lse, const Bf16* dout,
                void* work, Bf16* dqkv) const override {
    plans_.Backward(On(stream), qkv, out, lse, dout, work, dqkv);
  }

 private:
  static cudnnHandle_t NewHandle() {
    cudnnHandle_t handle = nullptr;
    CheckCudnn(cudnnCreate(&handle), "cudnnCreate");
    return handle;
  }
  cudnnHandle_t On(Stream stream) const {
    CheckCudnn(cudnnSetStream(handle_.get(), static_cast<cudaStream_t>(stream.handle)),
               "cudnnSetStream");
    return handle_.get();
  }

  std::unique_ptr<std::remove_pointer_t<cudnnHandle_t>, DestroyHandle> handle_;
  CudnnAttentionPlans plans_;
};

}  // namespace

CudnnAttentionPlans::CudnnAttentionPlans(const AttentionShape& shape, const CudnnDescriptor& device)
    : shape_(shape),
      scale_(1 / std::sqrt(static_cast<float>(shape.head_width))),
      forward_(ForwardPlan(shape, device)),
      backward_(BackwardPlan(shape, device)) {}

size_t CudnnAttentionPlans::work_bytes() const {
  return std::max(Aligned(forward_.work_bytes()),
                  DotBytes(shape_) + Aligned(backward_.work_bytes()));
}

void CudnnAttentionPlans::Forward(cudnnHandle_t handle, const Bf16* qkv, void* work, Bf16* out,
                                  float* lse) const {
  const ptrdiff_t width = WidthOf(shape_);
  forward_.Execute(handle,
                   {{kQueries, Plain(qkv)},
                    {kKeys, Plain(qkv + width)},
                    {kValues, Plain(qkv + 2 * width)},
                    {kScale, Plain(&scale_)},
                    {kNever, Plain(&kMinusInfinity)},
                    {kOut, out},
                    {kLse, lse}},
                   work);
}

void CudnnAttentionPlans::Backward(cudnnHandle_t handle, const Bf16* qkv, const Bf16* out,
                                   const float* lse, const Bf16* dout, void* work,
                                   Bf16* dqkv) const {
  const ptrdiff_t width = WidthOf(shape_);
  backward_.Execute(handle,
                    {{kQueries, Plain(qkv)},
                     {kKeys, Plain(qkv + width)},
                     {kValues, Plain(qkv + 2 * width)},
                     {kOut, Plain(out)},
                     {kLse, Plain(lse)},
                     {kDout, Plain(dout)},
                     {kScale, Plain(&scale_)},
                     {kOne, Plain(&kUnit)},
                     {kNever, Plain(&kMinusInfinity)},
                     {kDot, work},
                     {kDqueries, dqkv},
                     {kDkeys, dqkv + width},
                     {kDvalues, dqkv + 2 * width}},
                    static_cast<std::byte*>(work) + DotBytes(shape_));
}

std::unique_ptr<AttentionEngine> CudnnAttention(const AttentionShape& shape) {
  try {
    auto engine = std::make_unique<Engine>(shape);
    if (engine->work_bytes() <= kMostAttentionWork) return engine;
  } catch (const GpuError&) {
    // Our own kernels take every shape.
  }
  return nullptr;
}

}  // namespace contraflow::gpu
