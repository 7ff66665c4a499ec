#include "tests/emulator/emulated_gpu.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/failure.h"

namespace contraflow::emulated_gpu_test {
namespace {

using Kind = GpuCall::Kind;

/// An emulated GPU with some streams and a list in which their work leaves its number.
struct Machine {
  explicit Machine(EmulatedGpuOptions options = {}, size_t count = 3) : gpu(options) {
    gpu.Partition(1, 0);
    for (size_t i = 0; i < count; ++i) {
      streams.push_back(gpu.NewStream(0, Priority::kNormal, std::string(1, "abcdefgh"[i])));
      events.push_back(gpu.NewEvent());
    }
  }
  explicit Machine(uint64_t seed) : Machine(EmulatedGpuOptions{.seed = seed}) {}
  void Work(size_t stream, int number) {
    emulator::Enqueue(streams[stream].handle, "Work", [this, number] { ran.push_back(number); });
  }
  void Then(size_t before, size_t after) {
    gpu.Record(events[before], streams[before]);
    gpu.Wait(streams[after], events[before]);
  }
  std::vector<int> Ran() {
    gpu.Synchronize();
    return std::exchange(ran, {});
  }

  EmulatedGpu gpu;
  std::vector<gpu::Stream> streams;
  std::vector<GpuEvent*> events;  // as many
  std::vector<int> ran;
};

/// The orders in which the work runs, over many seeds.
template <typename Program>
std::set<std::vector<int>> Orders(Program program) {
  std::set<std::vector<int>> orders;
  for (uint64_t seed = 0; seed < 64; ++seed) {
    Machine machine(seed);
    program(machine);
    orders.insert(machine.Ran());
  }
  return orders;
}

TEST_SUITE("unit") {
  TEST_CASE(
      "emulated GPU: nothing runs before somebody waits and then streams run in their order") {
    CHECK(Orders([](Machine& machine) {
            machine.Work(0, 1);
            machine.Work(0, 2);
            machine.Work(1, 3);
            CHECK(machine.ran.empty());
            CHECK(machine.gpu.most_waiting() == 2);
          }) == std::set<std::vector<int>>{{1, 2, 3}, {1, 3, 2}, {3, 1, 2}});
  }

  TEST_CASE("emulated GPU: a wait orders and a wait that is missing shows") {
    const auto program = [](bool wait) {
      return [wait](Machine& machine) {
        machine.Work(0, 1);
        machine.gpu.Record(machine.events[0], machine.streams[0]);
        if (wait) machine.gpu.Wait(machine.streams[1], machine.events[0]);
        machine.Work(1, 2);
      };
    };
    CHECK(Orders(program(true)) == std::set<std::vector<int>>{{1, 2}});
    CHECK(Orders(program(false)).size() == 2);
  }

  TEST_CASE("emulated GPU: a wait is for the last record before it") {
    const auto orders = Orders([](Machine& machine) {
      machine.Work(0, 1);
      machine.Then(0, 1);
      machine.Work(0, 2);
      machine.gpu.Record(machine.events[0], machine.streams[0]);
      machine.Work(1, 3);
      machine.gpu.Wait(machine.streams[2], machine.events[0]);
      machine.Work(2, 4);
    });
    // 3 is after 1, 4 is after 2.
    CHECK(orders == std::set<std::vector<int>>{{1, 2, 3, 4}, {1, 2, 4, 3}, {1, 3, 2, 4}});
  }

  TEST_CASE("emulated GPU: turns may go to the first stream or the last") {
    for (const Turn turn : {Turn::kFirst, Turn::kLast}) {
      Machine machine({.turn = turn});
      machine.Work(1, 2);
      machine.Work(2, 3);
      machine.Work(0, 1);
      machine.Then(0, 1);
      machine.Work(1, 4);
      CHECK(machine.Ran() ==
            (turn == Turn::kFirst ? std::vector<int>{1, 2, 4, 3} : std::vector<int>{3, 2, 1, 4}));
    }
  }

  TEST_CASE("emulated GPU: events tell whether their work is done") {
    Machine machine(1);
    machine.Work(0, 1);
    machine.gpu.Record(machine.events[0], machine.streams[0]);
    machine.Work(0, 2);
    int asked = 0;
    while (!machine.gpu.Done(machine.events[0])) ++asked;
    CHECK(asked >= 1);
    CHECK(machine.ran == std::vector<int>{1});
    machine.gpu.Record(machine.events[1], machine.streams[0]);
    machine.Work(0, 3);
    machine.gpu.Synchronize(machine.events[1]);
    CHECK(machine.ran == std::vector<int>{1, 2});
    CHECK(machine.Ran() == std::vector<int>{1, 2, 3});
  }

  TEST_CASE("emulated GPU: an event that was never recorded cannot be waited for") {
    Machine machine(1);
    GpuEvent* const event = machine.events[1];
    CHECK(Failure([&] { machine.gpu.Wait(machine.streams[0], event); }) ==
          "wait of stream a: event 1 has never been recorded");
    CHECK(Failure([&] { machine.gpu.Done(event); }) == "Done: event 1 has never been recorded");
    CHECK(Failure([&] { machine.gpu.Synchronize(event); }) ==
          "Synchronize: event 1 has never been recorded");
  }

  TEST_CASE("emulated GPU: work that fails tells who waits and is not done again") {
    Machine machine(1);
    emulator::Enqueue(machine.streams[0].handle, "Work", [] { throw gpu::GpuError("broken"); });
    machine.Work(0, 1);
    CHECK(Failure([&] { machine.gpu.Synchronize(); }) == "broken");
    CHECK(machine.Ran() == std::vector<int>{1});
  }

  TEST_CASE("emulated GPU: pinned memory is read when its turn has come and other memory at once") {
    Machine machine(1);
    auto* const device = reinterpret_cast<int*>(machine.gpu.Allocate(8));
    auto* const pinned = reinterpret_cast<int*>(machine.gpu.AllocateHost(4));
    int pageable = 1;
    *pinned = 1;
    machine.gpu.CopyToDevice(machine.streams[0], device, &pageable, 4);
    machine.gpu.CopyToDevice(machine.streams[0], device + 1, pinned, 4);
    CHECK(device[0] == -1);
    pageable = *pinned = 2;
    std::array<int, 2> back = {};
    machine.gpu.CopyToHost(machine.streams[0], back.data(), device, 8);
    CHECK(back == std::array<int, 2>{1, 2});
    machine.gpu.Zero(machine.streams[0], device, 4);
    machine.gpu.CopyToHost(machine.streams[0], pinned, device, 4);
    CHECK(*pinned == 2);
    machine.gpu.Synchronize();
    CHECK(*pinned == 0);
  }

  TEST_CASE("emulated GPU: memory is limited and copies stay in it") {
    Machine machine({.memory = 100});
    std::byte* const device = machine.gpu.Allocate(60);
    CHECK(Failure([&] { machine.gpu.Allocate(41); }) ==
          "out of device memory: 41 bytes asked for, 40 free");
    CHECK(machine.gpu.Allocate(40) != nullptr);
    std::array<std::byte, 64> host = {};
    const gpu::Stream stream = machine.streams[0];
    CHECK(Failure([&] { machine.gpu.CopyToDevice(stream, device + 1, host.data(), 60); }) ==
          "CopyToDevice: not 60 bytes of one allocation of device memory");
    CHECK(Failure([&] { machine.gpu.CopyToHost(stream, host.data(), device, 61); }) ==
          "CopyToHost: not 61 bytes of one allocation of device memory");
    CHECK(Failure([&] { machine.gpu.Zero(stream, host.data(), 1); }) ==
          "Zero: not 1 bytes of one allocation of device memory");
    machine.gpu.CopyToDevice(stream, device, host.data(), 60);
    CHECK(machine.gpu.Allocate(0) != machine.gpu.Allocate(0));
  }

  TEST_CASE("emulated GPU: of new memory every bit is set, whatever was written to other") {
    EmulatedGpu gpu;
    const auto all_set = [](const std::shared_ptr<std::byte>& block, size_t bytes) {
      return std::all_of(block.get(), block.get() + bytes,
                         [](std::byte byte) { return byte == std::byte{0xff}; });
    };
    for (const size_t bytes : {size_t{100}, size_t{1} << 20, (size_t{3} << 20) + 100}) {
      CAPTURE(bytes);
      const auto device = gpu.NewDeviceMemory(bytes), host = gpu.NewHostMemory(bytes);
      for (const auto& block : {device, host}) {
        CHECK(all_set(block, bytes));
        std::fill_n(block.get(), bytes, std::byte{7});
        CHECK(all_set(gpu.NewDeviceMemory(bytes), bytes));
      }
      CHECK(device.get()[bytes - 1] == std::byte{7});
      CHECK(host.get()[bytes - 1] == std::byte{7});
    }
  }

  TEST_CASE("emulated GPU: partitions as a GPU has them") {
    EmulatedGpu gpu;
    CHECK(Failure([&] { gpu.NewStream(0, Priority::kNormal, "a"); }) ==
          "stream a: the GPU is not divided yet");
    CHECK(Failure([&] { gpu.Partition(4, 33); }) == "a GPU of 132 SMs has no 4 partitions of 33");
    CHECK(Failure([&] { gpu.Partition(5, 32); }) == "a GPU of 132 SMs has no 5 partitions of 32");
    gpu.Partition(4, 32);
    CHECK(gpu.NewStream(3, Priority::kHigh, "a").sms == 32);
    CHECK(Failure([&] { gpu.NewStream(4, Priority::kNormal, "b"); }) ==
          "stream b: there is no partition 4");
    CHECK(Failure([&] { gpu.Partition(4, 32); }) ==
          "the GPU is divided once, before it has streams");
    EmulatedGpu whole(17);
    whole.Partition(1, 0);
    CHECK(whole.NewStream(0, Priority::kNormal, "a").sms == 17);
  }

  TEST_CASE("emulated GPU: all calls are logged") {
    std::vector<GpuCall> log;
    Machine machine({.log = &log});
    std::byte* const device = machine.gpu.Allocate(4);
    std::byte* const host = machine.gpu.AllocateHost(4);
    machine.gpu.Zero(machine.streams[1], device, 4);
    machine.gpu.CopyToDevice(machine.streams[1], device, host, 4);
    machine.gpu.CopyToHost(machine.streams[1], host, device, 4);
    machine.gpu.BeginCapture(machine.streams[0]);
    machine.Work(0, 1);
    machine.Then(0, 2);
    machine.Then(2, 0);
    machine.gpu.Launch(machine.gpu.EndCapture(machine.streams[0]), machine.streams[2]);
    const std::vector<GpuCall> expected = {
        {Kind::kZero, "b", ""},       {Kind::kCopyToDevice, "b", ""},
        {Kind::kCopyToHost, "b", ""}, {Kind::kBeginCapture, "a", ""},
        {Kind::kKernel, "a", "Work"}, {Kind::kRecord, "a", "", 0},
        {Kind::kWait, "c", "", 0},    {Kind::kRecord, "c", "", 2},
        {Kind::kWait, "a", "", 2},    {Kind::kEndCapture, "a", ""},
        {Kind::kGraph, "c", ""}};
    REQUIRE(log.size() == expected.size());
    for (size_t i = 0; i < log.size(); ++i) {
      CAPTURE(i);
      CHECK(log[i].kind == expected[i].kind);
      CHECK(log[i].stream == expected[i].stream);
      CHECK(log[i].kernel == expected[i].kernel);
      CHECK(log[i].event == expected[i].event);
    }
  }
}

}  // namespace
}  // namespace contraflow::emulated_gpu_test
