#include "kernels/attention/cudnn_plan.h"

#include <algorithm>
#include <array>
#include <utility>

namespace contraflow::gpu {
namespace {

constexpr int64_t kMostEngines = 32;

/// What the heuristics name for the graph, best first.
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
