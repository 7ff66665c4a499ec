#include "runtime/exec/cuda_gpu.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "runtime/exec/gpu.h"
#include "tests/support/failure.h"
#include "tools/bench/sm_probe.h"

namespace contraflow::cuda_gpu_test {
namespace {

constexpr uint64_t kMillisecond = 1'000'000;

/// The first GPU, divided, and device memory that tests read and write.
struct Machine {
  explicit Machine(int count = 1, int sms_each = 0) : gpu(NewCudaGpu(0)) {
    gpu->Partition(count, sms_each);
    for (int i = 0; i < count; ++i) streams.push_back(NewStream(i));
  }
  gpu::Stream NewStream(int partition) {
    return gpu->NewStream(partition, Priority::kNormal, "stream " + std::to_string(partition));
  }
  int* NewInts(size_t count) {
    int* const ints = reinterpret_cast<int*>(gpu->Allocate(count * sizeof(int)));
    gpu->Zero(streams[0], ints, count * sizeof(int));
    gpu->Synchronize();
    return ints;
  }
  std::vector<int> Read(const int* ints, size_t count) {
    gpu->Synchronize();
    std::vector<int> values(count);
    gpu->CopyToHost(streams[0], values.data(), ints, count * sizeof(int));
    gpu->Synchronize();
    return values;
  }
  /// Makes work in `after` follow the work in `before`.
  void Join(gpu::Stream before, gpu::Stream after) {
    GpuEvent* const event = gpu->NewEvent();
    gpu->Record(event, before);
    gpu->Wait(after, event);
  }

