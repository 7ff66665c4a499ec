#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "runtime/launch/address.h"
#include "tests/runtime/launch/gathering.h"
#include "tests/support/failure.h"
#include "tests/support/held_port.h"

namespace contraflow::socket_test {
namespace {

using std::chrono::milliseconds;

Clock::time_point In(int ms) { return Clock::now() + milliseconds(ms); }

Socket Await(const Socket& listener) {
  pollfd entry{listener.fd(), POLLIN, 0};
  REQUIRE(poll(&entry, 1, 100'000) == 1);
  Socket socket = Accept(listener);
  REQUIRE(socket);
  return socket;
}

/// Returns the next bytes; "" if the other side has closed.
std::string Receive(const Socket& socket) {
  REQUIRE(AwaitReady(socket, false, Soon()));
  char bytes[16];
  const ssize_t count = recv(socket.fd(), bytes, sizeof bytes, 0);
  return {bytes, static_cast<size_t>(std::max<ssize_t>(0, count))};
}

void CheckJoined(const Socket& a, const Socket& b) {
  REQUIRE(send(a.fd(), "word", 4, MSG_NOSIGNAL) == 4);
  CHECK(Receive(b) == "word");
  CHECK(LocalAddress(a).Text() == PeerAddress(b).Text());
  CHECK(LocalAddress(b).Text() == PeerAddress(a).Text());
}

std::string ListenFailure(const Address& at) {
  return Failure([&] { Listen(at); });
}

TEST_SUITE("unit") {
  TEST_CASE("socket: addresses as text") {
    CHECK(Address{"10.0.0.1", 80}.Text() == "10.0.0.1:80");
    CHECK(Address{"fe80::1%eth0", 80}.Text() == "[fe80::1%eth0]:80");
    CHECK(Address{"node-3.cluster", 29500}.Text() == "node-3.cluster:29500");
  }

  TEST_CASE("socket: hosts that are the machine itself") {
    for (const char* host : {"localhost", "127.0.0.1", "127.0.1.1", "::1"}) CHECK(IsLoopback(host));
    for (const char* host : {"", "127.nosuch.invalid", "10.0.0.127", "::2", "[::1]", "node-1"}) {
      CHECK(!IsLoopback(host));
    }
  }

  TEST_CASE("socket: connections over IPv4 and IPv6 and names") {
    std::vector<std::pair<std::string, std::string>> hosts = {
        {"127.0.0.1", "127.0.0.1"}, {"localhost", "localhost"}, {"", "127.0.0.1"}};
    if (ListenFailure({"::1", 0}) == "accepted") {
      hosts.push_back({"::1", "::1"});
      hosts.push_back({"", "::1"});
    }
    for (const auto& [at, to] : hosts) {
      CAPTURE(at);
      CAPTURE(to);
      const Socket listener = Listen({at, 0});
      const Address address = LocalAddress(listener);
      CHECK(address.port > 0);
      CHECK_FALSE(Accept(listener));
      const Socket a = Connect({to, address.port}, Soon());
      const Socket b = Await(listener);
      CheckJoined(a, b);
      CheckJoined(b, a);
      // An address of a listener for both families too: no ::ffff:127.0.0.1.
      const bool loopback = PeerAddress(b).host == "127.0.0.1" || PeerAddress(b).host == "::1";
      CHECK(loopback);
    }
  }

  TEST_CASE("socket: neither blocks nor is inherited") {
    const Socket listener = Listen({"127.0.0.1", 0});
    const SocketPair pair;
    for (const Socket* socket : {&listener, &pair.a, &pair.b}) {
      CHECK((fcntl(socket->fd(), F_GETFD) & FD_CLOEXEC) != 0);
      CHECK((fcntl(socket->fd(), F_GETFL) & O_NONBLOCK) != 0);
    }
  }

  TEST_CASE("socket: a forked child holds no connection open") {
    SocketPair pair;
    const pid_t child = fork();
    if (child == 0) {
      sleep(60);
      _exit(0);
    }
    pair.a = Socket();
    // The child lives for longer than that.
    const bool ended = AwaitReady(pair.b, false, In(20'000));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    CHECK(ended);
    CHECK(ReceiveRest(pair.b) == "");
  }

  TEST_CASE("socket: moved from it is empty and assigned to it closes what it was") {
    SocketPair pair;
    Socket moved = std::move(pair.a);
    CHECK_FALSE(pair.a);
    CHECK(moved);
    moved = Socket();
    CHECK(Receive(pair.b) == "");
  }

  TEST_CASE("socket: a port that is taken") {
    const Socket listener = Listen({"127.0.0.1", 0});
    const std::string port = std::to_string(LocalAddress(listener).port);
    CHECK(ListenFailure(LocalAddress(listener)) ==
          "cannot listen at 127.0.0.1:" + port + ": port " + port +
              " is taken (address already in use): by an older job that still runs, perhaps; end "
              "it, or set another MASTER_PORT");
    CHECK(Contains(ListenFailure({"", LocalAddress(listener).port}), " is taken"));
  }

  TEST_CASE("socket: a port whose last connection has just ended is free") {
    const HeldPort held;
    const Address address{"127.0.0.1", held.port()};
    for (int round = 0; round < 3; ++round) {
      const Socket listener = Listen(address);
      const Socket a = Connect(address, Soon());
      Socket b = Await(listener);
      b = Socket();  // the side of the listener first: its port goes to TIME_WAIT
      CHECK(Receive(a) == "");
    }
  }

  TEST_CASE("socket: where one cannot listen or connect") {
    // 192.0.2.0/24 is for examples and nobody's.
    CHECK(ListenFailure({"192.0.2.1", 0}) ==
          "cannot listen at 192.0.2.1:0: no address of this machine; rank 0 must be started on the "
          "machine that MASTER_ADDR names");
    CHECK(ListenFailure({"127.0.0.1", -1}) == "127.0.0.1:-1: a port is a number from 0 to 65535");
    CHECK(ListenFailure({"127.0.0.1", 65'536}) ==
          "127.0.0.1:65536: a port is a number from 0 to 65535");
    CHECK_THROWS_WITH_AS(Connect({"127.0.0.1", 0}, In(0)),
                         "127.0.0.1:0: a port is a number from 1 to 65535", Error);
    const std::string nowhere = Failure([] { Connect({"no such host", 80}, In(300)); });
    CAPTURE(nowhere);
    CHECK(nowhere.find("cannot connect to no such host:80: ") == 0);
  }

  TEST_CASE("socket: connects as soon as somebody listens") {
    const HeldPort held;
    const Address address{"127.0.0.1", held.port()};
    Socket listener;
    std::thread listening([&] {
      std::this_thread::sleep_for(milliseconds(150));
      listener = Listen(address);
    });
    const Socket a = Connect(address, Soon());
    listening.join();
    CheckJoined(a, Await(listener));
  }

  TEST_CASE("socket: nobody listens until the deadline") {
    const HeldPort held;
    const Address address{"127.0.0.1", held.port()};
    const Clock::time_point begin = Clock::now();
    CHECK(Failure([&] { Connect(address, In(120)); }) ==
          "cannot connect to " + address.Text() + ": Connection refused");
    CHECK(Clock::now() - begin >= milliseconds(120));
  }
}

}  // namespace
}  // namespace contraflow::socket_test
