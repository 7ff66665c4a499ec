// A connection of a job, plain or with a secret: what goes over it, and who is refused.

#include "runtime/transport/stream.h"

#include <doctest/doctest.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "compiler/plan/error.h"
#include "tests/runtime/transport/tcp_wires.h"
#include "tests/support/failure.h"

namespace contraflow::stream_test {
namespace {

const std::string kSecret = "a secret";
const std::string kNoProof = "what came does not show the secret of this job";
const std::string kClosed = "it was closed at the other end";

Clock::time_point In(int ms) { return Clock::now() + Milliseconds(ms); }

/// Carries all that two sides say to each other until both are done, and may change it: `change`
/// gets what comes next, and which side it is from; where it returns false that is the last.
class Middle {
 public:
  using Change = std::function<bool(int from, std::string*)>;

  explicit Middle(Change change) : change_(std::move(change)) {
    std::tie(outer_[0], inner_[0]) = Joined();
    std::tie(outer_[1], inner_[1]) = Joined();
    thread_ = std::jthread([this](std::stop_token stop) { Run(stop); });
  }
  Socket TakeSide(int side) { return std::move(outer_[side]); }

 private:
  void Run(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      pollfd polled[] = {{inner_[0].fd(), POLLIN, 0}, {inner_[1].fd(), POLLIN, 0}};
      poll(polled, 2, 5);
      for (int from = 0; from < 2; ++from) {
        if (polled[from].revents == 0) continue;
        std::string bytes(65536, 0);
        const ssize_t count = recv(inner_[from].fd(), bytes.data(), bytes.size(), MSG_DONTWAIT);
        if (count < 0) continue;
        bytes.resize(static_cast<size_t>(count));
        const bool last = count == 0 || !change_(from, &bytes);
        size_t sent = 0;
        while (sent < bytes.size() && !stop.stop_requested()) {
          const ssize_t one = send(inner_[1 - from].fd(), bytes.data() + sent, bytes.size() - sent,
                                   MSG_NOSIGNAL | MSG_DONTWAIT);
          if (one > 0) sent += static_cast<size_t>(one);
          if (one < 0 && errno != EAGAIN) return Shut();
        }
        if (last) return Shut();
      }
    }
  }
  void Shut() {
    for (Socket& socket : inner_) socket.Shutdown();
  }

