// How the wire over TCP connections ends: after its last message, where a process is lost, and by
// abort.

#include <doctest/doctest.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "compiler/plan/error.h"
#include "runtime/transport/tcp_wire.h"
#include "tests/runtime/transport/tcp_wires.h"
#include "tests/support/failure.h"

namespace contraflow::tcp_wire_end_test {
namespace {

size_t OpenFiles() {
  size_t count = 0;
  for (const auto& file : std::filesystem::directory_iterator("/proc/self/fd")) {
    count += file.exists() ? 1 : 0;
  }
  return count;
}

TEST_SUITE("unit") {
  TEST_CASE("tcp wire: a process that ends early has left everything behind") {
    // It ends at once after its last message; the others go on with each other.
    for (int round = 0; round < 20; ++round) {
      auto wires = Wires(3, round % 2 == 0 ? "" : "secret", true);
      const Bytes sent = Pattern(600000, 5);
      Bytes got_a(sent.size()), got_b(sent.size()), got_late(sent.size());
      std::jthread first([&] {
        const int a = wires[0]->Send(Channel::kMessages, 1, LabelOf(0, sent.size()), sent);
        const int b = wires[0]->Send(Channel::kMessages, 2, LabelOf(0, sent.size()), sent);
        Await(*wires[0], a);
        Await(*wires[0], b);
        wires[0].reset();
      });
      std::jthread second([&] {
        Await(*wires[1], wires[1]->Receive(Channel::kMessages, 0, got_a));
        Await(*wires[1], wires[1]->Send(Channel::kMessages, 2, LabelOf(1, sent.size()), sent));
        wires[1]->Poll();
      });
      Await(*wires[2], wires[2]->Receive(Channel::kMessages, 0, got_b));
      first.join();
      Await(*wires[2], wires[2]->Receive(Channel::kMessages, 1, got_late));
      wires[2]->Poll();
      wires[2]->Pause();
      second.join();
      CHECK(got_a == sent);
      CHECK(got_b == sent);
      CHECK(got_late == sent);
    }
  }

  TEST_CASE("tcp wire: a refusal is handed over before the end") {
    auto wires = Wires(2);
    Bytes sent(8), got(4);
    const int send = wires[0]->Send(Channel::kMessages, 1, LabelOf(0, 8), sent);
    Await(*wires[1], wires[1]->Receive(Channel::kMessages, 0, got));
    wires[1].reset();
    Await(*wires[0], send);
  }

  TEST_CASE("tcp wire: a lost process ends what needs it and nothing else") {
    auto wires = Wires(3);
    Bytes from_lost(4), to_lost(4), from_other(4), other(4, std::byte{7});
    const int receive = wires[0]->Receive(Channel::kMessages, 1, from_lost);
    const int send = wires[0]->Send(Channel::kSums, 1, LabelOf(0, 4), to_lost);
    const int good = wires[0]->Receive(Channel::kMessages, 2, from_other);
    wires[1].reset();
    const std::string lost = "lost the connection to process 1: it was closed at the other end";
    CHECK(Failure([&] { Await(*wires[0], receive); }) == lost);
    CHECK(Failure([&] { wires[0]->Test(send); }) == lost);
    CHECK(Failure([&] { wires[0]->Poll(); }) == lost);
    CHECK(Failure([&] { wires[0]->Pause(); }) == lost);
    const int sent = wires[2]->Send(Channel::kMessages, 0, LabelOf(0, 4), other);
    while (!wires[0]->Test(good).done) std::this_thread::yield();
    Await(*wires[2], sent);
    CHECK(from_other == other);
    // Whatever is begun later is as lost.
    Bytes more(4);
    CHECK(Failure([&] {
            wires[0]->Test(wires[0]->Send(Channel::kMessages, 1, LabelOf(0, 4), more));
          }) == lost);
  }

  TEST_CASE("tcp wire: who watches has the first word about a lost process") {
    auto wires = Wires(2, "", false, Milliseconds(200));
    Bytes in(4);
    const int ticket = wires[0]->Receive(Channel::kMessages, 1, in);
    const Clock::time_point start = Clock::now();
    wires[1].reset();
    CHECK(Failure([&] { Await(*wires[0], ticket); }).starts_with("lost the connection"));
    CHECK(Clock::now() - start >= Milliseconds(200));

    auto watched = Wires(2, "", false, Milliseconds(600'000));
    const int other = watched[0]->Receive(Channel::kMessages, 1, in);
    watched[1].reset();
    std::jthread watch([&] {
      std::this_thread::sleep_for(Milliseconds(10));
      watched[0]->Abort();
    });
    CHECK_THROWS_AS(Await(*watched[0], other), Aborted);
  }

  TEST_CASE("tcp wire: a lost process is called by its name") {
    auto mesh = StreamMesh(2);
    LinkSet links(0, std::move(mesh[0]));
    links.Start(nullptr);
    TcpWire wire(
        links, [](int p) { return "rank " + std::to_string(p + 10); }, kNoGrace);
    Bytes in(1);
    const int ticket = wire.Receive(Channel::kMessages, 1, in);
    mesh[1][0] = Stream();
    CHECK(Failure([&] { Await(wire, ticket); }) ==
          "lost the connection to rank 11: it was closed at the other end");
  }

  TEST_CASE("tcp wire: abort ends all waiting and leaves the caller's memory alone") {
    auto wires = Wires(2);
    auto sent = std::make_unique<Bytes>(size_t{8} << 20), got = std::make_unique<Bytes>(*sent);
    const int send = wires[0]->Send(Channel::kMessages, 1, LabelOf(0, sent->size()), *sent);
    const int receive = wires[1]->Receive(Channel::kMessages, 0, *got);
    Bytes never(1);
    const int waits = wires[0]->Receive(Channel::kSums, 1, never);
    int aborted = 0;
    std::jthread other([&] {
      std::this_thread::sleep_for(Milliseconds(2));
      for (const auto& wire : wires) wire->Abort();
    });
    try {
      Await(*wires[0], waits);
    } catch (const Aborted&) {
      ++aborted;
    }
    other.join();
    // Whether they were done or not.
    sent.reset();
    got.reset();
    for (const auto& call : std::vector<std::function<void()>>{
             [&] { wires[0]->Test(send); }, [&] { wires[1]->Test(receive); },
             [&] { wires[0]->Poll(); }, [&] { wires[1]->Pause(); },
             [&] { wires[0]->Receive(Channel::kSums, 1, never); }}) {
      CHECK_THROWS_AS(call(), Aborted);
      ++aborted;
    }
    CHECK(aborted == 6);
  }

  TEST_CASE("tcp wire: no file stays open") {
    const size_t before = OpenFiles();
    {
      auto wires = Wires(4);
      CHECK(OpenFiles() == before + 4 + 12);
      wires[2].reset();
      wires[1]->Abort();
    }
    CHECK(OpenFiles() == before);
  }
}

}  // namespace
}  // namespace contraflow::tcp_wire_end_test
