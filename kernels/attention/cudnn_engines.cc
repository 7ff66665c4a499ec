#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <type_traits>

#include "kernels/attention/attention.h"
#include "kernels/attention/cudnn.h"

namespace contraflow::gpu {
namespace {

struct DestroyHandle {
  void operator()(cudnnHandle_t handle) const { cudnnDestroy(handle); }
};

/// cuDNN plan of a direction on one device. A handle and a plan serve one thread at a time.
template <typename Direction>
class Engine {
 public:
  Engine(const AttentionShape& shape, size_t most_work)
      : handle_(NewHandle()), direction_(shape, CudnnDevice(handle_.get()), most_work) {}

  const Direction& direction() const { return direction_; }

  template <typename... Operands>
  void Run(Stream stream, Operands... operands) {
    const std::lock_guard lock(mutex_);
    CheckCudnn(cudnnSetStream(handle_.get(), static_cast<cudaStream_t>(stream.handle)),
               "cudnnSetStream");
    direction_.Run(handle_.get(), operands...);
  }

 private:
  static cudnnHandle_t NewHandle() {
    cudnnHandle_t handle = nullptr;
    CheckCudnn(cudnnCreate(&handle), "cudnnCreate");
    return handle;
  }

  std::mutex mutex_;
  std::unique_ptr<std::remove_pointer_t<cudnnHandle_t>, DestroyHandle> handle_;
  Direction direction_;
};

/// The engine for a shape on the current device. A process makes it once, and remembers why it
/// could not: cuDNN takes up to half a second for a plan. Throws GpuError with the reason.
template <typename Direction>
Engine<Direction>& EngineFor(const AttentionShape& n, size_t most_work) {
  struct Made {
    std::unique_ptr<Engine<Direction>> engine;
    std::string failure;
  };
  using Key = std::tuple<int, int, int, int, int, size_t>;
  static std::mutex mutex;
  // Never destroyed: at the end of a process cuDNN may be gone before it.
  static auto& all = *new std::map<Key, Made>;

  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) throw GpuError("there is no CUDA device");
  const std::lock_guard lock(mutex);
  const auto [at, is_new] =
      all.try_emplace({device, n.batch, n.sequence, n.heads, n.head_width, most_work});
  Made& made = at->second;
  if (is_new) {
    try {
      made.engine = std::make_unique<Engine<Direction>>(n, most_work);
    } catch (const GpuError& error) {
      made.failure = error.what();
    }
  }
  if (made.engine == nullptr) throw GpuError(made.failure);
  return *made.engine;
}

std::string NameOf(const CudnnAttention& direction) {
  if (direction.parts() == 1) return "cudnn";
  return "cudnn in " + std::to_string(direction.parts()) + " parts";
}

}  // namespace

AttentionForward CudnnForward(const AttentionShape& shape, size_t most_work) {
  auto& engine = EngineFor<CudnnAttentionForward>(shape, most_work);
  return {NameOf(engine.direction()), engine.direction().work_bytes(),
          [&engine](auto... operands) { engine.Run(operands...); }};
}

AttentionBackward CudnnBackward(const AttentionShape& shape, size_t most_work) {
  auto& engine = EngineFor<CudnnAttentionBackward>(shape, most_work);
  return {NameOf(engine.direction()), engine.direction().work_bytes(),
          [&engine](auto... operands) { engine.Run(operands...); }};
}

}  // namespace contraflow::gpu
