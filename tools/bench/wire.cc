// How fast messages between two processes are: latency and bandwidth of the wire over MPI and of
// the one over TCP, side by side in one run. Ratios and absolute figures; no thresholds.
//
//   mpirun -n 2 bench_wire
//
// Every message is first sent once each way and compared with what was sent. "latency" is half the
// time of a message there and one back, "rate" the bytes of one message by that time, both the
// median of several rounds. With cores for two processes only, nobody else should use them.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "compiler/plan/error.h"
#include "runtime/launch/world.h"
#include "runtime/transport/mpi.h"
#include "runtime/transport/tcp_wire.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"

namespace contraflow {
namespace {

constexpr Wire::Channel kChannel = Wire::Channel::kMessages;
constexpr int kRounds = 15;

void Await(Wire* wire, int ticket) {
  const Clock::time_point deadline = Clock::now() + std::chrono::seconds(60);
  while (!wire->Test(ticket).done) {
    if (Clock::now() > deadline) throw Error("the other process does not answer");
    wire->Pause();
  }
}

void Send(Wire* wire, const std::vector<std::byte>& bytes) {
  Label label;
  label.bytes = bytes.size();
  Await(wire, wire->Send(kChannel, 1 - wire->self(), label, bytes, false));
}

void Receive(Wire* wire, std::vector<std::byte>* bytes) {
  Await(wire, wire->Receive(kChannel, 1 - wire->self(), *bytes));
}

/// Half of a round trip, in seconds.
double Measure(Wire* wire, size_t size) {
  std::vector<std::byte> out(size), in(size);
  for (size_t i = 0; i < size; ++i) out[i] = static_cast<std::byte>(i * 7 + i / 251);
  const auto round_trip = [&] {
    if (wire->self() == 0) Send(wire, out);
    Receive(wire, &in);
    if (wire->self() == 1) Send(wire, in);
  };
  round_trip();
  if (in != out) throw Error("a message of " + std::to_string(size) + " bytes came out different");
  const int trips = size <= 65'536 ? 200 : 4;
  std::array<double, kRounds> halves{};
  for (double& half : halves) {
    const Clock::time_point start = Clock::now();
    for (int trip = 0; trip < trips; ++trip) round_trip();
    half = std::chrono::duration<double>(Clock::now() - start).count() / (2 * trips);
  }
  std::nth_element(halves.begin(), halves.begin() + kRounds / 2, halves.end());
  return halves[kRounds / 2];
}

void Run() {
  const World world = ReadWorld([](const char* name) { return std::getenv(name); });
  if (world.size != 2) throw Error("start it with mpirun -n 2");
  Mpi mpi(world);
  MeetingPoint point;
  point.rank = world.rank;
  point.size = world.size;
  point.mesh = true;
  Membership membership = mpi.Meet(world, point);
  const std::unique_ptr<Wire> over_mpi = mpi.MakeWire();
  TcpWire over_tcp(world.rank, std::move(membership.mesh));

  if (world.rank == 0) {
    std::printf("%10s  %12s  %12s  %12s  %12s  %8s\n", "bytes", "mpi latency", "tcp latency",
                "mpi rate", "tcp rate", "tcp/mpi");
  }
  for (const size_t size : std::to_array<size_t>({0, 8, 1024, 65'536, 1 << 20, 1 << 24})) {
    const double mpi_time = Measure(over_mpi.get(), size), tcp_time = Measure(&over_tcp, size);
    if (world.rank != 0) continue;
    const auto bytes = static_cast<double>(size);
    std::printf("%10zu  %9.1f us  %9.1f us  %7.2f GB/s  %7.2f GB/s  %8.2f\n", size, mpi_time * 1e6,
                tcp_time * 1e6, bytes / mpi_time * 1e-9, bytes / tcp_time * 1e-9,
                tcp_time / mpi_time);
  }
}

}  // namespace
}  // namespace contraflow

int main(int argc, char** argv) {
  return contraflow::RunTool(
      "bench_wire", "How fast messages between two processes are: mpirun -n 2 bench_wire.", argc,
      argv, [](CLI::App*) {},
      [] {
        contraflow::Run();
        return contraflow::kExitFine;
      });
}
