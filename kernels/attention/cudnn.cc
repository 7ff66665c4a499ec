#include "kernels/attention/cudnn.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

namespace contraflow::gpu {

void CheckCudnn(cudnnStatus_t status, const char* what) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  std::array<char, 512> said = {};
  cudnnGetLastErrorString(said.data(), said.size());
  throw GpuError(std::string(what) + ": " + cudnnGetErrorString(status) + ": " + said.data());
}

CudnnDescriptor::CudnnDescriptor(cudnnBackendDescriptorType_t type) {
  CheckCudnn(cudnnBackendCreateDescriptor(type, &descriptor_), "cudnnBackendCreateDescriptor");
}
CudnnDescriptor::~CudnnDescriptor() {
  if (descriptor_ != nullptr) cudnnBackendDestroyDescriptor(descriptor_);
}
CudnnDescriptor::CudnnDescriptor(CudnnDescriptor&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, nullptr)) {}
CudnnDescriptor& CudnnDescriptor::operator=(CudnnDescriptor&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

CudnnDescriptor& CudnnDescriptor::Set(cudnnBackendAttributeName_t name,
                                      cudnnBackendAttributeType_t type, int64_t count,
                                      const void* values) {
  CheckCudnn(cudnnBackendSetAttribute(descriptor_, name, type, count, values),
             "cudnnBackendSetAttribute");
  return *this;
}
CudnnDescriptor& CudnnDescriptor::Set(cudnnBackendAttributeName_t name,
                                      const CudnnDescriptor& value) {
  const cudnnBackendDescriptor_t descriptor = value.get();
  return Set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &descriptor);
}
CudnnDescriptor& CudnnDescriptor::Set(cudnnBackendAttributeName_t name,
                                      const std::vector<int64_t>& values) {
  return Set(name, CUDNN_TYPE_INT64, static_cast<int64_t>(values.size()), values.data());
}
CudnnDescriptor& CudnnDescriptor::Set(cudnnBackendAttributeName_t name, cudnnDataType_t value) {
  return Set(name, CUDNN_TYPE_DATA_TYPE, 1, &value);
}

void CudnnDescriptor::Finalize() {
  CheckCudnn(cudnnBackendFinalize(descriptor_), "cudnnBackendFinalize");
}

int64_t CudnnDescriptor::Get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                             int64_t count, void* values) const {
  int64_t got = 0;
  CheckCudnn(cudnnBackendGetAttribute(descriptor_, name, type, count, &got, values),
             "cudnnBackendGetAttribute");
  return got;
}

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

namespace {

constexpr int64_t kMostEngines = 32;

/// Engines that the heuristics name for the graph, best first.
std::vector<CudnnDescriptor> Candidates(const CudnnDescriptor& graph,
                                        const CudnnDescriptor& device) {
  CudnnDescriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
  heuristics.Set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph)
      .Set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode)
      .Set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, device)
      .Finalize();
  std::vector<CudnnDescriptor> candidates;
  std::array<cudnnBackendDescriptor_t, kMostEngines> places = {};
  for (cudnnBackendDescriptor_t& place : places) {
    candidates.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    place = candidates.back().get();
  }
  const int64_t count = heuristics.Get(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                       kMostEngines, places.data());
  candidates.erase(candidates.begin() + std::min(count, kMostEngines), candidates.end());
  return candidates;
}

bool SumsInFixedOrder(const CudnnDescriptor& candidate) {
  const CudnnDescriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t place = engine.get();
  candidate.Get(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &place);
  std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> notes = {};
  const int64_t count = engine.Get(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                   static_cast<int64_t>(notes.size()), notes.data());
  return std::count(notes.begin(), notes.begin() + count, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) ==
         0;
}

CudnnDescriptor Plan(const CudnnDescriptor& candidate, const CudnnDescriptor& device) {
  CudnnDescriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  plan.Set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, device)
      .Set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, candidate)
      .Finalize();
  return plan;
}

CudnnDescriptor FirstPlan(const CudnnDescriptor& graph, const CudnnDescriptor& device) {
  std::string said = "it names no engine that sums in a fixed order";
  for (const CudnnDescriptor& candidate : Candidates(graph, device)) {
    if (!SumsInFixedOrder(candidate)) continue;
    try {
      return Plan(candidate, device);
    } catch (const GpuError& error) {
      said = error.what();
    }
  }
  throw GpuError("cuDNN has no plan: " + said);
}

}  // namespace

CudnnDescriptor CudnnDevice(cudnnHandle_t handle) {
  CudnnDescriptor device(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  device.Set(CUDNN_ATTR_DEVICEPROP_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle).Finalize();
  return device;
}

CudnnDescriptor CudnnDevice(const std::string& json) {
  CudnnDescriptor device(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  device
      .Set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
           static_cast<int64_t>(json.size()), json.data())
      .Finalize();
  return device;
}

CudnnPlan::CudnnPlan(const CudnnDescriptor& graph, const CudnnDescriptor& device)
    : plan_(FirstPlan(graph, device)) {
  int64_t bytes = 0;
  plan_.Get(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &bytes);
  work_bytes_ = static_cast<size_t>(bytes);
}

void CudnnPlan::Execute(cudnnHandle_t handle, const std::vector<Binding>& bindings,
                        void* work) const {
  std::vector<int64_t> ids;
  std::vector<void*> pointers;
  for (const Binding& binding : bindings) {
    ids.push_back(binding.id);
    pointers.push_back(binding.pointer);
  }
  CudnnDescriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.Set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, ids)
      .Set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
           static_cast<int64_t>(pointers.size()), pointers.data())
      .Set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &work)
      .Finalize();
  CheckCudnn(cudnnBackendExecute(handle, plan_.get(), pack.get()), "cudnnBackendExecute");
}

}  // namespace contraflow::gpu
