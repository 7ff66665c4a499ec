// How CudaGpu calls CUDA, without any: fake_cuda.cc answers.

#include <doctest/doctest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "runtime/exec/cuda_gpu.h"
#include "tests/emulator/fake_cuda.h"
#include "tests/support/failure.h"

namespace contraflow::cuda_calls_test {
namespace {

/// A fresh CUDA, and what is done with a GPU of it; all of that must be destroyed at the end.
template <typename Test>
void WithGpu(const FakeCuda& cuda, Test test) {
  Reset(cuda);
  {
    const std::unique_ptr<Gpu> gpu = NewCudaGpu(0);
    test(*gpu);
  }
  CHECK(Fake().alive.empty());
  CHECK(Fake().wrong == "");
}

/// The calls that begin like this.
std::vector<std::string> Calls(const std::string& begin) {
  std::vector<std::string> calls;
  for (const std::string& call : Fake().calls) {
    if (call.rfind(begin, 0) == 0) calls.push_back(call);
  }
  return calls;
}

gpu::Stream NewStream(Gpu& gpu, int partition = 0, Priority priority = Priority::kNormal) {
  return gpu.NewStream(partition, priority, "a stream");
}

TEST_SUITE("unit") {
  TEST_CASE("CUDA calls: devices are counted or missed with a reason") {
    std::string why;
    Reset({});
    Fake().devices = 3;
    CHECK(CudaDeviceCount(&why) == 3);
    CHECK(why == "");
    Fake().devices = 0;
    CHECK(CudaDeviceCount(&why) == 0);
    CHECK(why == "the runtime's words");
    Fake().driver = 0;
    CHECK(CudaDeviceCount(&why) == 0);
    CHECK(why == "no CUDA driver is installed");
    CHECK(CudaDeviceCount() == 0);
  }

  TEST_CASE("CUDA calls: the environment asks for queues unless the user has") {
    for (const char* set : {"", "8"}) {
      unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
      if (*set != '\0') setenv("CUDA_DEVICE_MAX_CONNECTIONS", set, 1);
      WithGpu({}, [&](Gpu&) {
        CHECK(std::string(getenv("CUDA_DEVICE_MAX_CONNECTIONS")) == (*set == '\0' ? "32" : set));
      });
    }
  }

  TEST_CASE("CUDA calls: only GPUs that the kernels are built for") {
    Reset({});
    Fake().major = 8;
    CHECK(Failure([] { NewCudaGpu(0); }) ==
          "GPU 0 (Fake) has compute capability 8.0; the kernels are built for 9.0 (H100, H200)");
    CHECK(Failure([] {
            NewCudaGpu(1);
          }).find("cudaSetDevice(device): the runtime's words (its name), at ") == 0);
  }

  TEST_CASE("CUDA calls: a GPU is divided by one split and streams belong to their part") {
    WithGpu({}, [](Gpu& gpu) {
      CHECK(Failure([&] { NewStream(gpu); }) == "stream a stream: the GPU is not divided yet");
      gpu.Partition(4, 32);
      CHECK(Calls("cuDevSmResource") ==
            std::vector<std::string>{"cuDevSmResourceSplitByCount 4 32"});
      CHECK(NewStream(gpu, 3).sms == 32);
      NewStream(gpu, 0, Priority::kHigh);
      CHECK(Calls("cuGreenCtxStreamCreate") ==
            std::vector<std::string>{"cuGreenCtxStreamCreate context 4 0",
                                     "cuGreenCtxStreamCreate context 1 -5"});
      CHECK(Failure([&] { NewStream(gpu, 4); }) == "stream a stream: there is no partition 4");
      CHECK(Failure([&] { gpu.Partition(4, 32); }) == "a GPU is divided once");
    });
    // Streams go before the contexts that they are of.
    const std::vector<std::string> destroyed = Calls("destroy ");
    REQUIRE(destroyed.size() == 6);
    for (size_t i = 0; i < destroyed.size(); ++i) {
      CHECK(destroyed[i].rfind(i < 2 ? "destroy stream" : "destroy context", 0) == 0);
    }
  }

  TEST_CASE("CUDA calls: a whole GPU needs no green contexts") {
    FakeCuda old;
    old.missing = {"cuGreenCtxCreate"};
    WithGpu(old, [](Gpu& gpu) {
      gpu.Partition(1, 0);
      CHECK(NewStream(gpu, 0, Priority::kHigh).sms == 132);
      CHECK(Calls("cudaStreamCreate") ==
            std::vector<std::string>{"cudaStreamCreateWithPriority -5"});
      CHECK(Calls("cu").size() == Calls("cuda").size());
    });
    WithGpu(old, [](Gpu& gpu) {
      CHECK(Failure([&] { gpu.Partition(4, 32); }) ==
            "the CUDA driver is too old to divide a GPU: it has no cuGreenCtxCreate; CUDA 13.0 "
            "needs driver 580 or newer");
    });
  }

  TEST_CASE("CUDA calls: what cannot be divided so says what can") {
    WithGpu({}, [](Gpu& gpu) {
      CHECK(Failure([&] { gpu.Partition(5, 32); }) ==
            "GPU 0 of 132 SMs cannot be divided into 5 partitions of 32 SMs: so many can have 24 "
            "each");
      CHECK(Failure([&] { gpu.Partition(17, 8); }) ==
            "GPU 0 of 132 SMs cannot be divided into 17 partitions of 8 SMs: there are not so many "
            "partitions of any size");
      CHECK(Failure([&] { gpu.Partition(1, 136); }) ==
            "GPU 0 of 132 SMs cannot be divided into 1 partitions of 136 SMs: so many can have 128 "
            "each");
      CHECK(Failure([&] { gpu.Partition(0, 8); }) ==
            "a GPU cannot be divided into 0 partitions of 8 SMs");
      CHECK(Failure([&] { gpu.Partition(2, 0); }) ==
            "a GPU cannot be divided into 2 partitions of 0 SMs");
      CHECK(Calls("cuDevSmResource").empty());
      gpu.Partition(1, 128);
      CHECK(NewStream(gpu).sms == 128);
    });
  }

  TEST_CASE("CUDA calls: what the driver refuses leaves nothing allocated") {
    for (const char* call : {"cuDevSmResourceSplitByCount", "cuDevResourceGenerateDesc",
                             "cuGreenCtxCreate", "cuGreenCtxStreamCreate"}) {
      CAPTURE(call);
      FakeCuda cuda;
      cuda.fails = call;
      WithGpu(cuda, [&](Gpu& gpu) {
        CHECK(Failure([&] {
                gpu.Partition(4, 32);
                NewStream(gpu);
              }) == std::string(call) + ": the driver's words");
      });
    }
  }

  TEST_CASE("CUDA calls: memory is aligned and only what CUDA aligns less is larger") {
    WithGpu({}, [](Gpu& gpu) {
      for (const size_t bytes : {size_t{0}, size_t{100}, size_t{8192}}) {
        CHECK(reinterpret_cast<uintptr_t>(gpu.Allocate(bytes)) % 4096 == 0);
      }
      CHECK(Calls("cudaMalloc") == std::vector<std::string>{"cudaMalloc 1", "cudaMalloc 4097",
                                                            "cudaMalloc 100", "cudaMalloc 4196",
                                                            "cudaMalloc 8192"});
      CHECK(Calls("destroy") == std::vector<std::string>{"destroy memory 1", "destroy memory 3"});
      CHECK(Failure([&] { gpu.Allocate((1 << 20) + 1); }) ==
            "GPU 0 is out of memory: 1048577 bytes asked for, 1048576 free of 2097152");
      CHECK(gpu.AllocateHost(10) != nullptr);
      Fake().fails = "cudaMallocHost";
      CHECK(Failure([&] { gpu.AllocateHost(10); }) ==
            "the host has no 10 bytes of memory that GPU 0 can read");
    });
  }

  TEST_CASE("CUDA calls: memory of the host may outlive the GPU") {
    std::shared_ptr<std::byte> memory;
    Reset({});
    memory = NewCudaGpu(0)->NewHostMemory(10);
    CHECK(Fake().alive.size() == 1);
    memory.reset();
    CHECK(Fake().alive.empty());
    CHECK(Fake().wrong == "");
  }

  TEST_CASE("CUDA calls: copies go where they should and empty ones nowhere") {
    WithGpu({}, [](Gpu& gpu) {
      gpu.Partition(1, 0);
      const gpu::Stream stream = NewStream(gpu);
      std::byte* const host = gpu.AllocateHost(16);
      std::byte* const device = gpu.Allocate(16);
      Fake().calls.clear();
      gpu.CopyToDevice(stream, device, host, 16);
      gpu.CopyToHost(stream, host, device, 8);
      gpu.Zero(stream, device, 4);
      gpu.CopyToDevice(stream, device, host, 0);
      gpu.CopyToHost(stream, host, device, 0);
      gpu.Zero(stream, device, 0);
      CHECK(Fake().calls == std::vector<std::string>{"cudaMemcpyAsync 16 to device stream 1",
                                                     "cudaMemcpyAsync 8 to host stream 1",
                                                     "cudaMemsetAsync 4 of 0 stream 1"});
    });
  }

  TEST_CASE("CUDA calls: events must have been recorded where they are waited for") {
    WithGpu({}, [](Gpu& gpu) {
      gpu.Partition(1, 0);
      const gpu::Stream stream = NewStream(gpu), other = NewStream(gpu);
      GpuEvent* const event = gpu.NewEvent();
      const std::string never = "an event has never been recorded";
      CHECK(Failure([&] { gpu.Wait(stream, event); }) == never);
      CHECK(Failure([&] { gpu.Done(event); }) == never);
      CHECK(Failure([&] { gpu.Synchronize(event); }) == never);
      Fake().calls.clear();
      gpu.Record(event, stream);
      gpu.Wait(other, event);
      CHECK(gpu.Done(event));
      Fake().done = false;
      CHECK_FALSE(gpu.Done(event));
      gpu.Synchronize(event);
      gpu.Synchronize();
      CHECK(Fake().calls == std::vector<std::string>{"cudaEventRecord event 1 stream 1",
                                                     "cudaStreamWaitEvent stream 2 event 1",
                                                     "cudaEventSynchronize event 1",
                                                     "cudaStreamSynchronize stream 1",
                                                     "cudaStreamSynchronize stream 2"});
      CHECK(Failure([&] { gpu.WaitOutside(stream, event); }) == "WaitOutside: there is no capture");
      gpu.BeginCapture(stream);
      CHECK(Failure([&] { gpu.Wait(stream, event); }) ==
            "an event was recorded before the capture");
      Fake().calls.clear();
      gpu.WaitOutside(stream, event);
      CHECK(Fake().calls ==
            std::vector<std::string>{"cudaStreamWaitEvent stream 1 event 1 outside"});
      CHECK(Failure([&] { gpu.Record(event, other); }) ==
            "a stream is recorded that the capture has not reached");
      gpu.Record(event, stream);
      gpu.Wait(other, event);
      CHECK(Failure([&] { gpu.WaitOutside(stream, event); }) ==
            "an event was recorded in a capture");
      gpu.EndCapture(stream);
      CHECK(Failure([&] { gpu.Wait(other, event); }) == "an event was recorded in a capture");
      CHECK(Failure([&] { gpu.Done(event); }) == "an event was recorded in a capture");
      gpu.BeginCapture(stream);
      CHECK(Failure([&] { gpu.Wait(stream, event); }) == "an event was recorded in a capture");
      gpu.EndCapture(stream);
    });
  }

  TEST_CASE("CUDA calls: a step is captured and instantiated once") {
    WithGpu({}, [](Gpu& gpu) {
      gpu.Partition(1, 0);
      const gpu::Stream stream = NewStream(gpu);
      CHECK(Failure([&] { gpu.EndCapture(stream); }) == "EndCapture: there is no capture");
      Fake().calls.clear();
      gpu.BeginCapture(stream);
      CHECK(Failure([&] { gpu.BeginCapture(stream); }) ==
            "BeginCapture: another capture has not ended");
      GpuGraph* const graph = gpu.EndCapture(stream);
      gpu.Launch(graph, stream);
      gpu.Launch(graph, stream);
      CHECK(Fake().calls == std::vector<std::string>{
                                "cudaStreamBeginCapture stream 1", "cudaStreamEndCapture stream 1",
                                "cudaGraphInstantiate graph 1", "destroy graph 1",
                                "cudaGraphLaunch executable 1 stream 1",
                                "cudaGraphLaunch executable 1 stream 1"});
    });
    for (const char* call : {"cudaStreamEndCapture", "cudaGraphInstantiate"}) {
      CAPTURE(call);
      WithGpu({}, [&](Gpu& gpu) {
        gpu.Partition(1, 0);
        const gpu::Stream stream = NewStream(gpu);
        gpu.BeginCapture(stream);
        Fake().fails = call;
        CHECK(Failure([&] { gpu.EndCapture(stream); }).rfind(call, 0) == 0);
        // The capture is over.
        Fake().fails = "";
        gpu.BeginCapture(stream);
        gpu.EndCapture(stream);
      });
    }
  }
}

}  // namespace
}  // namespace contraflow::cuda_calls_test
