// Every proof is over both nonces and all that both sides have said before it, and begins with who
// gives it: it is good for this connection, direction, purpose and pair of processes and for
// nothing else.

#include "runtime/launch/handshake.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "compiler/plan/error.h"

namespace contraflow {
namespace {

constexpr std::string_view kMagic("CFMEET\r\n", kMagicBytes);
constexpr uint32_t kVersion = 1;
constexpr int kMaxProcesses = 1 << 20;
constexpr size_t kMaxPayload = size_t{1} << 26;  // a roster of the largest job
constexpr size_t kMaxHost = 255;

void Put(std::string* bytes, uint32_t value) {
  for (int shift = 0; shift < 32; shift += 8) *bytes += static_cast<char>(value >> shift & 255);
}

void Put(std::string* bytes, int value) { Put(bytes, static_cast<uint32_t>(value)); }

uint32_t Take(std::string_view* bytes) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) {
    value |= static_cast<uint32_t>(static_cast<unsigned char>((*bytes)[i])) << (8 * i);
  }
  bytes->remove_prefix(4);
  return value;
}

std::string Text(const Digest& digest) { return {digest.begin(), digest.end()}; }

bool SameText(const Digest& digest, std::string_view text) {
  Digest other;
  if (text.size() != other.size()) return false;
  std::copy(text.begin(), text.end(), reinterpret_cast<char*>(other.data()));
  return SameDigest(digest, other);
}

Digest ServerProof(std::string_view secret, std::string_view hello, std::string_view head) {
  return Hmac(secret, "server" + std::string(hello) + std::string(head));
}

Digest ClientProof(std::string_view secret, std::string_view hello, std::string_view challenge) {
  return Hmac(secret, "client" + std::string(hello) + std::string(challenge));
}

std::string OtherVersion(uint32_t version) {
  return "speaks version " + std::to_string(version) + " of the protocol, not " +
         std::to_string(kVersion);
}

}  // namespace

std::string WriteHello(const Claim& claim) {
  std::string hello(kMagic);
  Put(&hello, kVersion);
  Put(&hello, static_cast<uint32_t>(claim.purpose));
  for (const int number : {claim.from, claim.to, claim.size, claim.port, claim.mesh ? 1 : 0}) {
    Put(&hello, number);
  }
  return hello + RandomBytes(kNonceBytes);
}

std::string ReadHello(std::string_view bytes, Claim* claim) {
  if (bytes.substr(0, kMagicBytes) != kMagic.substr(0, bytes.size())) {
    return "does not speak this protocol";
  }
  if (bytes.size() < kHelloBytes) return "";
  bytes.remove_prefix(kMagicBytes);
  const uint32_t version = Take(&bytes);
  if (version != kVersion) return OtherVersion(version);
  std::array<uint32_t, 6> numbers;
  for (uint32_t& number : numbers) number = Take(&bytes);
  const auto [purpose, from, to, size, port, mesh] = numbers;
  if (purpose > static_cast<uint32_t>(Purpose::kMesh) || size < 1 || size > kMaxProcesses ||
      from >= size || to >= size || port > 65535 || mesh > 1) {
    return "makes an impossible claim";
  }
  *claim = {static_cast<Purpose>(purpose), static_cast<int>(from), static_cast<int>(to),
            static_cast<int>(size),        static_cast<int>(port), mesh == 1};
  return "";
}

bool IsOtherVersion(std::string_view bytes) {
  if (bytes.size() < kHelloBytes || bytes.substr(0, kMagicBytes) != kMagic) return false;
  bytes.remove_prefix(kMagicBytes);
  return Take(&bytes) != kVersion;
}

std::string WriteChallenge(std::string_view secret, std::string_view hello, int rank, int size) {
  std::string challenge(kMagic);
  Put(&challenge, kVersion);
  Put(&challenge, rank);
  Put(&challenge, size);
  challenge += RandomBytes(kNonceBytes);
  return challenge + Text(ServerProof(secret, hello, challenge));
}

std::string WriteVersion() {
  std::string challenge(kMagic);
  Put(&challenge, kVersion);
  return challenge + std::string(kChallengeBytes - challenge.size(), '\0');
}

