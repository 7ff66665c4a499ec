#include <chrono>
#include <vector>

#include "kernels/gpu/exchange.h"
#include "kernels/gpu/stream.h"
#include "tools/bench/gpu_bench.h"

namespace contraflow {
namespace {

using HostClock = std::chrono::steady_clock;

double Since(HostClock::time_point start) {
  return std::chrono::duration<double>(HostClock::now() - start).count();
}

}  // namespace

/// What it costs the host to give an instruction to a stream, alone and with the events of a hop
/// between two streams, and to replay the same as a graph.
void MeasureHost(GpuBench* bench) {
  Gpu& gpu = bench->gpu();
  const int hops = bench->sizes().seconds > 0 ? 2000 : 20;
  const gpu::Stream here = bench->stream(),
                    there = gpu.NewStream(0, Priority::kNormal, "bench hop");
  const auto add = [&](const std::string& name, double seconds, int count, double target) {
    bench->Add({name, seconds / count * 1e6, "us", target, true});
  };
  const auto launches = [&] {
    for (int i = 0; i < hops; ++i) gpu::Nothing(here);
  };
  launches();
  gpu.Synchronize();
  HostClock::time_point start = HostClock::now();
  launches();
  add("host: a launch", Since(start), hops, 3);
  gpu.Synchronize();

  std::vector<GpuEvent*> events;
  for (int i = 0; i < hops + 1; ++i) events.push_back(gpu.NewEvent());
  const auto chain = [&] {
    gpu.Record(events[0], here);
    gpu.Wait(there, events[0]);
    for (int i = 1; i <= hops; ++i) {
      const gpu::Stream from = i % 2 == 1 ? there : here, to = i % 2 == 1 ? here : there;
      gpu::Nothing(from);
      gpu.Record(events[static_cast<size_t>(i)], from);
      gpu.Wait(to, events[static_cast<size_t>(i)]);
    }
  };
  chain();
  gpu.Synchronize();
  start = HostClock::now();
  chain();
  add("host: a launch, record and wait", Since(start), hops, 3);
  gpu.Synchronize();
  add("a hop between streams", Since(start), hops, 5);

  gpu.BeginCapture(here);
  chain();
  // The chain ends where `there` waits for `here`, as hops are even; join it again.
  GpuEvent* const end = gpu.NewEvent();
  gpu::Nothing(there);
  gpu.Record(end, there);
  gpu.Wait(here, end);
  GpuGraph* const graph = gpu.EndCapture(here);
  gpu.Launch(graph, here);
  gpu.Synchronize();
  start = HostClock::now();
  gpu.Launch(graph, here);
  add("host: a node of a replayed graph", Since(start), hops, 1);
  gpu.Synchronize();
  add("a hop in a replayed graph", Since(start), hops, 2);

  // What bounds a virtual link: its CTAs.
  bench->Reset();
  const int64_t bytes =
      std::min<int64_t>(int64_t{64} << 20, static_cast<int64_t>(bench->sizes().arena_bytes / 8));
  const std::byte* from = reinterpret_cast<std::byte*>(bench->Random(bytes / 2));
  std::byte* to = bench->Take<std::byte>(bytes);
  for (const int ctas : {1, 2, 4, 8, 16}) {
    const double seconds =
        bench->Seconds([&] { gpu::LinkCopy(here, from, to, static_cast<size_t>(bytes), ctas); });
    bench->Add({"link of " + std::to_string(ctas) + " CTAs, one way",
                static_cast<double>(bytes) / seconds * 1e-9, "GB/s"});
  }
}

}  // namespace contraflow
