// The wire over shared memory: order, sizes and labels. The processes are threads here.

#include "runtime/transport/shm_wire.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "tests/runtime/transport/shm_wires.h"

namespace contraflow::shm_wire_test {
namespace {

TEST_SUITE("unit") {
  TEST_CASE("shm wire: a message of every size arrives with its label") {
    ShmWires wires(2);
    for (const size_t size : {size_t{0}, size_t{1}, size_t{39}, size_t{4055}, size_t{4056},
                              size_t{4057}, size_t{8192}, size_t{3000000}}) {
      CAPTURE(size);
      const Bytes sent = Pattern(size, size);
      Bytes got(size);
      Label label = {Component(Op::COMBINE_B, 3, 4, 5), 6, size};
      const Clock::time_point before = Clock::now();
      const int send = wires[0]->Send(Channel::kExperts, 1, label, sent);
      const int receive = wires[1]->Receive(Channel::kExperts, 0, got);
      const Wire::Status status = AwaitBoth(*wires[0], send, *wires[1], receive);
      CHECK(status.label.instruction.op == Op::COMBINE_B);
      CHECK(status.label.instruction.stage == 3);
      CHECK(status.label.instruction.layer == 4);
      CHECK(status.label.instruction.microbatch == 5);
      CHECK(status.label.part == 6);
      CHECK(status.label.bytes == size);
      CHECK(status.begun >= before);
      CHECK(status.begun <= Clock::now());
      CHECK(got == sent);
    }
  }

  TEST_CASE("shm wire: messages of a channel are taken in order and channels are apart") {
    constexpr int kMessages = 150;
    for (const uint32_t seed : {1u, 2u, 3u}) {
      CAPTURE(seed);
      ShmWires wires(3, size_t{4096} << seed);
      // Every process sends everybody messages of random sizes on random channels, each with its
      // number on the channel, and receives them in an order of its own.
      const auto size_of = [&](int from, int to, int channel, int number) {
        std::seed_seq key{seed, static_cast<uint32_t>(from), static_cast<uint32_t>(to),
                          static_cast<uint32_t>(channel), static_cast<uint32_t>(number)};
        std::mt19937 random(key);
        return random() % 8 == 0 ? size_t{random() % 400000} : size_t{random() % 100};
      };
      std::atomic<int> right = 0;
      std::vector<std::jthread> threads;
      for (int self = 0; self < 3; ++self) {
        threads.emplace_back([&, self] {
          Wire& wire = *wires[static_cast<size_t>(self)];
          std::mt19937 random(seed * 10 + static_cast<uint32_t>(self));
          int sent[3][3] = {}, begun[3][3] = {};  // [process][channel]
          struct Open {
            int ticket, process, channel, number;
            bool receive;
            Bytes bytes;
          };
          std::vector<std::unique_ptr<Open>> open;
          int left = 2 * 2 * kMessages;
          while (left > 0 || !open.empty()) {
            const auto process = static_cast<int>(random() % 3);
            const auto channel = static_cast<int>(random() % 3);
            const bool receive = random() % 2 == 0;
            int& number = (receive ? begun : sent)[process][channel];
            if (process != self && left > 0 && number < kMessages / 3) {
              auto one = std::make_unique<Open>(Open{-1, process, channel, number++, receive, {}});
              const size_t size = receive ? size_of(process, self, channel, one->number)
                                          : size_of(self, process, channel, one->number);
              one->bytes = receive ? Bytes(size) : Pattern(size, size + 1);
              one->ticket = receive
                                ? wire.Receive(static_cast<Channel>(channel), process, one->bytes)
                                : wire.Send(static_cast<Channel>(channel), process,
                                            LabelOf(one->number, size), one->bytes);
              open.push_back(std::move(one));
              --left;
            }
            const size_t before = open.size();
            std::erase_if(open, [&](const auto& one) {
              const Wire::Status status = wire.Test(one->ticket);
              if (!status.done) return false;
              if (one->receive && status.label.instruction.microbatch == one->number &&
                  one->bytes == Pattern(one->bytes.size(), one->bytes.size() + 1)) {
                ++right;
              }
              return true;
            });
            if (left == 0 && open.size() == before) wire.Pause();
          }
        });
      }
      threads.clear();
      CHECK(right == 3 * 2 * kMessages);
    }
  }

  TEST_CASE("shm wire: a send is done only once its receive has begun") {
    ShmWires wires(2);
    for (const size_t size : {size_t{0}, size_t{4}}) {
      Bytes sent(size), got(size);
      const int send = wires[0]->Send(Channel::kSums, 1, LabelOf(0, size), sent);
      std::this_thread::sleep_for(Milliseconds(10));
      wires[1]->Poll();
      CHECK_FALSE(wires[0]->Test(send).done);
      const int receive = wires[1]->Receive(Channel::kSums, 0, got);
      Await(*wires[0], send);
      Await(*wires[1], receive);
    }
  }

  TEST_CASE("shm wire: a large message does not hold up those after it") {
    ShmWires wires(2);
    const Bytes large = Pattern(size_t{32} << 20, 1), small = Pattern(100, 2);
    Bytes got_large(large.size()), got_small(small.size());
    // Nobody takes the first for now, or it is long on its way.
    for (const bool taken : {false, true}) {
      CAPTURE(taken);
      const int a = wires[0]->Send(Channel::kMessages, 1, LabelOf(0, large.size()), large);
      int in = -1;
      if (taken) in = wires[1]->Receive(Channel::kMessages, 0, got_large);
      const int b = wires[0]->Send(Channel::kExperts, 1, LabelOf(1, 100), small);
      Await(*wires[1], wires[1]->Receive(Channel::kExperts, 0, got_small));
      Await(*wires[0], b);
      CHECK(got_small == small);
      if (!taken) in = wires[1]->Receive(Channel::kMessages, 0, got_large);
      AwaitBoth(*wires[0], a, *wires[1], in);
      CHECK(got_large == large);
      std::ranges::fill(got_large, std::byte{0});
      std::ranges::fill(got_small, std::byte{0});
    }
  }

  TEST_CASE("shm wire: a message of another size is refused and the next one is not") {
    ShmWires wires(2);
    Bytes sent(8, std::byte{1}), got(4);
    for (const bool receive_first : {false, true}) {
      int send = -1, receive = -1;
      const auto begin_send = [&] {
        send = wires[0]->Send(Channel::kMessages, 1, LabelOf(1, 8), sent);
      };
      if (!receive_first) begin_send();
      receive = wires[1]->Receive(Channel::kMessages, 0, got);
      if (receive_first) begin_send();
      const Wire::Status status = Await(*wires[1], receive);
      CHECK(status.label.bytes == 8);
      CHECK(status.label.instruction.microbatch == 1);
      CHECK(got == Bytes(4));
      Await(*wires[0], send);
    }
    Bytes right(8);
    const int send = wires[0]->Send(Channel::kMessages, 1, LabelOf(2, 8), sent);
    Await(*wires[1], wires[1]->Receive(Channel::kMessages, 0, right));
    Await(*wires[0], send);
    CHECK(right == sent);
  }
}

}  // namespace
}  // namespace contraflow::shm_wire_test
