// The exchange inside an expert group: what it moves, and how it ends where members disagree, one
// gives up or one never comes.

#include <doctest/doctest.h>

#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "runtime/transport/thread_transport.h"
#include "tests/runtime/transport/process_network.h"
#include "tests/support/failure.h"

namespace contraflow::all_to_all_test {
namespace {

using Milliseconds = std::chrono::milliseconds;
using Parts = std::vector<std::vector<int>>;

void Exchange(Transport& transport, const char* instruction, Parts& send, Parts& receive) {
  std::vector<std::span<const std::byte>> from;
  std::vector<std::span<std::byte>> to;
  for (std::vector<int>& part : send) from.push_back(std::as_bytes(std::span(part)));
  for (std::vector<int>& part : receive) to.push_back(std::as_writable_bytes(std::span(part)));
  transport.AllToAll(ParseInstruction(instruction), from, to);
}

/// How many numbers go from one member to another; none between some.
size_t SizeOf(int from, int to, int round) {
  return static_cast<size_t>((from * 5 + to * 3 + round) % 7);
}

int NumberOf(int replica, int rank, int from, int to, int round, size_t k) {
  return ((((replica * 10 + rank) * 10 + from) * 10 + to) * 100 + round) * 10 + static_cast<int>(k);
}

/// True if the device gets in every round what the members of its own group have for it.
template <typename Network>
bool GetsItsParts(Network& network, Device device, int members, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    Parts send(static_cast<size_t>(members)), receive(send), expected(send);
    for (int other = 0; other < members; ++other) {
      const auto o = static_cast<size_t>(other);
      for (size_t k = 0; k < SizeOf(device.member, other, round); ++k) {
        send[o].push_back(NumberOf(device.replica, device.rank, device.member, other, round, k));
      }
      for (size_t k = 0; k < SizeOf(other, device.member, round); ++k) {
        expected[o].push_back(
            NumberOf(device.replica, device.rank, other, device.member, round, k));
      }
      receive[o].assign(expected[o].size(), -1);
    }
    Exchange(network.At(device), "DISPATCH_F s0 l0 m0", send, receive);
    if (receive != expected) return false;
    for (std::vector<int>& part : send) part.assign(part.size(), -1);  // May be changed by now.
  }
  return true;
}

TEST_SUITE("unit") {
  TEST_CASE_TEMPLATE("all-to-all: every member gets its part and groups are apart", Network,
                     ThreadNetwork, ProcessNetwork) {
    constexpr int kReplicas = 2, kMembers = 3, kRanks = 2;
    Network network(kRanks, kReplicas, kMembers, {});
    std::vector<char> right(kReplicas * kMembers * kRanks, 0);
    {
      std::vector<std::jthread> threads;
      for (int w = 0; w < kReplicas * kMembers * kRanks; ++w) {
        threads.emplace_back([&, w] {
          const Device device = {w / kRanks / kMembers, w / kRanks % kMembers, w % kRanks};
          right[static_cast<size_t>(w)] = GetsItsParts(network, device, kMembers, 200) ? 1 : 0;
        });
      }
    }
    CHECK(right == std::vector<char>(right.size(), 1));
  }

  TEST_CASE_TEMPLATE("all-to-all: members at different instructions are told apart", Network,
                     ThreadNetwork, ProcessNetwork) {
    for (const char* other : {"COMBINE_F s0 l0 m0", "DISPATCH_F s1 l0 m0", "DISPATCH_F s0 l1 m0",
                              "DISPATCH_F s0 l0 m1"}) {
      Network network(2, 1, 2, {.strict = false, .timeout = Milliseconds(60'000)});
      std::string failures[2];
      {
        std::jthread threads[2];
        for (int member = 0; member < 2; ++member) {
          threads[member] = std::jthread([&, member] {
            Parts send(2), receive(2);
            Transport& transport = network.At({0, member, 1});
            failures[member] = Failure([&] {
              Exchange(transport, member == 0 ? "DISPATCH_F s0 l0 m0" : other, send, receive);
            });
            transport.Abort();
          });
        }
      }
      // Each may see it before it is stopped.
      const std::string devices[] = {"member 0 rank 1", "member 1 rank 1"};
      const std::string at[] = {"DISPATCH_F s0 l0 m0", other};
      const auto seen_by = [&](size_t m) {
        return "an expert group must exchange in one order, but " + devices[m] + " is at " + at[m] +
               " and " + devices[1 - m] + " at " + at[1 - m] + "; verify the plan";
      };
      const size_t first = failures[0] == seen_by(0) ? 0 : 1;
      CHECK(failures[first] == seen_by(first));
      const std::string& second = failures[1 - first];
      const bool both = second == seen_by(1 - first);
      CHECK((both || second == "stopped because another rank failed"));
    }
  }

  TEST_CASE_TEMPLATE(
      "all-to-all: a part of another size than is expected is an error where it arrives", Network,
      ThreadNetwork, ProcessNetwork) {
    Network network(1, 1, 3, {});
    std::string failures[3];
    Parts got(3);
    {
      std::jthread threads[3];
      for (int member = 0; member < 3; ++member) {
        threads[member] = std::jthread([&, member] {
          Parts send(3, {member}), receive(3, {-1});
          if (member == 2) send[1] = {2, 2};
          failures[member] = Failure([&] {
            Exchange(network.At({0, member, 0}), "COMBINE_B s1 l2 m3", send, receive);
          });
          got[static_cast<size_t>(member)] = receive[2];
        });
      }
    }
    // Between threads whoever fails stops the others at once.
    const bool threads = std::is_same_v<Network, ThreadNetwork>;
    const auto well = [&](const std::string& failure) {
      return failure == "accepted" || (threads && failure == "stopped because another rank failed");
    };
    CHECK(well(failures[0]));
    CHECK(failures[1] == "COMBINE_B s1 l2 m3 expects 4 bytes from member 2 rank 0, which sends 8");
    CHECK(well(failures[2]));
    CHECK(got[1] == std::vector<int>{-1});
    if (!threads) CHECK(got == Parts{{2}, {-1}, {2}});

    Parts two(2), three(3);
    CHECK(Failure([&] { Exchange(network.At({}), "COMBINE_F s0 l0 m0", two, three); }) ==
          "COMBINE_F s0 l0 m0: an expert group of 3 cannot exchange 2 and 3 parts");
  }

  TEST_CASE_TEMPLATE("all-to-all: abort ends it", Network, ThreadNetwork, ProcessNetwork) {
    Network network(2, 1, 2, {.strict = false, .timeout = Milliseconds(60'000)});
    std::string failure;
    {
      std::jthread waits([&] {
        Parts send(2), receive(2);
        failure = Failure([&] {
          Exchange(network.At({0, 1, 0}), "DISPATCH_B s0 l0 m0", send, receive);
        });
      });
      std::this_thread::sleep_for(Milliseconds(20));
      network.At({0, 0, 1}).Abort();
    }
    CHECK(failure == "stopped because another rank failed");
    Parts send(2), receive(2);
    CHECK_THROWS_AS(Exchange(network.At({0, 0, 0}), "DISPATCH_B s0 l0 m0", send, receive), Aborted);
  }

  TEST_CASE("all-to-all: a member that waits in vain says for whom") {
    ThreadNetwork network(1, 2, 3, {.strict = false, .timeout = Milliseconds(20)});
    Parts send(3), receive(3);
    CHECK(Contains(Failure([&] {
                     Exchange(network.At({1, 1, 0}), "DISPATCH_F s0 l0 m5", send, receive);
                   }),
                   "replica 1 member 1 rank 0 waits at DISPATCH_F s0 l0 m5 for replica 1 member 2 "
                   "rank 0;"));
  }
}

}  // namespace
}  // namespace contraflow::all_to_all_test
