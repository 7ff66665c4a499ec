// The end of the wire over shared memory: after its last message, by abort, and where another
// process writes nonsense into the memory.

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "compiler/plan/error.h"
#include "runtime/core/bytes.h"
#include "tests/runtime/transport/shm_wires.h"
#include "tests/support/failure.h"

namespace contraflow::shm_wire_end_test {
namespace {

size_t OpenFiles() {
  size_t count = 0;
  for (const auto& file : std::filesystem::directory_iterator("/proc/self/fd")) {
    count += file.exists() ? 1 : 0;
  }
  return count;
}

/// The error of a process that has a send of 5000 bytes and two receives of 5000 and of none under
/// way, after another one has written to the memory that they share.
std::string Says(const std::function<void(const SharedMemory&)>& write) {
  ShmWires wires(2);
  Bytes out(5000), in(5000);
  const int send = wires[0]->Send(Channel::kMessages, 1, LabelOf(0, 5000), out);
  const int receive = wires[0]->Receive(Channel::kMessages, 1, in);
  wires[0]->Receive(Channel::kMessages, 1, {});
  return Failure([&] {
    for (int turn = 0; turn < 3; ++turn) {
      if (turn == 1) write(wires.memory);
      wires[0]->Poll();
    }
    for (const int ticket : {send, receive}) wires[0]->Test(ticket);
  });
}

TEST_SUITE("unit") {
  TEST_CASE("shm wire: a process that ends early has written everything") {
    ShmWires wires(2, size_t{1} << 20);
    const Bytes sent = Pattern(600000, 5);
    Bytes got(sent.size());
    std::jthread first([&] {
      Await(*wires[0], wires[0]->Send(Channel::kMessages, 1, LabelOf(0, sent.size()), sent));
      wires.wires[0].reset();
    });
    Await(*wires[1], wires[1]->Receive(Channel::kMessages, 0, got));
    CHECK(got == sent);
  }

  TEST_CASE("shm wire: another process maps the memory and trains with it") {
    const SharedMemory memory(2, 4096);
    const std::string invitation = memory.Invitation();
    const pid_t child = fork();
    if (child == 0) {
      int code = 1;
      try {
        const SharedMemory mine(2, invitation);
        ShmWire wire(mine, 1, [](int) { return "rank 0"; });
        Bytes got(100000);
        Await(wire, wire.Receive(Channel::kMessages, 0, got));
        for (std::byte& byte : got) byte ^= std::byte{255};
        Await(wire, wire.Send(Channel::kSums, 0, LabelOf(0, got.size()), got));
        code = 0;
      } catch (const std::exception&) {
        code = 2;
      }
      _exit(code);
    }
    ShmWire wire(memory, 0, [](int) { return "rank 1"; });
    const Bytes sent = Pattern(100000, 9);
    Bytes back(sent.size());
    Await(wire, wire.Send(Channel::kMessages, 1, LabelOf(0, sent.size()), sent));
    Await(wire, wire.Receive(Channel::kSums, 1, back));
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    for (std::byte& byte : back) byte ^= std::byte{255};
    CHECK(back == sent);
  }

  TEST_CASE("shm wire: memory that is not that of the job") {
    const SharedMemory memory(2, 4096);
    const std::string invitation = memory.Invitation();
    const auto refusal = [&](int processes, const std::string& bytes) {
      return Failure([&] { SharedMemory(processes, bytes); });
    };
    CHECK(refusal(2, invitation) == "accepted");
    CHECK(refusal(3, invitation) == "rank 0 told of shared memory that is not that of this job");
    CHECK(refusal(2, invitation.substr(1)) == "the place of the shared memory is cut off");
    const std::string head = invitation.substr(8);
    const auto at = [&](int process, int file) {
      return ByteWriter().Put(int32_t{process}).Put(int32_t{file}).Take() + head;
    };
    CHECK(Contains(refusal(2, at(getpid(), 9999)), "must run on one machine"));
    // A file of its own, and another job's memory.
    const SharedMemory other(2, 4096);
    const std::string others = other.Invitation();
    CHECK(Contains(refusal(2, others.substr(0, 8) + head), "another program has its place"));
    for (size_t i = 0; i < head.size(); ++i) {
      std::string changed = invitation;
      changed[8 + i] = static_cast<char>(changed[8 + i] ^ 1);
      CHECK(refusal(2, changed) != "accepted");
    }
    CHECK(Failure([] { SharedMemory(1025, 4096); }) ==
          "1025 processes of one machine cannot share memory; the most are 1024");
    CHECK(SharedMemory::RingBytes(4, 0) == size_t{64} << 10);
    CHECK(SharedMemory::RingBytes(4, size_t{1} << 20) == size_t{4} << 20);
    CHECK(SharedMemory::RingBytes(4, INT64_MAX) == size_t{64} << 20);
    CHECK(SharedMemory::RingBytes(64, INT64_MAX) == size_t{4} << 20);
    CHECK(SharedMemory::RingBytes(1024, INT64_MAX) == size_t{16} << 10);
  }

  TEST_CASE("shm wire: counts and labels that no wire writes are refused") {
    const std::string damaged = "process 1 has damaged the memory that it shares with process 0";
    const auto in = [](const SharedMemory& memory) -> SharedMemory::Ring& {
      return memory.RingOf(Channel::kMessages, 1, 0);
    };
    const auto out = [](const SharedMemory& memory) -> SharedMemory::Ring& {
      return memory.RingOf(Channel::kMessages, 0, 1);
    };
    CHECK(Says([&](const SharedMemory& memory) { in(memory).written = 4097; }) == damaged);
    CHECK(Says([&](const SharedMemory& memory) { in(memory).written = ~uint64_t{0}; }) == damaged);
    CHECK(Says([&](const SharedMemory& memory) { out(memory).read = 4097; }) == damaged);
    CHECK(Says([&](const SharedMemory& memory) { out(memory).read = ~uint64_t{0}; }) == damaged);
    CHECK(Says([&](const SharedMemory& memory) { out(memory).begun = 2; }) == damaged);
    const auto label = [&](size_t place, uint8_t value) {
      return Says([&](const SharedMemory& memory) {
        memory.BytesOf(Channel::kMessages, 1, 0)[place] = std::byte{value};
        in(memory).written = 40;
      });
    };
    CHECK(label(16, 255) == damaged);  // an instruction that does not exist
    CHECK(label(19, 128) == damaged);
    CHECK(label(26, 1) == damaged);    // a layer of more than 16 bits
    CHECK(label(0, 8) == "accepted");  // 8 bytes instead of 5000
  }

  TEST_CASE("shm wire: whatever is written there, nothing else is touched") {
    const char* const lies = std::getenv("CF_LIES");
    const int count = lies == nullptr ? 400 : std::atoi(lies);
    for (int i = 0; i < count; ++i) {
      std::mt19937_64 random(static_cast<uint64_t>(i));
      const std::string end = Says([&](const SharedMemory& memory) {
        for (const Channel channel : {Channel::kMessages, Channel::kSums}) {
          SharedMemory::Ring& to = memory.RingOf(channel, 1, 0);
          SharedMemory::Ring& from = memory.RingOf(channel, 0, 1);
          for (std::byte& byte : memory.BytesOf(channel, 1, 0)) byte = std::byte(random());
          const auto number = [&] { return random() >> random() % 64; };
          if (random() % 2 == 0) to.written = number();
          if (random() % 2 == 0) from.read = number();
          if (random() % 2 == 0) from.begun = number();
        }
      });
      const bool clean = end == "accepted" || end.starts_with("process 1 has damaged the memory");
      if (!clean) FAIL_CHECK(end);
    }
  }

  TEST_CASE("shm wire: bells that another process damages end no process") {
    ShmWires wires(2);
    const std::string invitation = wires.memory.Invitation();
    ByteReader bytes(invitation, "it is");
    bytes.Take<int32_t>();
    const int file = bytes.Take<int32_t>();
    std::atomic<bool> done = false;
    std::jthread liar([&] {
      const std::vector<unsigned char> noise(4096, 0xff);
      while (!done) CHECK(pwrite(file, noise.data(), noise.size(), 4096) == 4096);
    });
    const Bytes sent = Pattern(200'000, 4);
    Bytes got(sent.size());
    std::jthread receiver([&] { Await(*wires[1], wires[1]->Receive(Channel::kMessages, 0, got)); });
    Await(*wires[0], wires[0]->Send(Channel::kMessages, 1, LabelOf(0, sent.size()), sent));
    receiver.join();
    done = true;
    CHECK(got == sent);
  }

  TEST_CASE("shm wire: abort ends all waiting and leaves the caller's memory alone") {
    ShmWires wires(2);
    auto sent = std::make_unique<Bytes>(size_t{8} << 20), got = std::make_unique<Bytes>(*sent);
    const int send = wires[0]->Send(Channel::kMessages, 1, LabelOf(0, sent->size()), *sent);
    const int receive = wires[1]->Receive(Channel::kMessages, 0, *got);
    Bytes never(1);
    const int waits = wires[0]->Receive(Channel::kSums, 1, never);
    int aborted = 0;
    std::jthread other([&] {
      std::this_thread::sleep_for(Milliseconds(2));
      for (const auto& wire : wires.wires) wire->Abort();
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

  TEST_CASE("shm wire: no file stays open and no name is left") {
    const size_t before = OpenFiles();
    {
      ShmWires wires(4);
      const SharedMemory same(4, wires.memory.Invitation());
      CHECK(OpenFiles() == before + 1);
    }
    CHECK(OpenFiles() == before);
  }
}

}  // namespace
}  // namespace contraflow::shm_wire_end_test