void ReadChallenge(std::string_view secret, std::string_view hello, std::string_view bytes) {
  if (bytes.substr(0, kMagicBytes) != kMagic) {
    throw Error(
        "is not a contraflow rendezvous: another program uses the port; set another MASTER_PORT");
  }
  if (bytes.size() == kMagicBytes) return;
  CF_ASSERT(bytes.size() == kChallengeBytes && hello.size() == kHelloBytes);
  const std::string_view head = bytes.substr(0, kChallengeBytes - kProofBytes);
  std::string_view rest = bytes.substr(kMagicBytes);
  const uint32_t version = Take(&rest);
  if (version != kVersion) {
    throw Error(OtherVersion(version) + "; start all processes from the same build");
  }
  if (!SameText(ServerProof(secret, hello, head), bytes.substr(head.size()))) {
    throw Error(
        "does not know this job's secret: it may belong to an older job, or its secret differs; "
        "give all processes the same CONTRAFLOW_SECRET, or set another "
        "MASTER_PORT");
  }
  const uint32_t rank = Take(&rest), size = Take(&rest);
  std::string_view asked = hello.substr(kMagicBytes + 3 * 4);
  const uint32_t to = Take(&asked), own_size = Take(&asked);
  if (size != own_size) {
    throw Error("belongs to a job of " + std::to_string(size) + " processes, but this one was " +
                "started as one of " + std::to_string(own_size) +
                "; start all with the same number of processes");
  }
  if (rank != to) {
    throw Error("is rank " + std::to_string(rank) + ", not rank " + std::to_string(to) +
                "; is its port forwarded?");
  }
}

std::string WriteProof(std::string_view secret, std::string_view hello,
                       std::string_view challenge) {
  return Text(ClientProof(secret, hello, challenge));
}

bool ProofHolds(std::string_view secret, std::string_view hello, std::string_view challenge,
                std::string_view proof) {
  return SameText(ClientProof(secret, hello, challenge), proof);
}

std::string WriteFrame(Word word, std::string_view payload) {
  std::string frame;
  Put(&frame, static_cast<uint32_t>(word));
  Put(&frame, static_cast<uint32_t>(payload.size()));
  return frame + std::string(payload);
}

std::string WriteRoster(const std::vector<Address>& roster) {
  std::string payload;
  for (const Address& address : roster) {
    CF_ASSERT(address.host.size() <= kMaxHost);
    Put(&payload, address.port);
    Put(&payload, static_cast<uint32_t>(address.host.size()));
    payload += address.host;
  }
  return payload;
}

std::vector<Address> ReadRoster(std::string_view payload, int size) {
  const Error broken("rank 0 sent an invalid list of processes");
  std::vector<Address> roster;
  while (!payload.empty()) {
    if (payload.size() < 8 || roster.size() == static_cast<size_t>(size)) throw Error(broken);
    const uint32_t port = Take(&payload), host = Take(&payload);
    if (port > 65535 || host > kMaxHost || host > payload.size()) throw Error(broken);
    roster.push_back({std::string(payload.substr(0, host)), static_cast<int>(port)});
    payload.remove_prefix(host);
  }
  if (roster.size() != static_cast<size_t>(size)) throw Error(broken);
  return roster;
}

std::string PlainText(std::string_view text) {
  std::string plain(text);
  for (size_t i = 0; i < plain.size(); ++i) {
    const auto byte = static_cast<unsigned char>(plain[i]);
    const auto next = static_cast<unsigned char>(i + 1 < plain.size() ? plain[i + 1] : 0);
    // Also the controls that UTF-8 has two bytes for, U+0080 to U+009F.
    const bool control = byte == 0xC2 && next >= 0x80 && next < 0xA0;
    if (control) plain[i + 1] = '?';
    if (control || (byte < 0x20 && byte != '\n') || byte == 0x7F) plain[i] = '?';
  }
  return plain;
}

bool Inbox::Fill(const Socket& socket) {
  char piece[4096];
  while (!full()) {
    const size_t room = std::min(sizeof(piece), want_ - bytes_.size());
    const ssize_t got = recv(socket.fd(), piece, room, MSG_DONTWAIT);
    if (got > 0) {
      bytes_.append(piece, static_cast<size_t>(got));
    } else if (got < 0 && errno == EAGAIN) {
      return true;
    } else if (got == 0 || errno != EINTR) {
      return false;
    }
  }
  return true;
}

bool FrameInbox::Fill(const Socket& socket) {
  while (true) {
    const bool open = inbox_.Fill(socket);
    if (!inbox_.full()) {
      if (!open) throw Error("closed the connection");
      return false;
    }
    std::string_view rest = inbox_.bytes();
    const uint32_t word = Take(&rest), size = Take(&rest);
    if (word > static_cast<uint32_t>(Word::kFailed) || size > kMaxPayload) {
      throw Error("sent something invalid");
    }
    if (rest.size() < size) {
      inbox_.Want(kHead + size);
      continue;
    }
    word_ = static_cast<Word>(word);
    payload_ = std::string(rest);
    inbox_ = Inbox(kHead);
    return true;
  }
}

}  // namespace contraflow