  const Change change_;
  Socket outer_[2], inner_[2];
  std::jthread thread_;
};

/// How the two sides of a handshake end: that which connects, that which accepts.
std::pair<std::string, std::string> Shake(Socket a, Socket b, const std::string& secret_a,
                                          const std::string& secret_b, int ms = 30'000) {
  auto accepts = std::async(std::launch::async, [&] {
    Stream stream;
    return Failure([&] {
      stream = Stream::Accept(std::move(b), secret_b, In(ms));
      std::byte hello[8];
      stream.ReadAll(hello, In(ms));
    });
  });
  Stream stream;
  std::string connects = Failure([&] {
    stream = Stream::Connect(std::move(a), secret_a, In(ms));
    const std::byte hello[8] = {};
    stream.WriteAll(hello, In(ms));
    std::byte answer;
    stream.ReadAll({&answer, 1}, In(ms));
  });
  stream = Stream();
  return {connects, accepts.get()};
}

/// A server of TLS 1.3 with a certificate that it has made itself, and no key of any job.
void ServeWithCertificate(Socket socket) {
  EVP_PKEY* key = EVP_PKEY_Q_keygen(nullptr, nullptr, "EC", "P-256");
  X509* certificate = X509_new();
  X509_gmtime_adj(X509_getm_notBefore(certificate), 0);
  X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
  X509_set_pubkey(certificate, key);
  REQUIRE(X509_sign(certificate, key, EVP_sha256()) > 0);
  SSL_CTX* context = SSL_CTX_new(TLS_server_method());
  REQUIRE(SSL_CTX_use_certificate(context, certificate) == 1);
  REQUIRE(SSL_CTX_use_PrivateKey(context, key) == 1);
  SSL* tls = SSL_new(context);
  SSL_set_fd(tls, socket.fd());
  int result = -1;
  while ((result = SSL_accept(tls)) != 1 && SSL_get_error(tls, result) == SSL_ERROR_WANT_READ) {
    AwaitReady(socket, false, Soon());
  }
  CHECK(result != 1);
  SSL_free(tls);
  SSL_CTX_free(context);
  X509_free(certificate);
  EVP_PKEY_free(key);
}

/// Runs a check over a plain connection and over one with a secret.
template <typename Check>
void Both(const Check& check) {
  for (const std::string& secret : {std::string(), kSecret}) {
    CAPTURE(secret);
    auto [a, b] = JoinedStreams(secret, true);
    check(a, b);
  }
}

TEST_SUITE("unit") {
  TEST_CASE("stream: much in both directions at once") {
    Both([](Stream& a, Stream& b) {
      const Bytes there = Pattern(8'000'000, 1), back = Pattern(8'000'000, 2);
      Bytes got_there(there.size()), got_back(back.size());
      // Each end is one thread's, which writes and reads in turns, as much as goes.
      const auto work = [](Stream& stream, std::span<const std::byte> out,
                           std::span<std::byte> in) {
        while (!out.empty() || !in.empty()) {
          const size_t written = out.empty() ? 0 : stream.Write(out);
          const size_t read = in.empty() ? 0 : stream.Read(in);
          out = out.subspan(written);
          in = in.subspan(read);
        }
      };
      std::jthread other([&, &b = b] { work(b, back, got_there); });
      work(a, there, got_back);
      other.join();
      CHECK(got_there == there);
      CHECK(got_back == back);
    });
  }

  TEST_CASE("stream: deadlines of what nobody sends or takes") {
    Both([](Stream& a, Stream&) {
      std::byte byte;
      CHECK(Failure([&] { a.ReadAll({&byte, 1}, In(50)); }) == "timed out");
      const Bytes much(64'000'000);
      CHECK(Failure([&] { a.WriteAll(much, In(50)); }) == "timed out");
      a.ReadAll({}, In(0));
    });
  }

  TEST_CASE("stream: who sends to one that has left is told") {
    Both([](Stream& a, Stream& b) {
      b = Stream();
      const Bytes much(1'000'000);
      std::string failure = "accepted";
      for (int i = 0; i < 100 && failure == "accepted"; ++i) {
        failure = Failure([&] { a.WriteAll(much, Soon()); });
      }
      CHECK(failure == kClosed);
    });
  }

  TEST_CASE("stream: what was sent before the end comes, and then the end") {
    Both([](Stream& a, Stream& b) {
      const Bytes sent = Pattern(100'000, 3);
      Bytes got(sent.size());
      std::jthread reads([&, &b = b] { b.ReadAll(got, Soon()); });
      a.WriteAll(sent, Soon());
      a.EndSending();
      reads.join();
      CHECK(got == sent);
      std::byte byte;
      CHECK(Failure([&, &b = b] { b.ReadAll({&byte, 1}, Soon()); }) == kClosed);
      // The other direction is open still.
      b.WriteAll({&byte, 1}, Soon());
      a.ReadAll({&byte, 1}, Soon());
    });
  }

  TEST_CASE("stream: shut down it wakes who waits on either side") {
    Both([](Stream& a, Stream& b) {
      const auto wait = [](Stream& stream) {
        std::byte byte;
        return Failure([&] { stream.ReadAll({&byte, 1}, Soon()); });
      };
      auto there = std::async(std::launch::async, [&, &b = b] { return wait(b); });
      a.Shutdown();
      CHECK(wait(a) == kClosed);
      CHECK(there.get() == kClosed);
      CHECK(a.fd() >= 0);
    });
  }

  TEST_CASE("stream: who does not know the secret is refused on both sides") {
    std::signal(SIGPIPE, SIG_IGN);
    const auto shake = [](const std::string& a, const std::string& b, int ms = 30'000) {
      auto [connects, accepts] = Joined(true);
      return Shake(std::move(connects), std::move(accepts), a, b, ms);
    };
    // Both that know it: the accepting one has read what was sent, and goes.
    const auto known = shake(kSecret, kSecret);
    CHECK(known.first == kClosed);
    CHECK(known.second == "accepted");
    const auto wrong = shake("another secret", kSecret);
    CHECK((wrong.first == kNoProof || wrong.first == kClosed));
    CHECK(wrong.second == kNoProof);
    // A side without a secret takes what the other says for its own protocol, and neither goes on.
    const auto plain_client = shake("", kSecret);
    CHECK(plain_client.second == kNoProof);
    const auto plain_server = shake(kSecret, "", 300);
    CHECK(plain_server.first != "accepted");
  }

  TEST_CASE("stream: a server with a certificate instead of the secret is refused") {
    auto [connects, accepts] = Joined(true);
    std::jthread server([&end = accepts] { ServeWithCertificate(std::move(end)); });
    CHECK(Failure([&, &end = connects] { Stream::Connect(std::move(end), kSecret, Soon()); }) ==
          kNoProof);
  }

  TEST_CASE("stream: a handshake that is cut off at any place fails on both sides") {
    std::signal(SIGPIPE, SIG_IGN);
    for (size_t most = 0; most < 700; most += 37) {
      CAPTURE(most);
      size_t seen = 0;
      Middle middle([&](int, std::string* bytes) {
        bytes->resize(std::min(bytes->size(), most - std::min(most, seen)));
        seen += bytes->size();
        return seen < most;
      });
      const auto [connects, accepts] =
          Shake(middle.TakeSide(0), middle.TakeSide(1), kSecret, kSecret);
      CHECK(connects != "accepted");
      if (most < 400) CHECK(accepts == kClosed);
    }
  }

  TEST_CASE("stream: a changed byte ends the connection, and nothing changed is read") {
    std::signal(SIGPIPE, SIG_IGN);
    for (const size_t at : {size_t{5}, size_t{100}, size_t{3000}, size_t{40'000}}) {
      CAPTURE(at);
      std::atomic<bool> armed = false;
      size_t seen = 0;
      Middle middle([&](int from, std::string* bytes) {
        if (from != 0 || !armed) return true;
        if (seen <= at && at < seen + bytes->size()) (*bytes)[at - seen] ^= 1;
        seen += bytes->size();
        return true;
      });
      Stream b;
      auto accepts = std::async(std::launch::async, [&, end = middle.TakeSide(1)]() mutable {
        return Stream::Accept(std::move(end), kSecret, Soon());
      });
      Stream a = Stream::Connect(middle.TakeSide(0), kSecret, Soon());
      b = accepts.get();
      armed = true;
      const Bytes sent = Pattern(50'000, at);
      a.WriteAll(sent, Soon());
      Bytes got;
      std::string failure;
      std::byte room[977];
      while (failure.empty()) {
        try {
          const size_t count = b.Read(room);
          got.insert(got.end(), room, room + count);
          if (count == 0) AwaitReady(b.socket(), false, Soon());
        } catch (const Error& error) {
          failure = error.what();
        }
      }
      CHECK(failure == kNoProof);
      CHECK(got.size() <= at);
      CHECK(std::equal(got.begin(), got.end(), sent.begin()));
    }
  }

  TEST_CASE("stream: a part of a record is nothing to be read yet") {
    // Who took it for bytes that are there would look again and again.
    std::atomic<bool> armed = false;
    Middle middle([&](int from, std::string* bytes) {
      if (from == 0 && armed) bytes->resize(std::max<size_t>(1, bytes->size() / 2));
      return true;
    });
    auto accepts = std::async(std::launch::async, [&, end = middle.TakeSide(1)]() mutable {
      return Stream::Accept(std::move(end), kSecret, Soon());
    });
    Stream a = Stream::Connect(middle.TakeSide(0), kSecret, Soon());
    Stream b = accepts.get();
    armed = true;
    a.WriteAll(Pattern(1000, 1), Soon());
    REQUIRE(AwaitReady(b.socket(), false, Soon()));
    std::byte room[100];
    CHECK(b.Read(room) == 0);
    CHECK_FALSE(b.buffered());
    CHECK_FALSE(AwaitReady(b.socket(), false, In(20)));
  }

  TEST_CASE("stream: what a record has more than was asked for is told of") {
    auto [a, b] = JoinedStreams(kSecret);
    a.WriteAll(Pattern(1000, 1), Soon());
    REQUIRE(AwaitReady(b.socket(), false, Soon()));
    std::byte room[100];
    CHECK(b.Read(room) == 100);
    CHECK(b.buffered());
    for (int i = 1; i < 10; ++i) CHECK(b.Read(room) == 100);
    CHECK_FALSE(b.buffered());
  }
}

}  // namespace
}  // namespace contraflow::stream_test
