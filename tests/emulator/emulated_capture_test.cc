#include <doctest/doctest.h>

#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/emulator/emulated_gpu.h"
#include "tests/support/failure.h"

namespace contraflow::emulated_capture_test {
namespace {

/// Streams and events in a program that is drawn, and what must come before what in it.
class Program {
 public:
  Program(uint64_t seed, bool captured) : random_(seed), captured_(captured), gpu_({.seed = seed}) {
    gpu_.Partition(1, 0);
    for (const char* name : {"a", "b", "c", "d"}) {
      streams_.push_back(gpu_.NewStream(0, Priority::kNormal, name));
      behind_.emplace_back();
    }
    for (int i = 0; i < 3; ++i) events_.push_back(gpu_.NewEvent());
    recorded_.resize(events_.size());
    is_recorded_.resize(events_.size());
  }

  /// Issues it; ran() is the order in which it runs.
  void Issue() {
    if (captured_) {
      gpu_.BeginCapture(streams_[0]);
      for (size_t stream = 1; stream < streams_.size(); ++stream) Join(0, stream);
    }
    for (int i = 0; i < 60; ++i) Draw();
    if (!captured_) return;
    for (size_t stream = 1; stream < streams_.size(); ++stream) Join(stream, 0);
    graph_ = gpu_.EndCapture(streams_[0]);
  }
  std::vector<size_t> Run() {
    ran_.clear();
    if (captured_) gpu_.Launch(graph_, streams_[1]);
    gpu_.Synchronize();
    return ran_;
  }
  /// Works that must come before each.
  const std::vector<std::set<size_t>>& before() const { return before_; }

 private:
  void Draw() {
    const size_t stream = random_() % streams_.size(), event = random_() % events_.size();
    switch (random_() % 4) {
      case 0:
        gpu_.Record(events_[event], streams_[stream]);
        recorded_[event] = behind_[stream];
        is_recorded_[event] = true;
        break;
      case 1:
        if (!is_recorded_[event]) break;
        gpu_.Wait(streams_[stream], events_[event]);
        behind_[stream].insert(recorded_[event].begin(), recorded_[event].end());
        break;
      default: {
        const size_t number = before_.size();
        emulator::Enqueue(streams_[stream].handle, "Work",
                          [this, number] { ran_.push_back(number); });
        before_.push_back(behind_[stream]);
        behind_[stream].insert(number);
      }
    }
  }
  void Join(size_t from, size_t to) {
    GpuEvent* const event = gpu_.NewEvent();
    gpu_.Record(event, streams_[from]);
    gpu_.Wait(streams_[to], event);
  }

