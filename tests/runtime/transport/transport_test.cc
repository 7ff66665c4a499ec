#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <deque>
#include <functional>
#include <numeric>
#include <thread>
#include <type_traits>
#include <vector>

#include "runtime/transport/thread_transport.h"
#include "tests/runtime/transport/parcel.h"
#include "tests/runtime/transport/process_network.h"
#include "tests/support/failure.h"

namespace contraflow::transport_test {
namespace {

using Milliseconds = std::chrono::milliseconds;

std::vector<float> Receive(Transport& transport, const char* instruction, size_t size = 1) {
  Parcel parcel(instruction, std::vector<float>(size));
  Post(transport, parcel);
  transport.Wait(parcel.transfer);
  return parcel.numbers;
}

TEST_SUITE("unit") {
  TEST_CASE("transport: the two sides of a message have one tag") {
    const auto tag = [](const char* text) { return TagOf(ParseInstruction(text)); };
    CHECK(tag("SEND_F s3 m7 to=4") == tag("RECV_F s4 m7 from=3"));
    CHECK(tag("SEND_B s4 m7 to=3") == tag("RECV_B s3 m7 from=4"));
    CHECK(tag("SEND_F s3 m7 to=4") != tag("SEND_B s3 m7 to=4"));
    CHECK(tag("SEND_F s3 m7 to=4") != tag("RECV_F s4 m6 from=3"));
  }

  TEST_CASE_TEMPLATE("transport: buffered messages keep the order of their edge", Network,
                     ThreadNetwork, ProcessNetwork) {
    Network network(2, 1, 1, {});
    std::deque<Parcel> parcels;
    for (int m = 0; m < 50; ++m) {
      const std::string text = "SEND_F s0 m" + std::to_string(m) + " to=1";
      Parcel& parcel =
          parcels.emplace_back(text.c_str(), std::vector<float>{static_cast<float>(m)});
      Post(network.At({0, 0, 0}), parcel);  // Nobody receives yet: a send does not wait.
      CHECK_FALSE(network.At({0, 0, 0}).Done(parcel.transfer));
    }
    for (int m = 0; m < 50; ++m) {
      const std::string text = "RECV_F s1 m" + std::to_string(m) + " from=0";
      CHECK(Receive(network.At({0, 0, 1}), text.c_str()) ==
            std::vector<float>{static_cast<float>(m)});
      Transfer& sent = parcels[static_cast<size_t>(m)].transfer;
      network.At({0, 0, 0}).Wait(sent);
      CHECK(sent.done);
      CHECK(sent.start <= sent.end);
    }
  }

  TEST_CASE_TEMPLATE("transport: a message needs no attention of a receiver that is busy", Network,
                     ThreadNetwork, ProcessNetwork) {
    // All of it has left although the receiver has not called since it posted.
    Network network(2, 1, 1, {});
    Parcel receive("RECV_F s1 m0 from=0", std::vector<float>(1'000, 0));
    Parcel send("SEND_F s0 m0 to=1", std::vector<float>(1'000, 7));
    Post(network.At({0, 0, 1}), receive);
    Post(network.At({0, 0, 0}), send);
    std::ranges::fill(send.numbers, 8.0f);
    network.At({0, 0, 1}).Wait(receive.transfer);
    CHECK(receive.numbers == std::vector<float>(1'000, 7));
    network.At({0, 0, 0}).Wait(send.transfer);
    CHECK(receive.transfer.start >= send.transfer.start);
    CHECK(receive.transfer.start <= receive.transfer.end);
  }

  TEST_CASE_TEMPLATE("transport: receives may be waited for in any order", Network, ThreadNetwork,
                     ProcessNetwork) {
    Network network(2, 1, 1, {});
    Parcel first("RECV_F s1 m0 from=0", {0}), second("RECV_F s1 m1 from=0", {0});
    Post(network.At({0, 0, 1}), first);
    Post(network.At({0, 0, 1}), second);
    CHECK_FALSE(network.At({0, 0, 1}).Done(second.transfer));
    Parcel a("SEND_F s0 m0 to=1", {10}), b("SEND_F s0 m1 to=1", {11});
    Post(network.At({0, 0, 0}), a);
    Post(network.At({0, 0, 0}), b);
    network.At({0, 0, 1}).Wait(second.transfer);
    CHECK(network.At({0, 0, 1}).Done(first.transfer));
    CHECK(first.numbers == std::vector<float>{10});
    CHECK(second.numbers == std::vector<float>{11});
    network.At({0, 0, 0}).Wait(a.transfer);
    network.At({0, 0, 0}).Wait(b.transfer);
  }

  TEST_CASE_TEMPLATE("transport: edges and replicas are apart", Network, ThreadNetwork,
                     ProcessNetwork) {
    Network network(3, 2, 1, {});
    Parcel a("SEND_F s0 m0 to=2", {1}), b("SEND_F s0 m0 to=2", {2}), c("SEND_F s0 m0 to=2", {3});
    Post(network.At({1, 0, 0}), a);
    Post(network.At({0, 0, 1}), b);
    Post(network.At({0, 0, 0}), c);
    CHECK(Receive(network.At({0, 0, 2}), "RECV_F s1 m0 from=0") == std::vector<float>{3});
    CHECK(Receive(network.At({0, 0, 2}), "RECV_F s1 m0 from=1") == std::vector<float>{2});
    CHECK(Receive(network.At({1, 0, 2}), "RECV_F s1 m0 from=0") == std::vector<float>{1});
    network.At({1, 0, 0}).Wait(a.transfer);
    network.At({0, 0, 1}).Wait(b.transfer);
    network.At({0, 0, 0}).Wait(c.transfer);
  }

  TEST_CASE_TEMPLATE("transport: strict a send waits until its message is taken", Network,
                     ThreadNetwork, ProcessNetwork) {
    Network network(2, 1, 1, {.strict = true});
    std::atomic<bool> sent = false;
    std::jthread sender([&] {
      Parcel parcel("SEND_F s0 m0 to=1", {5});
      Post(network.At({0, 0, 0}), parcel);
      sent = true;
    });
    std::this_thread::sleep_for(Milliseconds(30));
    CHECK_FALSE(sent);
    CHECK(Receive(network.At({0, 0, 1}), "RECV_F s1 m0 from=0") == std::vector<float>{5});
    sender.join();
    CHECK(sent);
  }

  TEST_CASE_TEMPLATE("transport: strict a group is posted together", Network, ThreadNetwork,
                     ProcessNetwork) {
    // Both send first. One after the other neither would get to its receive.
    const auto exchange = [](auto& network, bool together, std::string* failures) {
      std::vector<float> got[2];
      {
        std::jthread threads[2];
        for (int r = 0; r < 2; ++r) {
          threads[r] = std::jthread([&, r] {
            const std::string peer = std::to_string(1 - r), micro = " m" + std::to_string(r);
            Parcel send(("SEND_F s0" + micro + " to=" + peer).c_str(), {static_cast<float>(r)});
            Parcel receive(("RECV_F s1 m" + peer + " from=" + peer).c_str(), {-1});
            failures[r] = Failure([&] {
              Transport& transport = network.At({0, 0, r});
              if (together) {
                Transfer* const group[] = {&send.transfer, &receive.transfer};
                transport.Post(group);
                CHECK(send.transfer.done);
                CHECK(receive.transfer.done);
              } else {
                Post(transport, send);
                Post(transport, receive);
              }
            });
            got[r] = receive.numbers;
          });
        }
      }
      return std::vector<float>{got[0][0], got[1][0]};
    };
    std::string failures[2];
    Network network(2, 1, 1, {.strict = true});
    CHECK(exchange(network, true, failures) == std::vector<float>{1, 0});
    CHECK(failures[0] == "accepted");
    CHECK(failures[1] == "accepted");
    // One of the two gives up, and ends the run for the other.
    ThreadNetwork apart(2, 1, 1, {.strict = true, .timeout = Milliseconds(2'000)});
    CHECK(exchange(apart, false, failures) == std::vector<float>{-1, -1});
    const bool first = failures[0].starts_with("no rank");
    CHECK(failures[first ? 0 : 1] ==
          "no rank has made progress for 2 s: rank 0 waits at SEND_F s0 m0 to=1 for rank 1; "
          "rank 1 waits at SEND_F s0 m1 to=0 for rank 0; verify the plan, or allow more time "
          "with `timeout`");
    CHECK(failures[first ? 1 : 0] == "stopped because another rank failed");
  }

  TEST_CASE_TEMPLATE("transport: a wrong tag size or peer is an error", Network, ThreadNetwork,
                     ProcessNetwork) {
    // They outlive what may still be sending them.
    Parcel a("SEND_F s0 m1 to=1", {1}), b("SEND_F s0 m2 to=1", {1, 2});
    Network network(2, 1, 1, {});
    Post(network.At({0, 0, 0}), a);
    Post(network.At({0, 0, 0}), b);
    CHECK(Failure([&] {
            Receive(network.At({0, 0, 1}), "RECV_F s1 m0 from=0");
          }) ==
          "RECV_F s1 m0 from=0 got the wrong message: rank 0 sent SEND_F s0 m1 to=1 first; verify "
          "the plan");
    CHECK(Failure([&] {
            Receive(network.At({0, 0, 1}), "RECV_F s1 m2 from=0");
          }) == "RECV_F s1 m2 from=0 expects 4 bytes, but rank 0 sent 8");
    for (const char* text : {"SEND_F s0 m0 to=2", "SEND_F s0 m0 to=0", "RECV_F s0 m0 from=9"}) {
      Parcel parcel(text, {1});
      CHECK(Failure([&] {
              Post(network.At({0, 0, 0}), parcel);
            }).starts_with("there is no other rank "));
    }
  }

  TEST_CASE_TEMPLATE("transport: abort wakes every rank and keeps them awake", Network,
                     ThreadNetwork, ProcessNetwork) {
    Network network(3, 1, 1, {.strict = true, .timeout = Milliseconds(60'000)});
    std::atomic<int> aborted = 0;
    const auto expect_abort = [&](const std::function<void()>& call) {
      try {
        call();
      } catch (const Aborted&) {
        ++aborted;
      }
    };
    {
      std::jthread a([&] {
        expect_abort([&] { Receive(network.At({0, 0, 0}), "RECV_F s1 m0 from=1"); });
      });
      std::jthread b([&] {
        Parcel parcel("SEND_F s0 m0 to=2", {5});
        expect_abort([&] { Post(network.At({0, 0, 1}), parcel); });
      });
      std::jthread c([&] {
        std::vector<float> values = {1};
        const int holders[] = {0, 2};
        expect_abort([&] {
          network.At({0, 0, 2}).Sum(StageOp(Op::REDUCE, 0), Transport::Over::kAllMembers, holders,
                                    values);
        });
      });
      std::this_thread::sleep_for(Milliseconds(20));
      network.At({0, 0, 0}).Abort();
    }
    CHECK(aborted == 3);
    Parcel late("SEND_F s0 m0 to=2", {5});
    CHECK_THROWS_AS(Post(network.At({0, 0, 1}), late), Aborted);
  }

  TEST_CASE("transport: a rank that waits in vain says who waits for whom") {
    const ThreadNetwork::Options options = {.strict = false, .timeout = Milliseconds(20)};
    ThreadNetwork network(3, 2, 1, options);
    CHECK(Failure([&] {
            Receive(network.At({1, 0, 2}), "RECV_B s1 m4 from=0");
          }) ==
          "no rank has made progress for 0.02 s: replica 0 rank 0 waits for nobody; replica 0 rank "
          "1 waits for nobody; replica 0 rank 2 waits for nobody; replica 1 rank 0 waits for "
          "nobody; replica 1 rank 1 waits for nobody; replica 1 rank 2 waits at RECV_B s1 m4 "
          "from=0 for replica 1 rank 0; verify the plan, or allow more time with `timeout`");
    // Whoever gives up ends the run: nobody works on memory that it may let go of.
    Parcel late("SEND_B s2 m4 to=2", {5});
    CHECK_THROWS_AS(Post(network.At({1, 0, 0}), late), Aborted);

    std::vector<float> values = {1};
    const int holders[] = {1};
    const auto failure = [&](Transport::Over over) {
      ThreadNetwork fresh(2, 3, 2, options);
      return Failure([&] {
        fresh.At({0, 0, 1}).Sum(StageOp(Op::REDUCE, 7), over, holders, values);
      });
    };
    CHECK(Contains(failure(Transport::Over::kAllMembers),
                   "replica 0 member 0 rank 1 waits at REDUCE s7 for replica 2 member 1 rank 1;"));
    CHECK(Contains(failure(Transport::Over::kSameMember),
                   "replica 0 member 0 rank 1 waits at REDUCE s7 for replica 2 member 0 rank 1;"));
  }

  TEST_CASE_TEMPLATE("transport: sums are taken in one order and alike everywhere", Network,
                     ThreadNetwork, ProcessNetwork) {
    // The sum ((a + b) + c) + d of these differs from the sum in most other orders.
    const float parts[] = {1e8f, 1.0f, -1e8f, 3.0f};  // replica 0: ranks 2, 0; replica 1: 2, 0
    const float expected = ((parts[0] + parts[1]) + parts[2]) + parts[3];
    REQUIRE(((parts[1] + parts[0]) + parts[3]) + parts[2] != expected);
    const std::vector<int> holders = {2, 0};
    Network network(3, 2, 1, {});
    for (int round = 0; round < 20; ++round) {
      std::vector<float> values[4];
      {
        std::vector<std::jthread> threads;
        for (const size_t member : {3u, 1u, 0u, 2u}) {
          threads.emplace_back([&, member] {
            const int replica = static_cast<int>(member / 2);
            values[member] = {parts[member], static_cast<float>(member)};
            network.At({replica, 0, holders[member % 2]})
                .Sum(StageOp(Op::REDUCE, 1), Transport::Over::kAllMembers, holders, values[member]);
          });
        }
      }
      for (const std::vector<float>& sum : values) CHECK(sum == std::vector<float>{expected, 6});
    }
    std::vector<float> alone = {4};
    const int nobody_else[] = {0};
    Network(1, 1, 1, {})
        .At({0, 0, 0})
        .Sum(StageOp(Op::REDUCE, 0), Transport::Over::kAllMembers, nobody_else, alone);
    CHECK(alone == std::vector<float>{4});
    CHECK(Failure([&] {
            network.At({0, 0, 1}).Sum(StageOp(Op::REDUCE, 0), Transport::Over::kAllMembers, holders,
                                      alone);
          }) == "this rank holds no copy of the stage");
  }

  TEST_CASE_TEMPLATE("transport: sums over members go member by member or each for itself", Network,
                     ThreadNetwork, ProcessNetwork) {
    const auto sums = [](Transport::Over over) {
      // 2 ranks, 2 replicas, 2 members: worker w brings 2^w and, so that order shows, 1e8 or -1e8.
      Network network(2, 2, 2, {});
      const std::vector<int> holders = {1, 0};
      std::vector<std::vector<float>> values(8);
      std::vector<std::jthread> threads;
      for (int w = 0; w < 8; ++w) {
        values[static_cast<size_t>(w)].assign(1500, static_cast<float>(1 << w));
        threads.emplace_back([&, w] {
          network.At({w / 4, w / 2 % 2, w % 2})
              .Sum(StageOp(Op::REDUCE, 3), over, holders, values[static_cast<size_t>(w)]);
        });
      }
      threads.clear();
      return values;
    };
    for (const std::vector<float>& sum : sums(Transport::Over::kAllMembers)) {
      CHECK(sum == std::vector<float>(1500, 255));
    }
    const std::vector<std::vector<float>> same = sums(Transport::Over::kSameMember);
    for (size_t w = 0; w < 8; ++w) {
      const float expected = w / 2 % 2 == 0 ? 1 + 2 + 16 + 32 : 4 + 8 + 64 + 128;
      CHECK(same[w] == std::vector<float>(1500, expected));
    }
  }

  TEST_CASE_TEMPLATE("transport: sums of different sizes end everywhere", Network, ThreadNetwork,
                     ProcessNetwork) {
    Network network(1, 2, 1, {});
    std::string failures[2];
    {
      std::vector<std::jthread> threads;
      for (int d = 0; d < 2; ++d) {
        threads.emplace_back([&, d] {
          std::vector<float> values(static_cast<size_t>(3 + d));
          const int holders[] = {0};
          failures[d] = Failure([&] {
            network.At({d, 0, 0}).Sum(StageOp(Op::REDUCE, 0), Transport::Over::kAllMembers, holders,
                                      values);
          });
          network.At({d, 0, 0}).Abort();  // as the watch over a job does
        });
      }
    }
    // A device that gets a share of another size than its own says so; the other may be stopped
    // first.
    const auto own = [](int d) {
      return "has " + std::to_string(3 + d) + " gradients to sum, but replica " +
             std::to_string(1 - d) + " rank 0 another number";
    };
    const std::string stopped = "stopped because another rank failed";
    CHECK((failures[0] == own(0) || failures[1] == own(1)));
    for (int d = 0; d < 2; ++d) CHECK((failures[d] == own(d) || failures[d] == stopped));
  }

  TEST_CASE_TEMPLATE("transport: many ranks at once on few cores", Network, ThreadNetwork,
                     ProcessNetwork) {
    constexpr int kRanks = 12, kRounds = 200;
    for (const bool strict : {false, true}) {
      Network network(kRanks, 1, 1, {.strict = strict});
      std::atomic<int> right = 0;
      {
        std::vector<std::jthread> threads;
        for (int r = 0; r < kRanks; ++r) {
          threads.emplace_back([&, r] {
            for (int m = 0; m < kRounds; ++m) {
              const int next = (r + 1) % kRanks, before = (r + kRanks - 1) % kRanks;
              Parcel send("SEND_F s0 m0 to=0", {static_cast<float>(r * kRounds + m)});
              Parcel receive("RECV_F s1 m0 from=0", {-1});
              send.transfer.instruction.peer = next;
              receive.transfer.instruction.peer = before;
              send.transfer.instruction.microbatch = receive.transfer.instruction.microbatch = m;
              Transfer* const group[] = {&send.transfer, &receive.transfer};
              network.At({0, 0, r}).Post(group);
              network.At({0, 0, r}).Wait(receive.transfer);
              network.At({0, 0, r}).Wait(send.transfer);
              if (receive.numbers[0] == static_cast<float>(before * kRounds + m)) ++right;
            }
          });
        }
      }
      CHECK(right == kRanks * kRounds);
    }
  }
}

}  // namespace
}  // namespace contraflow::transport_test
