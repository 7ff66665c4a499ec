#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "kernels/attention/cudnn_descriptor.h"

namespace contraflow::gpu {

/// What an operation of cuDNN takes or gives: a matrix for every head of every sequence.
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
  /// Exists nowhere; rows one behind the other.
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

}  // namespace contraflow::gpu
