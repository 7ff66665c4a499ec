#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

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
  kNever  ///< a score that has no weight
};

/// The tensors of a part, which lie in those of the whole.
class Tensors {
 public:
  Tensors(const AttentionShape& whole, const AttentionShape& part, CudnnOperations* operations)
      : whole_(whole), part_(part), operations_(operations) {}

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
  /// A float for each query of this many heads a sequence.
  Tensor Sums(Id id, int64_t heads) const {
    return operations_->Memory(id, CUDNN_DATA_FLOAT, {part_.batch, part_.heads, part_.sequence, 1},
                               {heads * part_.sequence, part_.sequence, 1, 1});
  }

 private:
  CudnnOperations::Sizes RowSizes() const {
    return {part_.batch, part_.heads, part_.sequence, part_.head_width};
  }
  /// Strides of rows that have this many operands side by side.
  CudnnOperations::Sizes Strides(int64_t operands) const {
    const int64_t row = operands * whole_.heads * whole_.head_width;
    return {whole_.sequence * row, whole_.head_width, row, 1};
  }

  AttentionShape whole_, part_;
  CudnnOperations* operations_;
};

CudnnPlan ForwardPlan(const AttentionShape& whole, const AttentionShape& part,
                      const CudnnDescriptor& device) {
  CudnnOperations graph;
  const Tensors tensors(whole, part, &graph);
  const Tensor products = graph.Multiply(tensors.Rows(kQueries), tensors.Columns(kKeys));
  const Tensor scaled = graph.Pointwise(CUDNN_POINTWISE_MUL, products, graph.Scalar(kScale));
  const Tensor scores = graph.LowerTriangle(scaled, graph.Scalar(kNever));
  const Tensor peak = graph.Reduce(CUDNN_REDUCE_TENSOR_MAX, scores);
  const Tensor below = graph.Pointwise(CUDNN_POINTWISE_SUB, scores, peak);
  const Tensor weights = graph.Pointwise(CUDNN_POINTWISE_EXP, below);
  const Tensor sum = graph.Reduce(CUDNN_REDUCE_TENSOR_ADD, weights);
  graph.Pointwise(CUDNN_POINTWISE_ADD, peak, graph.Pointwise(CUDNN_POINTWISE_LOG, sum),
                  tensors.Sums(kLse, whole.heads));
  const Tensor probabilities = graph.Virtual(CUDNN_DATA_BFLOAT16, weights->sizes);
  graph.Pointwise(CUDNN_POINTWISE_DIV, weights, sum, probabilities);
  graph.Multiply(probabilities, tensors.Rows(kValues), tensors.Out(kOut));
  return CudnnPlan(graph.Graph(), device);
}

CudnnPlan BackwardPlan(const AttentionShape& whole, const AttentionShape& part,
                       const CudnnDescriptor& device) {
  CudnnOperations graph;
  const Tensors tensors(whole, part, &graph);
  const Tensor queries = tensors.Rows(kQueries), keys = tensors.Columns(kKeys);
  const Tensor dout = tensors.Out(kDout), scale = graph.Scalar(kScale);

  const Tensor both = graph.Pointwise(CUDNN_POINTWISE_MUL, dout, tensors.Out(kOut));
  const Tensor row_sum = graph.Reduce(CUDNN_REDUCE_TENSOR_ADD, both);
  const Tensor dot = tensors.Sums(kDot, part.heads);
  graph.Pointwise(CUDNN_POINTWISE_MUL, row_sum, graph.Scalar(kOne), dot);

  const Tensor products = graph.Multiply(queries, keys);
  const Tensor scores = graph.Pointwise(CUDNN_POINTWISE_MUL, products, scale);
  const Tensor below =
      graph.Pointwise(CUDNN_POINTWISE_SUB, scores, tensors.Sums(kLse, whole.heads));
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

// Not minus infinity: a difference of two of those is no number.
constexpr float kLowest = std::numeric_limits<float>::lowest(), kUnit = 1;

/// Alignment that cuDNN wants of an address.
size_t Aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

size_t Heads(const AttentionShape& n) {
  return static_cast<size_t>(n.batch) * static_cast<size_t>(n.heads);
}

size_t NoBytes(const AttentionShape&) { return 0; }
size_t DotBytes(const AttentionShape& n) {
  return Aligned(sizeof(float) * Heads(n) * static_cast<size_t>(n.sequence));
}

/// Into which the whole can be divided, from the whole to one head.
std::vector<AttentionShape> PartsOf(const AttentionShape& whole) {
  std::vector<AttentionShape> parts = {whole};
  const auto add = [&](int batch, int heads) {
    const AttentionShape part = {batch, whole.sequence, heads, whole.head_width};
    // Else the sums of the next part are not 16-aligned.
    if (Heads(part) * static_cast<size_t>(part.sequence) % 4 == 0) parts.push_back(part);
  };
  for (int batch = whole.batch - 1; batch >= 1; --batch) {
    if (whole.batch % batch == 0) add(batch, whole.heads);
  }
  for (int heads = whole.heads - 1; heads >= 1; --heads) {
    if (whole.heads % heads == 0) add(1, heads);
  }
  return parts;
}

}  // namespace

