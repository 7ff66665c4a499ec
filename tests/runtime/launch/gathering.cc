#include "tests/runtime/launch/gathering.h"

#include <doctest/doctest.h>
#include <poll.h>
#include <unistd.h>

#include <future>
#include <span>
#include <thread>

#include "compiler/plan/error.h"
#include "tests/support/receive_all.h"

namespace contraflow {
namespace {

void CheckJoined(Socket& a, Socket& b, const std::string& word) {
  a.WriteAll(std::as_bytes(std::span(word)), Soon());
  std::string got(word.size(), ' ');
  b.ReadAll(std::as_writable_bytes(std::span(got)), Soon());
  CHECK(got == word);
}

}  // namespace

std::vector<MeetingPoint> Points(int size, int timeout_ms) {
  std::vector<MeetingPoint> points(static_cast<size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    MeetingPoint& point = points[static_cast<size_t>(rank)];
    point.rank = rank;
    point.size = size;
    point.address = {"127.0.0.1", 0};
    point.secret = "the secret of the tests";
    point.timeout = std::chrono::milliseconds(timeout_ms);
  }
  return points;
}

std::vector<Attendance> Gather(const std::vector<MeetingPoint>& points,
                               const std::function<void(const Address&)>& listening) {
  std::promise<Address> listens, go;
  const std::shared_future<Address> address = go.get_future().share();
  // Rank 0 must not wait for it: it may want to talk to rank 0.
  std::thread between([&] {
    const Address at = listens.get_future().get();
    if (listening && at.port != 1) listening(at);
    go.set_value(at);
  });
  bool any_host = false;
  std::vector<Attendance> all(points.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < points.size(); ++i) {
    const bool host = points[i].rank == 0 && points[i].size > 1 && !any_host;
    any_host = any_host || host;
    threads.emplace_back([&, i, host] {
      MeetingPoint point = points[i];
      bool told = false;
      if (host) {
        point.ready = [&](const Address& at) {
          told = true;
          listens.set_value(at);
        };
      } else if (point.address.port == 0) {
        point.address = address.get();
      }
      const Clock::time_point begin = Clock::now();
      try {
        all[i].members = Meet(point);
      } catch (const Error& error) {
        all[i].error = error.what();
      }
      all[i].seconds = std::chrono::duration<double>(Clock::now() - begin).count();
      if (host && !told) listens.set_value({"127.0.0.1", 1});
    });
  }
  if (!any_host) listens.set_value({"127.0.0.1", 1});
  for (std::thread& thread : threads) thread.join();
  between.join();
  return all;
}

void CheckMet(std::vector<Attendance>& all) {
  for (const Attendance& one : all) {
    CHECK(one.error == "");
    REQUIRE(one.members.has_value());
  }
  const size_t size = all.size();
  for (size_t i = 0; i < size; ++i) {
    Membership& a = *all[i].members;
    CHECK(a.rank == static_cast<int>(i));
    CHECK(a.size == static_cast<int>(size));
    CHECK((a.listener != nullptr) == (i == 0 && size > 1));
    REQUIRE(a.links.size() == size);
    for (size_t j = 0; j < size; ++j) {
      const bool joined = i != j && (i == 0 || j == 0);
      CHECK(static_cast<bool>(a.links[j]) == joined);
      const std::string pair = std::to_string(i) + " to " + std::to_string(j);
      if (joined) CheckJoined(a.links[j], all[j].members->links[i], pair);
    }
  }
}

Clock::time_point Soon() { return Clock::now() + std::chrono::milliseconds(kPlenty); }

SocketPair::SocketPair() {
  const Socket listener = Listen({"127.0.0.1", 0});
  a = Connect(LocalAddress(listener), Soon());
  pollfd entry{listener.fd(), POLLIN, 0};
  REQUIRE(poll(&entry, 1, kPlenty) == 1);
  b = Accept(listener);
  REQUIRE(b);
}

void SendText(const Socket& socket, const std::string& text) {
  Socket stream{Socket(dup(socket.fd()))};
  stream.WriteAll(std::as_bytes(std::span(text)), Soon());
}

std::string ReceiveText(const Socket& socket, size_t bytes) {
  std::string text(bytes, '\0');
  ReceiveAll(socket, std::as_writable_bytes(std::span(text)), Soon());
  return text;
}

std::string ReceiveRest(const Socket& socket) {
  std::string text;
  try {
    while (true) text += ReceiveText(socket, 1);
  } catch (const Error& error) {
    CHECK(std::string(error.what()) == "the connection was closed");
  }
  return text;
}

}  // namespace contraflow