  std::unique_ptr<Gpu> gpu;
  std::vector<gpu::Stream> streams;  // one a partition
};

/// Fills all SMs of each partition at once and looks where its blocks were.
void CheckDisjoint(int count, int sms_each, bool captured) {
  CAPTURE(count);
  CAPTURE(sms_each);
  CAPTURE(captured);
  Machine machine(count, sms_each);
  // More than there is room for, so that they would go elsewhere if they could.
  const int blocks = 4 * sms_each;
  std::vector<int*> found;
  for (int i = 0; i < count; ++i) found.push_back(machine.NewInts(static_cast<size_t>(blocks)));
  if (captured) {
    machine.gpu->BeginCapture(machine.streams[0]);
    for (int i = 1; i < count; ++i) {
      machine.Join(machine.streams[0], machine.streams[static_cast<size_t>(i)]);
    }
  }
  for (size_t i = 0; i < found.size(); ++i) {
    ProbeSms(machine.streams[i], blocks, kMillisecond, found[i]);
  }
  if (captured) {
    for (size_t i = 1; i < found.size(); ++i) machine.Join(machine.streams[i], machine.streams[0]);
    GpuGraph* const graph = machine.gpu->EndCapture(machine.streams[0]);
    machine.gpu->Launch(graph, machine.streams[0]);
  }
  std::set<int> all;
  size_t sum = 0;
  for (int* sms : found) {
    const std::vector<int> values = machine.Read(sms, static_cast<size_t>(blocks));
    const std::set<int> own(values.begin(), values.end());
    CHECK(own.size() == static_cast<size_t>(sms_each));
    sum += own.size();
    all.insert(own.begin(), own.end());
  }
  CHECK(all.size() == sum);
}

TEST_SUITE("kernel") {
  TEST_CASE("CUDA: kernels stay in their partition and partitions are disjoint") {
    const int sms = NewCudaGpu(0)->sms();
    for (const int count : {2, 4, 8}) {
      const SmBudget budget = BudgetOf(sms, count, {});
      for (const bool captured : {false, true}) CheckDisjoint(count, budget.sms, captured);
    }
  }

  TEST_CASE("CUDA: a GPU that cannot be divided so says what is possible") {
    const std::unique_ptr<Gpu> gpu = NewCudaGpu(0);
    const std::string many = Failure([&] { gpu->Partition(1000, 8); });
    CHECK(Contains(many, "there are not so many partitions of any size"));
    const std::string large = Failure([&] { gpu->Partition(2, gpu->sms()); });
    CHECK(Contains(large, "so many can have "));
    CHECK(Failure([&] { gpu->NewStream(0, Priority::kNormal, "a"); }) ==
          "stream a: the GPU is not divided yet");
    gpu->Partition(1, 0);
    CHECK(Failure([&] { gpu->NewStream(1, Priority::kNormal, "a"); }) ==
          "stream a: there is no partition 1");
    CHECK(gpu->NewStream(0, Priority::kHigh, "a").sms == gpu->sms());
  }

  TEST_CASE("CUDA: hardware queues are asked for") {
    NewCudaGpu(0);
    CHECK(std::getenv("CUDA_DEVICE_MAX_CONNECTIONS") != nullptr);
  }

  TEST_CASE("CUDA: events order streams") {
    Machine machine;
    const gpu::Stream other = machine.NewStream(0);
    int* const counter = machine.NewInts(2);
    for (int i = 1; i <= 5; ++i) {
      CountLate(machine.streams[0], 2 * kMillisecond, counter);
      machine.Join(machine.streams[0], other);
      CopyOne(other, counter, counter + 1);
      machine.Join(other, machine.streams[0]);
      CHECK(machine.Read(counter, 2) == std::vector<int>{i, i});
    }
  }

  TEST_CASE("CUDA: events tell when their work is done") {
    Machine machine;
    int* const counter = machine.NewInts(1);
    GpuEvent* const event = machine.gpu->NewEvent();
    CHECK(Failure([&] { machine.gpu->Wait(machine.streams[0], event); }) ==
          "an event has never been recorded");
    CHECK(Failure([&] { machine.gpu->Done(event); }) == "an event has never been recorded");
    CountLate(machine.streams[0], 100 * kMillisecond, counter);
    machine.gpu->Record(event, machine.streams[0]);
    CHECK_FALSE(machine.gpu->Done(event));
    machine.gpu->Synchronize(event);
    CHECK(machine.gpu->Done(event));
  }

  TEST_CASE("CUDA: a graph of several partitions is replayed in order") {
    const SmBudget budget = BudgetOf(NewCudaGpu(0)->sms(), 4, {});
    Machine machine(budget.partitions, budget.sms);
    int* const counter = machine.NewInts(1);
    int* const seen = machine.NewInts(4);
    machine.gpu->BeginCapture(machine.streams[0]);
    for (size_t i = 0; i < 4; ++i) {
      if (i > 0) machine.Join(machine.streams[i - 1], machine.streams[i]);
      CountLate(machine.streams[i], kMillisecond, counter);
      CopyOne(machine.streams[i], counter, seen + i);
    }
    machine.Join(machine.streams[3], machine.streams[0]);
    GpuGraph* const graph = machine.gpu->EndCapture(machine.streams[0]);
    CHECK(machine.Read(counter, 1) == std::vector<int>{0});
    for (int repeat = 0; repeat < 3; ++repeat) {
      machine.gpu->Launch(graph, machine.streams[0]);
      const int before = 4 * repeat;
      CHECK(machine.Read(seen, 4) ==
            std::vector<int>{before + 1, before + 2, before + 3, before + 4});
    }
  }

  TEST_CASE("CUDA: captures are kept apart from what is outside") {
    Machine machine;
    const gpu::Stream other = machine.NewStream(0);
    GpuEvent* const outside = machine.gpu->NewEvent();
    GpuEvent* const inside = machine.gpu->NewEvent();
    machine.gpu->Record(outside, machine.streams[0]);
    machine.gpu->BeginCapture(machine.streams[0]);
    CHECK(Failure([&] { machine.gpu->Wait(machine.streams[0], outside); }) ==
          "an event was recorded before the capture");
    CHECK(Failure([&] { machine.gpu->Record(inside, other); }) ==
          "a stream is recorded that the capture has not reached");
    CHECK(Failure([&] { machine.gpu->BeginCapture(other); }) ==
          "BeginCapture: another capture has not ended");
    machine.gpu->Record(inside, machine.streams[0]);
    machine.gpu->EndCapture(machine.streams[0]);
    CHECK(Failure([&] { machine.gpu->Wait(other, inside); }) ==
          "an event was recorded in a capture");
    // A stream that is not joined.
    int* const counter = machine.NewInts(1);
    machine.gpu->BeginCapture(machine.streams[0]);
    machine.Join(machine.streams[0], other);
    CountLate(other, 0, counter);
    CHECK(Failure([&] { machine.gpu->EndCapture(machine.streams[0]); }) != "accepted");
    // All goes on.
    CountLate(other, 0, counter);
    CHECK(machine.Read(counter, 1) == std::vector<int>{1});
  }

  TEST_CASE("CUDA: memory is aligned and its end is told") {
    Machine machine;
    for (const size_t bytes : {size_t{0}, size_t{1}, size_t{4095}, size_t{4096}, size_t{100'000}}) {
      CHECK(reinterpret_cast<uintptr_t>(machine.gpu->Allocate(bytes)) % 4096 == 0);
    }
    const std::string failure = Failure([&] { machine.gpu->Allocate(size_t{1} << 45); });
    CHECK(Contains(failure, "is out of memory: 35184372088832 bytes asked for, "));
    CHECK(Contains(failure, " free of "));
    // It is no error of what comes next.
    CHECK(machine.Read(machine.NewInts(1), 1) == std::vector<int>{0});
  }
}

}  // namespace
}  // namespace contraflow::cuda_gpu_test
