#include "runtime/launch/address.h"

#include <arpa/inet.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <future>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "compiler/plan/error.h"

namespace contraflow {
namespace {

using std::chrono::milliseconds;

struct Endpoint {
  sockaddr_storage storage{};
  socklen_t size = sizeof(storage);

  sockaddr* address() { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* address() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

struct Resolved {
  int error = 0;         // of getaddrinfo
  int system_error = 0;  // errno, where that is the error
  std::vector<Endpoint> endpoints;

  std::string Reason() const {
    return error == EAI_SYSTEM ? std::strerror(system_error) : gai_strerror(error);
  }
};

Resolved Ask(const std::string& host, int port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  Resolved resolved;
  resolved.error = getaddrinfo(host.empty() ? nullptr : host.c_str(), std::to_string(port).c_str(),
                               &hints, &list);
  resolved.system_error = errno;
  if (resolved.error != 0) return resolved;
  for (const addrinfo* info = list; info != nullptr; info = info->ai_next) {
    Endpoint endpoint;
    std::memcpy(&endpoint.storage, info->ai_addr, info->ai_addrlen);
    endpoint.size = info->ai_addrlen;
    resolved.endpoints.push_back(endpoint);
  }
  freeaddrinfo(list);
  return resolved;
}

/// getaddrinfo takes as long as the name servers let it; a thread of its own may.
Resolved Resolve(const Address& address, Clock::time_point deadline) {
  Resolved numeric = Ask(address.host, address.port, AI_NUMERICHOST);
  if (numeric.error == 0) return numeric;
  std::promise<Resolved> promise;
  std::future<Resolved> answer = promise.get_future();
  try {
    std::thread([address, promise = std::move(promise)]() mutable {
      promise.set_value(Ask(address.host, address.port, 0));
    }).detach();
  } catch (const std::system_error&) {
    return Ask(address.host, address.port, 0);  // in its own time
  }
  if (answer.wait_until(deadline) == std::future_status::ready) return answer.get();
  return {EAI_AGAIN, 0, {}};
}

Address AddressOf(const Endpoint& endpoint) {
  Endpoint plain = endpoint;
  const auto* six = reinterpret_cast<const sockaddr_in6*>(&endpoint.storage);
  // A listener for both families sees IPv4 as ::ffff:a.b.c.d; for everyone else it is a.b.c.d.
  if (endpoint.storage.ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&six->sin6_addr)) {
    sockaddr_in four{};
    four.sin_family = AF_INET;
    four.sin_port = six->sin6_port;
    std::memcpy(&four.sin_addr, six->sin6_addr.s6_addr + 12, 4);
    std::memcpy(&plain.storage, &four, sizeof(four));
    plain.size = sizeof(four);
  }
  char host[NI_MAXHOST], port[NI_MAXSERV];
  const int error = getnameinfo(plain.address(), plain.size, host, sizeof(host), port, sizeof(port),
                                NI_NUMERICHOST | NI_NUMERICSERV);
  if (error != 0) throw Error(std::string("no address of a socket: ") + gai_strerror(error));
  return {host, std::stoi(port)};
}

void SetOption(const Socket& socket, int level, int option, int value) {
  // Only speeds things up or widens what is accepted: without it things work too.
  (void)setsockopt(socket.fd(), level, option, &value, sizeof(value));
}

Socket NewSocket(int family) {
  return Socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

/// The system's error number of a connection that was begun, 0 if it stands.
int ConnectError(const Socket& socket) {
  int error = 0;
  socklen_t size = sizeof(error);
  if (getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) return errno;
  if (error != 0) return error;
  // Trying a local port where nobody listens may, by chance, get that very port as its own, and is
  // then connected to itself.
  Endpoint here, there;
  if (getsockname(socket.fd(), here.address(), &here.size) != 0) return errno;
  if (getpeername(socket.fd(), there.address(), &there.size) != 0) return errno;
  const bool self =
      here.size == there.size && std::memcmp(&here.storage, &there.storage, here.size) == 0;
  return self ? ECONNREFUSED : 0;
}

/// One attempt; the system's error number, 0 if `socket` is connected.
int TryConnect(const Endpoint& to, Clock::time_point deadline, Socket* socket) {
  *socket = NewSocket(to.storage.ss_family);
  if (!*socket) return errno;
  SetOption(*socket, IPPROTO_TCP, TCP_NODELAY, 1);
  if (connect(socket->fd(), to.address(), to.size) != 0) {
    if (errno != EINPROGRESS && errno != EINTR) return errno;
    if (!AwaitReady(*socket, true, deadline)) return ETIMEDOUT;
  }
  return ConnectError(*socket);
}

bool IsLoopback(const Endpoint& endpoint) {
  if (endpoint.storage.ss_family == AF_INET) {
    const auto* four = reinterpret_cast<const sockaddr_in*>(&endpoint.storage);
    return ntohl(four->sin_addr.s_addr) >> 24 == 127;
  }
  const auto* six = reinterpret_cast<const sockaddr_in6*>(&endpoint.storage);
  return endpoint.storage.ss_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&six->sin6_addr);
}

/// The system's error number, 0 if `socket` listens.
int TryListen(const Endpoint& at, bool both_families, Socket* socket) {
  *socket = NewSocket(at.storage.ss_family);
  if (!*socket) return errno;
  SetOption(*socket, SOL_SOCKET, SO_REUSEADDR, 1);
  if (at.storage.ss_family == AF_INET6) {
    SetOption(*socket, IPPROTO_IPV6, IPV6_V6ONLY, both_families ? 0 : 1);
  }
  if (bind(socket->fd(), at.address(), at.size) != 0) return errno;
  return listen(socket->fd(), SOMAXCONN) == 0 ? 0 : errno;
}

void RequirePort(const Address& address, int least) {
  if (address.port >= least && address.port <= 65535) return;
  throw Error(address.Text() + ": a port is a number from " + std::to_string(least) + " to 65535");
}

}  // namespace

std::string Address::Text() const {
  const std::string name = host.find(':') == std::string::npos ? host : "[" + host + "]";
  return name + ":" + std::to_string(port);
}

bool IsLoopback(const std::string& host) {
  if (host == "localhost") return true;
  if (host.empty()) return false;  // Every interface.
  const Resolved numeric = Ask(host, 0, AI_NUMERICHOST);
  return numeric.error == 0 && IsLoopback(numeric.endpoints.front());
}

Socket Listen(const Address& at) {
  RequirePort(at, 0);
  Resolved resolved = Resolve(at, Clock::now() + milliseconds(10'000));
  if (resolved.error != 0) {
    throw Error("cannot listen at " + at.Text() + ": " + resolved.Reason());
  }
  bool every = at.host.empty();
  // Many systems give their own host name an address that only they can reach (Debian: 127.0.1.1).
  // A process that is told to listen at a name is meant to be reached by others.
  const bool numeric = Ask(at.host, at.port, AI_NUMERICHOST).error == 0;
  if (!numeric && at.host != "localhost" &&
      std::all_of(resolved.endpoints.begin(), resolved.endpoints.end(),
                  [](const Endpoint& endpoint) { return IsLoopback(endpoint); })) {
    every = true;
  }
  if (every) {
    resolved = Ask("", at.port, AI_PASSIVE);
    // One of IPv6 serves both families.
    std::stable_partition(
        resolved.endpoints.begin(), resolved.endpoints.end(),
        [](const Endpoint& endpoint) { return endpoint.storage.ss_family == AF_INET6; });
  }
  int error = EADDRNOTAVAIL;
  for (const Endpoint& endpoint : resolved.endpoints) {
    Socket socket;
    error = TryListen(endpoint, every, &socket);
    if (error == 0) return socket;
    if (error == EADDRINUSE) break;
  }
  const std::string place = "cannot listen at " + at.Text() + ": ";
  if (error == EADDRINUSE) {
    throw Error(place + "port " + std::to_string(at.port) +
                " is taken (address already in use): by an older job that still runs, perhaps; end "
                "it, or set another MASTER_PORT");
  }
  if (error == EADDRNOTAVAIL) {
    throw Error(place + "no address of this machine; rank 0 must be started on the machine that " +
                "MASTER_ADDR names");
  }
  if (error == EACCES) {
    throw Error(place + "the system does not allow it; set a MASTER_PORT of 1024 or more");
  }
  throw Error(place + std::strerror(error));
}

Socket Accept(const Socket& listener) {
  while (true) {
    Socket socket(accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket) {
      SetOption(socket, IPPROTO_TCP, TCP_NODELAY, 1);
      socket.HideFromChildren();
      return socket;
    }
    // Someone who has left before being let in leaves one of several errors (accept(2)): on to the
    // next.
    switch (errno) {
      case EAGAIN:
        return {};
      case EMFILE:
      case ENFILE:
      case ENOBUFS:
      case ENOMEM:
      case EBADF:
      case EINVAL:
      case ENOTSOCK:
        throw Error(std::string("cannot accept a connection: ") + std::strerror(errno) +
                    (errno == EMFILE ? "; raise the limit of open files (ulimit -n)" : ""));
      default:
        break;
    }
  }
}

Address LocalAddress(const Socket& socket) {
  Endpoint endpoint;
  if (getsockname(socket.fd(), endpoint.address(), &endpoint.size) != 0) {
    throw Error(std::string("no address of a socket: ") + std::strerror(errno));
  }
  return AddressOf(endpoint);
}

Address PeerAddress(const Socket& socket) {
  Endpoint endpoint;
  if (getpeername(socket.fd(), endpoint.address(), &endpoint.size) != 0) {
    throw Error(std::string("no address of the other side: ") + std::strerror(errno));
  }
  return AddressOf(endpoint);
}

std::optional<uint32_t> PeerUser(const Socket& socket) {
  // sock_diag(7): the system's record of the connection from the other side's view.
  struct {
    nlmsghdr head{};
    inet_diag_req_v2 body{};
  } request;
  Endpoint here, there;
  if (getsockname(socket.fd(), here.address(), &here.size) != 0) return std::nullopt;
  if (getpeername(socket.fd(), there.address(), &there.size) != 0) return std::nullopt;
  const auto put = [](const Endpoint& endpoint, __be16* port, __be32* address) {
    if (endpoint.storage.ss_family == AF_INET) {
      const auto& in = reinterpret_cast<const sockaddr_in&>(endpoint.storage);
      *port = in.sin_port;
      std::memcpy(address, &in.sin_addr, sizeof in.sin_addr);
    } else {
      const auto& in = reinterpret_cast<const sockaddr_in6&>(endpoint.storage);
      *port = in.sin6_port;
      std::memcpy(address, &in.sin6_addr, sizeof in.sin6_addr);
    }
  };
  put(there, &request.body.id.idiag_sport, request.body.id.idiag_src);
  put(here, &request.body.id.idiag_dport, request.body.id.idiag_dst);
  request.body.id.idiag_cookie[0] = request.body.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  request.body.sdiag_family = static_cast<__u8>(here.storage.ss_family);
  request.body.sdiag_protocol = IPPROTO_TCP;
  request.body.idiag_states = UINT32_MAX;
  request.head = {.nlmsg_len = sizeof request,
                  .nlmsg_type = SOCK_DIAG_BY_FAMILY,
                  .nlmsg_flags = NLM_F_REQUEST,
                  .nlmsg_seq = 1,
                  .nlmsg_pid = 0};
  struct {
    nlmsghdr head{};
    inet_diag_msg body{};
    char attributes[4096];
  } answer;
  const Socket system(::socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  if (!system) return std::nullopt;
  ssize_t asked = -1;
  do asked = send(system.fd(), &request, sizeof request, 0);
  while (asked < 0 && errno == EINTR);
  if (asked != sizeof request) return std::nullopt;
  ssize_t got = -1;
  do got = recv(system.fd(), &answer, sizeof answer, 0);
  while (got < 0 && errno == EINTR);
  constexpr auto kLeast = static_cast<ssize_t>(sizeof answer.head + sizeof answer.body);
  if (got < kLeast || answer.head.nlmsg_type != SOCK_DIAG_BY_FAMILY) return std::nullopt;
  // Closed by that side, it is nobody's any more.
  const int state = answer.body.idiag_state;
  if (state != TCP_ESTABLISHED && state != TCP_CLOSE_WAIT) return std::nullopt;
  return answer.body.idiag_uid;
}

Socket Connect(const Address& to, Clock::time_point deadline) {
  RequirePort(to, 1);
  // Long enough for a lost packet or two, short enough to try a host's other addresses.
  // The last attempt, too, has the time in which this machine says that nobody listens there.
  constexpr milliseconds kAttempt{5'000}, kLeast{300}, kPause{50}, kLookUpPause{500};
  std::string reason;
  do {
    const Resolved resolved = Resolve(to, deadline);
    // A cluster may come to know the name of a machine that has just started.
    if (resolved.error != 0) reason = resolved.Reason();
    for (const Endpoint& endpoint : resolved.endpoints) {
      Socket socket;
      const Clock::time_point now = Clock::now();
      const Clock::time_point end = std::max(std::min(deadline, now + kAttempt), now + kLeast);
      const int error = TryConnect(endpoint, end, &socket);
      if (error == 0) {
        socket.HideFromChildren();
        return socket;
      }
      reason = std::strerror(error);
    }
    const milliseconds pause = resolved.error != 0 ? kLookUpPause : kPause;
    std::this_thread::sleep_until(std::min(deadline, Clock::now() + pause));
  } while (Clock::now() < deadline);
  throw Error("cannot connect to " + to.Text() + ": " + reason);
}

}  // namespace contraflow