  std::mt19937_64 random_;
  const bool captured_;
  EmulatedGpu gpu_;
  std::vector<gpu::Stream> streams_;
  std::vector<GpuEvent*> events_;
  std::vector<std::set<size_t>> behind_, recorded_;  // by stream, by event
  std::vector<bool> is_recorded_;
  std::vector<std::set<size_t>> before_;
  GpuGraph* graph_ = nullptr;
  std::vector<size_t> ran_;
};

struct Streams {
  explicit Streams(const EmulatedGpuOptions& options = {.turn = Turn::kLast}) : gpu(options) {
    gpu.Partition(1, 0);
    for (gpu::Stream* stream : {&a, &b, &c}) {
      *stream = gpu.NewStream(0, Priority::kNormal, stream == &a ? "a" : stream == &b ? "b" : "c");
    }
    event = gpu.NewEvent();
    other = gpu.NewEvent();
  }
  void Work(gpu::Stream stream, int number) {
    emulator::Enqueue(stream.handle, "Work", [this, number] { ran.push_back(number); });
  }
  EmulatedGpu gpu;
  gpu::Stream a, b, c;
  GpuEvent *event, *other;
  std::vector<int> ran;
};

TEST_SUITE("unit") {
  TEST_CASE("emulated GPU: streams and graphs keep the order that events give and no other") {
    for (const bool captured : {false, true}) {
      int free_pairs = 0, turned = 0;
      for (uint64_t seed = 0; seed < 40; ++seed) {
        CAPTURE(captured);
        CAPTURE(seed);
        Program program(seed, captured);
        program.Issue();
        for (int repeat = 0; repeat < (captured ? 3 : 1); ++repeat) {
          const std::vector<size_t> ran = program.Run();
          const auto& before = program.before();
          REQUIRE(ran.size() == before.size());
          std::vector<size_t> place(ran.size());
          for (size_t i = 0; i < ran.size(); ++i) place[ran[i]] = i;
          bool kept = true;
          for (size_t late = 0; late < before.size(); ++late) {
            for (size_t early = 0; early < late; ++early) {
              if (before[late].count(early) != 0) {
                kept = kept && place[early] < place[late];
              } else {
                ++free_pairs;
                turned += place[late] < place[early];
              }
            }
          }
          CHECK(kept);
        }
      }
      // About half of what is free runs in the other order.
      CHECK(turned * 3 > free_pairs);
      CHECK(turned * 3 < 2 * free_pairs);
    }
  }

  TEST_CASE("emulated GPU: a graph runs in the order of the stream it is launched in") {
    Streams s;
    s.gpu.BeginCapture(s.a);
    s.Work(s.a, 1);
    s.gpu.Record(s.event, s.a);
    s.gpu.Wait(s.c, s.event);
    s.Work(s.c, 2);
    s.gpu.Record(s.other, s.c);
    s.gpu.Wait(s.a, s.other);
    GpuGraph* const graph = s.gpu.EndCapture(s.a);
    s.gpu.Synchronize();
    CHECK(s.ran.empty());
    // Streams are free again, their old work among it.
    s.Work(s.b, 3);
    s.gpu.Launch(graph, s.b);
    s.gpu.Record(s.event, s.b);
    s.Work(s.b, 4);
    s.gpu.Wait(s.a, s.event);
    s.Work(s.a, 5);
    s.gpu.Synchronize();
    CHECK(s.ran == std::vector<int>{3, 1, 2, 4, 5});
  }

  TEST_CASE("emulated GPU: a graph does not run twice at a time") {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      Streams s({.seed = seed});
      s.gpu.BeginCapture(s.a);
      s.Work(s.a, 1);
      s.gpu.Record(s.event, s.a);
      s.gpu.Wait(s.b, s.event);
      s.Work(s.b, 2);
      s.gpu.Record(s.event, s.b);
      s.gpu.Wait(s.a, s.event);
      GpuGraph* const graph = s.gpu.EndCapture(s.a);
      for (const gpu::Stream stream : {s.a, s.b, s.c}) s.gpu.Launch(graph, stream);
      s.gpu.Synchronize();
      CHECK(s.ran == std::vector<int>{1, 2, 1, 2, 1, 2});
    }
  }

  TEST_CASE("emulated GPU: a capture knows nothing of those before") {
    Streams s;
    for (const int works : {5, 1}) {
      s.gpu.BeginCapture(s.a);
      s.gpu.Record(s.event, s.a);
      s.gpu.Wait(s.b, s.event);
      for (int i = 0; i < works; ++i) s.Work(s.b, i);
      s.gpu.Record(s.other, s.b);
      s.gpu.Wait(s.a, s.other);
      s.gpu.Launch(s.gpu.EndCapture(s.a), s.c);
    }
    s.gpu.Synchronize();
    CHECK(s.ran == std::vector<int>{0, 1, 2, 3, 4, 0});
  }

  TEST_CASE("emulated GPU: a graph without work is done at once") {
    Streams s;
    s.gpu.BeginCapture(s.a);
    GpuGraph* const graph = s.gpu.EndCapture(s.a);
    s.gpu.Launch(graph, s.a);
    s.Work(s.a, 1);
    s.gpu.Synchronize();
    CHECK(s.ran == std::vector<int>{1});
  }

