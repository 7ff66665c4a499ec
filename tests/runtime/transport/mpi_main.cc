// What needs several processes under mpirun, which runs this program as `contraflow_mpi_ranks wire`
// and so on; the other processes are the other side.

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/plan/error.h"
#include "runtime/core/executor.h"
#include "runtime/host/backend.h"
#include "runtime/launch/threaded_run.h"
#include "runtime/transport/process_transport.h"
#include "runtime/transport/socket.h"
#include "tests/runtime/transport/mpi_wire_cases.h"
#include "tests/support/receive_all.h"
#include "tests/support/run_support.h"

namespace contraflow {

void Fail(const std::string& what) {
  std::cerr << "process " + std::to_string(process) + ": expected " + what + "\n";
  _exit(1);
}

namespace {

/// The processes find each other, and every connection leads to the process it is said to.
void TestMeet(Mpi* mpi, const World& world) {
  MeetingPoint point;
  point.rank = world.rank;
  point.size = world.size;
  point.timeout = kLimit;
  point.mesh = true;
  const Membership membership = mpi->Meet(world, point);
  EXPECT(membership.rank == process && membership.size == world.size);
  EXPECT(membership.roster.size() == static_cast<size_t>(world.size));
  const Clock::time_point deadline = Clock::now() + kLimit;
  int connections = 0;
  for (const std::vector<Socket>* sockets : {&membership.watch, &membership.mesh}) {
    const int kind = sockets == &membership.mesh ? 1 : 0;
    EXPECT(sockets->size() == static_cast<size_t>(world.size));
    for (int peer = 0; peer < world.size; ++peer) {
      const Socket& socket = (*sockets)[static_cast<size_t>(peer)];
      const bool expected = peer != process && (kind == 1 || process < 2 || peer < 2);
      EXPECT(static_cast<bool>(socket) == expected);
      if (!socket) continue;
      const std::array<int, 3> hello = {kind, process, peer};
      SendAll(socket, std::as_bytes(std::span(hello)), deadline);
      ++connections;
    }
    for (int peer = 0; peer < world.size; ++peer) {
      const Socket& socket = (*sockets)[static_cast<size_t>(peer)];
      if (!socket) continue;
      std::array<int, 3> hello{};
      ReceiveAll(socket, std::as_writable_bytes(std::span(hello)), deadline);
      EXPECT((hello == std::array<int, 3>{kind, peer, process}));
    }
  }
  EXPECT(connections >= world.size - 1);
}

/// Two steps of training, beside the threads' run: equal bit for bit.
void Train(Wire* wire, std::string_view schedule, int members, Level level, bool strict) {
  const int ranks = wire->processes() / members;
  const Model small = GroupModel();
  const Plan plan = PlanFor(small, schedule, ranks, 2 * ranks, members, level, 3);
  const Model model = FitModel(small, plan.stages, plan.layers, members);
  const Dataset dataset = SmallDataset();
  ThreadedRun threads(plan, model, dataset, 7, {.strict = strict});

  const RankOrder order(RankOrder::kDefault, plan);
  const Device device = order.DeviceOf(process);
  ProcessTransport transport(plan, order, *wire, nullptr, {.strict = strict});
  HostBackend backend(plan, model, dataset, 7, device, transport);
  Executor executor(plan, device.rank, backend, transport);
  for (int step = 1; step <= 2; ++step) {
    threads.Step(step);
    backend.BeginStep(step);
    executor.Run(step, Clock::now());
    HostBackend& expected = threads.At(device);
    EXPECT(backend.losses() == expected.losses());
    int copies = 0;
    for (int stage = 0; stage < plan.stages; ++stage) {
      const auto holders = HoldersOfStage(plan)[static_cast<size_t>(stage)];
      if (std::find(holders.begin(), holders.end(), device.rank) == holders.end()) continue;
      ++copies;
      const auto same = [](std::span<const float> a, std::span<const float> b) {
        return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
      };
      EXPECT(same(backend.StageAt(stage).parameters(), expected.StageAt(stage).parameters()));
      EXPECT(same(backend.StageAt(stage).gradients(), expected.StageAt(stage).gradients()));
    }
    EXPECT(copies > 0);
  }
}

void TestTraining(Mpi* mpi) {
  const std::unique_ptr<Wire> wire = mpi->MakeWire();
  for (const bool strict : {false, true}) {
    for (const std::string_view schedule : {"1f1b", "zb-1p", "dualpipe"}) {
      Train(wire.get(), schedule, 1, Level::kComm, strict);
    }
    Train(wire.get(), "dualpipe", wire->processes() > 2 ? 2 : 1, Level::kBuffer, strict);
  }
}

World WorldOfEnvironment() {
  const auto number = [](const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? -1 : std::atoi(value);
  };
  World world;
  world.launcher = Launcher::kMpirun;
  world.rank = number("OMPI_COMM_WORLD_RANK");
  world.size = number("OMPI_COMM_WORLD_SIZE");
  return world;
}

int Main(const std::string& what) {
  World world = WorldOfEnvironment();
  process = world.rank;
  if (what == "world") {
    // An environment that speaks of another job.
    ++world.size;
    Mpi mpi(world);
    return 0;
  }
  Mpi mpi(world);
  if (what == "wire") {
    TestWire(&mpi);
  } else if (what == "sizes") {
    TestSizes(&mpi);
  } else if (what == "meet") {
    TestMeet(&mpi, world);
  } else if (what == "train") {
    TestTraining(&mpi);
  } else {
    Fail("wire, sizes, meet, train or world, not \"" + what + "\"");
  }
  return 0;
}

}  // namespace
}  // namespace contraflow

int main(int argc, char** argv) {
  try {
    return contraflow::Main(argc == 2 ? argv[1] : "");
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