CudnnAttention::CudnnAttention(const AttentionShape& shape, const CudnnDescriptor& device,
                               size_t most_work, PlanOf plan_of,
                               size_t (*own_work)(const AttentionShape& part))
    : whole_(shape), scale_(1 / std::sqrt(static_cast<float>(shape.head_width))) {
  size_t each = 0;  // time of a head in a larger part
  for (const AttentionShape& part : PartsOf(shape)) {
    if (each * Heads(part) > most_work) continue;
    CudnnPlan plan = plan_of(shape, part, device);
    const size_t bytes = own_work(part) + Aligned(plan.work_bytes());
    each = bytes / Heads(part);
    if (bytes > most_work) continue;
    part_ = part;
    plan_ = std::move(plan);
    work_bytes_ = bytes;
    return;
  }
  throw GpuError("cuDNN's plan takes " + std::to_string(each) +
                 " bytes of work memory a head, of " + std::to_string(most_work) +
                 " that there are at most");
}

template <typename Function>
void CudnnAttention::EachPart(const Function& run) const {
  for (int sequence = 0; sequence < whole_.batch; sequence += part_.batch) {
    for (int head = 0; head < whole_.heads; head += part_.heads) {
      run(ptrdiff_t{sequence} * whole_.sequence, ptrdiff_t{head} * whole_.head_width,
          (ptrdiff_t{sequence} * whole_.heads + head) * whole_.sequence);
    }
  }
}

CudnnAttentionForward::CudnnAttentionForward(const AttentionShape& shape,
                                             const CudnnDescriptor& device, size_t most_work)
    : CudnnAttention(shape, device, most_work, ForwardPlan, NoBytes) {}

void CudnnAttentionForward::Run(cudnnHandle_t handle, const Bf16* qkv, void* work, Bf16* out,
                                float* lse) const {
  const ptrdiff_t width = ptrdiff_t{whole_.heads} * whole_.head_width;
  EachPart([&](ptrdiff_t token, ptrdiff_t column, ptrdiff_t sum) {
    const Bf16* const queries = qkv + token * 3 * width + column;
    plan_->Execute(handle,
                   {{kQueries, Plain(queries)},
                    {kKeys, Plain(queries + width)},
                    {kValues, Plain(queries + 2 * width)},
                    {kScale, Plain(&scale_)},
                    {kNever, Plain(&kLowest)},
                    {kOut, out + token * width + column},
                    {kLse, lse + sum}},
                   work);
  });
}

CudnnAttentionBackward::CudnnAttentionBackward(const AttentionShape& shape,
                                               const CudnnDescriptor& device, size_t most_work)
    : CudnnAttention(shape, device, most_work, BackwardPlan, DotBytes) {}

void CudnnAttentionBackward::Run(cudnnHandle_t handle, const Bf16* qkv, const Bf16* out,
                                 const float* lse, const Bf16* dout, void* work, Bf16* dqkv) const {
  const ptrdiff_t width = ptrdiff_t{whole_.heads} * whole_.head_width;
  EachPart([&](ptrdiff_t token, ptrdiff_t column, ptrdiff_t sum) {
    const Bf16* const queries = qkv + token * 3 * width + column;
    Bf16* const dqueries = dqkv + token * 3 * width + column;
    plan_->Execute(handle,
                   {{kQueries, Plain(queries)},
                    {kKeys, Plain(queries + width)},
                    {kValues, Plain(queries + 2 * width)},
                    {kOut, Plain(out + token * width + column)},
                    {kLse, Plain(lse + sum)},
                    {kDout, Plain(dout + token * width + column)},
                    {kScale, Plain(&scale_)},
                    {kOne, Plain(&kUnit)},
                    {kNever, Plain(&kLowest)},
                    {kDot, work},
                    {kDqueries, dqueries},
                    {kDkeys, dqueries + width},
                    {kDvalues, dqueries + 2 * width}},
                   static_cast<std::byte*>(work) + DotBytes(part_));
  });
}

}  // namespace contraflow::gpu
