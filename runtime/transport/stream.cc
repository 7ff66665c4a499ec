#include "runtime/transport/stream.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <limits>
#include <new>
#include <string_view>

#include "compiler/plan/error.h"
#include "runtime/core/digest.h"

namespace contraflow {
namespace {

constexpr std::string_view kIdentity = "contraflow";
/// TLS_AES_128_GCM_SHA256.
constexpr unsigned char kCipher[] = {0x13, 0x01};

/// The session that both sides know from the start; null where memory is short. The key is kept
/// beside the connection.
SSL_SESSION* KnownSession(SSL* tls) {
  const auto* key = static_cast<const Digest*>(SSL_get_app_data(tls));
  SSL_SESSION* session = SSL_SESSION_new();
  const SSL_CIPHER* cipher = SSL_CIPHER_find(tls, kCipher);
  if (session != nullptr && cipher != nullptr &&
      SSL_SESSION_set1_master_key(session, key->data(), key->size()) == 1 &&
      SSL_SESSION_set_cipher(session, cipher) == 1 &&
      SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1) {
    return session;
  }
  SSL_SESSION_free(session);
  return nullptr;
}

int OfferKey(SSL* tls, const EVP_MD* digest, const unsigned char** identity, size_t* size,
             SSL_SESSION** session) {
  *session = nullptr;
  // A second hello may ask for another digest than that of our cipher.
  if (digest != nullptr && EVP_MD_get_type(digest) != NID_sha256) return 1;
  *session = KnownSession(tls);
  *identity = reinterpret_cast<const unsigned char*>(kIdentity.data());
  *size = kIdentity.size();
  return *session != nullptr ? 1 : 0;
}

int FindKey(SSL* tls, const unsigned char* identity, size_t size, SSL_SESSION** session) {
  const bool known = size == kIdentity.size() && std::memcmp(identity, kIdentity.data(), size) == 0;
  *session = known ? KnownSession(tls) : nullptr;
  return !known || *session != nullptr ? 1 : 0;
}

bool Later(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

/// One for all connections; never freed, as they may outlive everything.
SSL_CTX* Context() {
  static SSL_CTX* const context = [] {
    // OpenSSL writes to sockets in a way that raises it where the other side is gone.
    struct sigaction action {};
    sigaction(SIGPIPE, nullptr, &action);
    if (action.sa_handler == SIG_DFL) std::signal(SIGPIPE, SIG_IGN);
    // As in Sha256: when the process ends a thread may be at a connection.
    OPENSSL_init_ssl(OPENSSL_INIT_NO_ATEXIT, nullptr);
    SSL_CTX* made = SSL_CTX_new(TLS_method());
    if (made == nullptr || SSL_CTX_set_min_proto_version(made, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_ciphersuites(made, "TLS_AES_128_GCM_SHA256") != 1) {
      throw Error(
          "OpenSSL has no TLS 1.3 for the connections between processes; it needs 1.1.1 or "
          "newer, with TLS_AES_128_GCM_SHA256");
    }
    SSL_CTX_set_options(made, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
    SSL_CTX_set_num_tickets(made, 0);
    SSL_CTX_set_session_cache_mode(made, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_mode(made, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                               SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_psk_use_session_callback(made, OfferKey);
    SSL_CTX_set_psk_find_session_callback(made, FindKey);
    return made;
  }();
  return context;
}

Stream::Closed Ended(int error) {
  // Whether bytes were left that nobody read is no matter.
  if (error == ECONNRESET || error == EPIPE) error = 0;
  return Stream::Closed(error == 0 ? "it was closed at the other end" : std::strerror(error));
}

/// What a call of OpenSSL that did not succeed means: 0 for later.
size_t Explain(SSL* tls, int result) {
  const int system = errno;
  const int why = SSL_get_error(tls, result);
  const bool end = ERR_GET_REASON(ERR_peek_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING;
  ERR_clear_error();
  if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE) return 0;
  if (why == SSL_ERROR_SSL && !end) throw Error("what came does not show the secret of this job");
  throw Ended(why == SSL_ERROR_SYSCALL ? system : 0);
}

int Size(size_t count) {
  return static_cast<int>(std::min<size_t>(count, std::numeric_limits<int>::max()));
}

}  // namespace

void Stream::Free::operator()(ssl_st* tls) const {
  delete static_cast<const Digest*>(SSL_get_app_data(tls));
  SSL_free(tls);
}

Stream Stream::Connect(Socket socket, const std::string& secret, Clock::time_point deadline) {
  return Secure(std::move(socket), secret, true, deadline);
}

Stream Stream::Accept(Socket socket, const std::string& secret, Clock::time_point deadline) {
  return Secure(std::move(socket), secret, false, deadline);
}

Stream Stream::Secure(Socket socket, const std::string& secret, bool connects,
                      Clock::time_point deadline) {
  Stream stream(std::move(socket));
  if (secret.empty()) return stream;
  stream.tls_.reset(SSL_new(Context()));
  if (!stream.tls_) throw std::bad_alloc();
  SSL* const tls = stream.tls_.get();
  if (SSL_set_fd(tls, stream.fd()) != 1) throw std::bad_alloc();
  // A server that shows a certificate instead of knowing the key is refused: none is trusted. Ours
  // have none to show.
  SSL_set_verify(tls, connects ? SSL_VERIFY_PEER : SSL_VERIFY_NONE, nullptr);
  SSL_set_app_data(tls, new Digest(Sha256("contraflow " + secret)));
  for (;;) {
    ERR_clear_error();
    const int result = connects ? SSL_connect(tls) : SSL_accept(tls);
    if (result == 1) break;
    Explain(tls, result);
    if (!stream.Await(SSL_want_write(tls), deadline)) throw Error("timed out");
  }
  if (SSL_session_reused(tls) != 1) throw Error("what came does not show the secret of this job");
  return stream;
}

bool Stream::buffered() const {
  // Of a record that has not come whole nothing can be read yet.
  return tls_ && SSL_pending(tls_.get()) > 0;
}

void Stream::EndSending() {
  if (tls_) SSL_shutdown(tls_.get());
  ERR_clear_error();
  (void)shutdown(fd(), SHUT_WR);
}

size_t Stream::Read(std::span<std::byte> room) {
  if (tls_) {
    ERR_clear_error();
    const int result = SSL_read(tls_.get(), room.data(), Size(room.size()));
    return result > 0 ? static_cast<size_t>(result) : Explain(tls_.get(), result);
  }
  const ssize_t count = recv(fd(), room.data(), room.size(), MSG_DONTWAIT);
  if (count > 0) return static_cast<size_t>(count);
  if (count < 0 && Later(errno)) return 0;
  throw Ended(count == 0 ? 0 : errno);
}

size_t Stream::Write(std::span<const std::byte> bytes, bool more) {
  if (tls_) {
    ERR_clear_error();
    const int result = SSL_write(tls_.get(), bytes.data(), Size(bytes.size()));
    return result > 0 ? static_cast<size_t>(result) : Explain(tls_.get(), result);
  }
  const int flags = MSG_NOSIGNAL | MSG_DONTWAIT | (more ? MSG_MORE : 0);
  const ssize_t count = send(fd(), bytes.data(), bytes.size(), flags);
  if (count >= 0) return static_cast<size_t>(count);
  if (Later(errno)) return 0;
  throw Ended(errno);
}

bool Stream::Await(bool to_write, Clock::time_point deadline) const {
  return AwaitReady(socket_, to_write, deadline);
}

void Stream::ReadAll(std::span<std::byte> room, Clock::time_point deadline) {
  while (!room.empty()) {
    const size_t count = Read(room);
    room = room.subspan(count);
    if (count == 0 && !Await(false, deadline)) throw Error("timed out");
  }
}

void Stream::WriteAll(std::span<const std::byte> bytes, Clock::time_point deadline) {
  while (!bytes.empty()) {
    const size_t count = Write(bytes);
    bytes = bytes.subspan(count);
    if (count == 0 && !Await(true, deadline)) throw Error("timed out");
  }
}

}  // namespace contraflow
