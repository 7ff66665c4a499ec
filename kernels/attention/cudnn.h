#pragma once

// Attention by cuDNN's backend API, in which everything is a descriptor with attributes:
// descriptors, the operations that graphs are made of, plans to compute a graph, and those of
// attention. Included only by sources that are compiled where cuDNN is.

#include <cudnn_graph.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "kernels/gpu/stream.h"
#include "kernels/host/attention.h"
#include "kernels/host/bf16.h"

namespace contraflow::gpu {

/// Throws GpuError with what cuDNN says, unless it succeeded.
void CheckCudnn(cudnnStatus_t status, const char* what);

/// An owned descriptor. Every call throws GpuError with what cuDNN says of it.
class CudnnDescriptor {
 public:
  explicit CudnnDescriptor(cudnnBackendDescriptorType_t type);
  ~CudnnDescriptor();
  CudnnDescriptor(CudnnDescriptor&&) noexcept;
  CudnnDescriptor& operator=(CudnnDescriptor&&) noexcept;

  cudnnBackendDescriptor_t get() const { return descriptor_; }

  CudnnDescriptor& Set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                       int64_t count, const void* values);
  CudnnDescriptor& Set(cudnnBackendAttributeName_t name, const CudnnDescriptor& value);
  CudnnDescriptor& Set(cudnnBackendAttributeName_t name, const std::vector<int64_t>& values);
  CudnnDescriptor& Set(cudnnBackendAttributeName_t name, cudnnDataType_t value);
  void Finalize();

  /// Gets all values there are, at most `count`; returns how many.
  int64_t Get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
              void* values) const;

 private:
  cudnnBackendDescriptor_t descriptor_ = nullptr;
};

/// Operand or result of an operation of cuDNN: a matrix for every head of every sequence.
struct CudnnTensor {
  std::vector<int64_t> sizes, strides;  ///< sequences, heads, rows, columns
  CudnnDescriptor descriptor;
};

/// The operations of a graph, written as formulas. An operation gives a new tensor that exists
/// nowhere (cuDNN calls it virtual), or fills `to`. Sums and products are in fp32.
class CudnnOperations {
 public:
  using Tensor = const CudnnTensor*;
  using Sizes = std::vector<int64_t>;

  /// In 16-aligned device memory, or a float on the host, that a variant pack binds to the id.
  Tensor Memory(int64_t id, cudnnDataType_t type, const Sizes& sizes, const Sizes& strides);
  Tensor Scalar(int64_t id);
  /// Exists nowhere; rows are contiguous.
  Tensor Virtual(cudnnDataType_t type, const Sizes& sizes);

  /// a[m x k] b[k x n].
  Tensor Multiply(Tensor a, Tensor b, Tensor to = nullptr);
  /// Element by element; sizes of b that are 1 count for all of a.
  Tensor Pointwise(cudnnPointwiseMode_t mode, Tensor a, Tensor b = nullptr, Tensor to = nullptr);
  /// Over the columns.
  Tensor Reduce(cudnnReduceTensorOp_t operation, Tensor a, Tensor to = nullptr);
  /// Rows become columns; nothing moves. In bf16.
  Tensor Transposed(Tensor a);
  /// a where the row is not before the column, elsewhere `other`.
  Tensor LowerTriangle(Tensor a, Tensor other);

  /// All operations, as a finalized graph.
  CudnnDescriptor Graph() const;

 private:
  Tensor New(int64_t id, cudnnDataType_t type, const Sizes& sizes, const Sizes& strides,
             bool exists, bool on_host);
  void Add(CudnnDescriptor operation);

  int64_t next_id_ = 1000;  ///< of what does not exist
  std::deque<CudnnTensor> tensors_;
  std::deque<CudnnDescriptor> operations_;
};

/// The GPU to plan for: the one of a handle, or one described by what cuDNN calls its JSON
/// representation, which need not be there.
CudnnDescriptor CudnnDevice(cudnnHandle_t handle);
CudnnDescriptor CudnnDevice(const std::string& json);

/// How cuDNN computes a graph of operations.
class CudnnPlan {
 public:
  /// The first engine that cuDNN's heuristics (mode A) name for the device, that sums in a fixed
  /// order, and that can be built. Throws GpuError if there is none. It counts on all SMs of the
  /// device: the engines of attention refuse any other number, though they run on fewer.
  CudnnPlan(const CudnnDescriptor& graph, const CudnnDescriptor& device);

  size_t work_bytes() const { return work_bytes_; }

  /// A tensor's id, and what stands for it: device memory, or a float on the host.
  struct Binding {
    int64_t id;
    void* pointer;
  };
  /// Runs on the stream of the handle.
  void Execute(cudnnHandle_t handle, const std::vector<Binding>& bindings, void* work) const;

 private:
  CudnnDescriptor plan_;
  size_t work_bytes_ = 0;
};

/// Causal attention as graphs of cuDNN's operations, in the form that its fused engines know, and
/// the plans to compute them; operands as Attention (attention.h) has them. A plan computes a part:
/// some of the sequences or, where those of one sequence take too much work memory, some of its
/// heads; all parts are alike and run one after the other.
class CudnnAttention {
 public:
  int parts() const { return whole_.batch / part_.batch * (whole_.heads / part_.heads); }
  /// 256-aligned; the parts share it.
  size_t work_bytes() const { return work_bytes_; }

 protected:
  using PlanOf = CudnnPlan (*)(const AttentionShape& whole, const AttentionShape& part,
                               const CudnnDescriptor& device);

  /// The largest part that takes at most `most_work` bytes, `own_work` of them for itself. Throws
  /// GpuError, with what cuDNN says, if it will not have the shape.
  CudnnAttention(const AttentionShape& shape, const CudnnDescriptor& device, size_t most_work,
                 PlanOf plan_of, size_t (*own_work)(const AttentionShape& part));

  /// Calls run(first token, first element of a row, first sum) for each part.
  template <typename Function>
  void EachPart(const Function& run) const;

  AttentionShape whole_, part_{};
  float scale_;
  std::optional<CudnnPlan> plan_;
  size_t work_bytes_ = 0;
};

class CudnnAttentionForward : public CudnnAttention {
 public:
  CudnnAttentionForward(const AttentionShape& shape, const CudnnDescriptor& device,
                        size_t most_work);
  void Run(cudnnHandle_t handle, const Bf16* qkv, void* work, Bf16* out, float* lse) const;
};

/// The graph without sums in no fixed order: it keeps the gradients of all scores of a part, in
/// bf16, in work memory.
class CudnnAttentionBackward : public CudnnAttention {
 public:
  CudnnAttentionBackward(const AttentionShape& shape, const CudnnDescriptor& device,
                         size_t most_work);
  void Run(cudnnHandle_t handle, const Bf16* qkv, const Bf16* out, const float* lse,
           const Bf16* dout, void* work, Bf16* dqkv) const;
};

}  // namespace contraflow::gpu
