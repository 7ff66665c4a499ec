#include "kernels/attention/cudnn_operations.h"

#include <utility>

namespace contraflow::gpu {
namespace {

CudnnDescriptor PointwiseKind(cudnnPointwiseMode_t mode, cudnnDataType_t precision) {
  CudnnDescriptor kind(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  kind.Set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode)
      .Set(CUDNN_ATTR_POINTWISE_MATH_PREC, precision);
  return kind;
}

CudnnDescriptor PointwiseOperation(CudnnDescriptor kind) {
  kind.Finalize();
  CudnnDescriptor operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  operation.Set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, kind);
  return operation;
}

}  // namespace

CudnnOperations::Tensor CudnnOperations::New(int64_t id, cudnnDataType_t type, const Sizes& sizes,
                                             const Sizes& strides, bool exists, bool on_host) {
  tensors_.push_back({sizes, strides, CudnnDescriptor(CUDNN_BACKEND_TENSOR_DESCRIPTOR)});
  const bool is_virtual = !exists;
  tensors_.back()
      .descriptor.Set(CUDNN_ATTR_TENSOR_UNIQUE_ID, Sizes{id})
      .Set(CUDNN_ATTR_TENSOR_DATA_TYPE, type)
      .Set(CUDNN_ATTR_TENSOR_DIMENSIONS, sizes)
      .Set(CUDNN_ATTR_TENSOR_STRIDES, strides)
      .Set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, Sizes{16})
      .Set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual)
      .Set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &on_host)
      .Finalize();
  return &tensors_.back();
}

CudnnOperations::Tensor CudnnOperations::Memory(int64_t id, cudnnDataType_t type,
                                                const Sizes& sizes, const Sizes& strides) {
  return New(id, type, sizes, strides, true, false);
}

CudnnOperations::Tensor CudnnOperations::Scalar(int64_t id) {
  return New(id, CUDNN_DATA_FLOAT, {1, 1, 1, 1}, {1, 1, 1, 1}, true, true);
}

CudnnOperations::Tensor CudnnOperations::Virtual(cudnnDataType_t type, const Sizes& sizes) {
  return New(next_id_++, type, sizes,
             {sizes[1] * sizes[2] * sizes[3], sizes[2] * sizes[3], sizes[3], 1}, false, false);
}

void CudnnOperations::Add(CudnnDescriptor operation) {
  operation.Finalize();
  operations_.push_back(std::move(operation));
}

CudnnOperations::Tensor CudnnOperations::Multiply(Tensor a, Tensor b, Tensor to) {
  if (to == nullptr) {
    to = Virtual(CUDNN_DATA_FLOAT, {a->sizes[0], a->sizes[1], a->sizes[2], b->sizes[3]});
  }
  CudnnDescriptor kind(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  kind.Set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT).Finalize();
  CudnnDescriptor operation(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  operation.Set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, a->descriptor)
      .Set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, b->descriptor)
      .Set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, to->descriptor)
      .Set(CUDNN_ATTR_OPERATION_MATMUL_DESC, kind);
  Add(std::move(operation));
  return to;
}

CudnnOperations::Tensor CudnnOperations::Pointwise(cudnnPointwiseMode_t mode, Tensor a, Tensor b,
                                                   Tensor to) {
  if (to == nullptr) to = Virtual(CUDNN_DATA_FLOAT, a->sizes);
  CudnnDescriptor operation = PointwiseOperation(PointwiseKind(mode, CUDNN_DATA_FLOAT));
  operation.Set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, a->descriptor)
      .Set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, to->descriptor);
  if (b != nullptr) operation.Set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b->descriptor);
  Add(std::move(operation));
  return to;
}

CudnnOperations::Tensor CudnnOperations::Reduce(cudnnReduceTensorOp_t operation, Tensor a,
                                                Tensor to) {
  if (to == nullptr) to = Virtual(CUDNN_DATA_FLOAT, {a->sizes[0], a->sizes[1], a->sizes[2], 1});
  CudnnDescriptor kind(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  kind.Set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &operation)
      .Set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT)
      .Finalize();
  CudnnDescriptor reduction(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  reduction.Set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, a->descriptor)
      .Set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, to->descriptor)
      .Set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, kind);
  Add(std::move(reduction));
  return to;
}

CudnnOperations::Tensor CudnnOperations::Transposed(Tensor a) {
  Sizes sizes = a->sizes, strides = a->strides;
  std::swap(sizes[2], sizes[3]);
  std::swap(strides[2], strides[3]);
  const Tensor to = New(next_id_++, CUDNN_DATA_BFLOAT16, sizes, strides, false, false);
  CudnnDescriptor operation(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  operation.Set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, a->descriptor)
      .Set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, to->descriptor);
  Add(std::move(operation));
  return to;
}

CudnnOperations::Tensor CudnnOperations::LowerTriangle(Tensor a, Tensor other) {
  Tensor number[2];  // of the row, and of the column
  for (const int64_t axis : {2, 3}) {
    number[axis - 2] = Virtual(CUDNN_DATA_INT32, a->sizes);
    CudnnDescriptor kind = PointwiseKind(CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32);
    kind.Set(CUDNN_ATTR_POINTWISE_AXIS, Sizes{axis});
    CudnnDescriptor operation = PointwiseOperation(std::move(kind));
    operation.Set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, a->descriptor)
        .Set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, number[axis - 2]->descriptor);
    Add(std::move(operation));
  }
  const Tensor lower = Virtual(CUDNN_DATA_BOOLEAN, a->sizes);
  CudnnDescriptor compare =
      PointwiseOperation(PointwiseKind(CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN));
  compare.Set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, number[0]->descriptor)
      .Set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, number[1]->descriptor)
      .Set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, lower->descriptor);
  Add(std::move(compare));

  const Tensor to = Virtual(CUDNN_DATA_FLOAT, a->sizes);
  CudnnDescriptor choose =
      PointwiseOperation(PointwiseKind(CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT));
  choose.Set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, a->descriptor)
      .Set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, other->descriptor)
      .Set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, lower->descriptor)
      .Set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, to->descriptor);
  Add(std::move(choose));
  return to;
}

CudnnDescriptor CudnnOperations::Graph() const {
  std::vector<cudnnBackendDescriptor_t> operations;
  for (const CudnnDescriptor& operation : operations_) operations.push_back(operation.get());
  CudnnDescriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  graph
      .Set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
           static_cast<int64_t>(operations.size()), operations.data())
      .Finalize();
  return graph;
}

}  // namespace contraflow::gpu