  TEST_CASE("emulated GPU: a capture is left by no stream and entered by none from outside") {
    Streams s;
    s.gpu.Record(s.other, s.b);
    s.gpu.BeginCapture(s.a);
    CHECK(Failure([&] { s.gpu.BeginCapture(s.b); }) ==
          "BeginCapture: stream b: the capture of stream a has not ended");
    CHECK(Failure([&] { s.gpu.Wait(s.a, s.other); }) ==
          "wait of stream a: event 1 was recorded before the capture");
    CHECK(Failure([&] { s.Work(s.b, 1); }) ==
          "Work: stream b is not reached by the capture of stream a");
    CHECK(Failure([&] { s.gpu.Record(s.event, s.b); }) ==
          "record of event 0: stream b is not reached by the capture of stream a");
    CHECK(Failure([&] { s.gpu.Wait(s.b, s.other); }) ==
          "wait for event 1: stream b is not reached by the capture of stream a");
    CHECK(Failure([&] { s.gpu.Synchronize(); }) == "Synchronize: not in a capture");
    CHECK(Failure([&] { s.gpu.Synchronize(s.other); }) == "Synchronize: event 1: not in a capture");
    int pageable = 0;
    auto* const device = s.gpu.Allocate(4);
    CHECK(Failure([&] { s.gpu.CopyToDevice(s.a, device, &pageable, 4); }) ==
          "CopyToDevice: pageable memory in a capture");
    CHECK(Failure([&] { s.gpu.CopyToHost(s.a, &pageable, device, 4); }) ==
          "CopyToHost: pageable memory in a capture");
    CHECK(Failure([&] { s.gpu.EndCapture(s.b); }) == "EndCapture: the stream began no capture");
    s.Work(s.a, 1);
    s.gpu.Record(s.event, s.a);
    GpuGraph* const graph = s.gpu.EndCapture(s.a);
    for (const gpu::Stream stream : {s.a, s.b}) {
      CHECK(Contains(Failure([&] { s.gpu.Wait(stream, s.event); }),
                     "event 0 was recorded in a capture"));
    }
    CHECK(Failure([&] { s.gpu.Done(s.event); }) == "Done: event 0 was recorded in a capture");
    CHECK(Failure([&] { s.gpu.EndCapture(s.a); }) == "EndCapture: the stream began no capture");
    s.gpu.BeginCapture(s.b);
    CHECK(Failure([&] { s.gpu.Wait(s.b, s.event); }) ==
          "wait of stream b: event 0 was recorded in a capture");
    CHECK(Failure([&] { s.gpu.Launch(graph, s.b); }) == "Launch: a graph in a capture");
    s.gpu.EndCapture(s.b);
    s.gpu.Launch(graph, s.b);
    s.gpu.Synchronize();
    CHECK(s.ran == std::vector<int>{1});
  }

  TEST_CASE("emulated GPU: all streams of a capture must be joined after all of their work") {
    for (const int joined : {0, 1, 2}) {
      CAPTURE(joined);
      Streams s;
      s.gpu.BeginCapture(s.a);
      s.gpu.Record(s.event, s.a);
      s.gpu.Wait(s.b, s.event);
      if (joined == 1) s.Work(s.b, 1);
      if (joined >= 1) {
        s.gpu.Record(s.other, s.b);
        s.gpu.Wait(s.a, s.other);
      }
      if (joined == 1) s.Work(s.b, 2);
      CHECK(Failure([&] { s.gpu.EndCapture(s.a); }) ==
            (joined == 2 ? "accepted" : "EndCapture: stream b has not been joined to stream a"));
      // Streams are free again.
      s.Work(s.b, 3);
      s.gpu.Synchronize();
      CHECK(s.ran == std::vector<int>{3});
    }
  }
}

}  // namespace
}  // namespace contraflow::emulated_capture_test
