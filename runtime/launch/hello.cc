// Both sides send random bytes and then the HMAC of all that was said, with the secret as key: each
// knows that the other has the secret and speaks now. Without a secret the key is empty, and the
// user of each side is asked of the system.

#include "runtime/launch/hello.h"

#include <algorithm>
#include <array>
#include <random>
#include <span>
#include <utility>

#include "compiler/plan/error.h"
#include "compiler/plan/text.h"
#include "runtime/core/bytes.h"
#include "runtime/core/digest.h"
#include "runtime/core/seconds.h"

namespace contraflow {
namespace {

constexpr std::chrono::milliseconds kFarewell{400};
constexpr size_t kMostSaid = 1 << 20;  // bytes of a frame
using Magic = std::array<char, 8>;
constexpr Magic kMagic = {'C', 'F', 'M', 'E', 'E', 'T', '\r', '\n'};
constexpr uint32_t kVersion = 4;

using Nonce = std::array<uint32_t, 8>;

/// The first words of the side that connects. Version and all before it never change.
struct Hello {
  Magic magic = kMagic;
  uint32_t version = kVersion;
  Claim claim;
  Digest job{};
  Nonce nonce{};
};
static_assert(sizeof(Hello) == 8 + 4 * 4 + 32 + 32);
/// The first words of the other side.
struct Answer {
  Magic magic = kMagic;
  Nonce nonce{};
};

std::span<std::byte> BytesOf(auto& value) { return std::as_writable_bytes(std::span(&value, 1)); }

Nonce NewNonce() {
  std::random_device random;
  Nonce nonce;
  for (uint32_t& word : nonce) word = random();
  return nonce;
}

enum class Side : char { kConnects = 'c', kAccepts = 'a' };

Digest ProofOf(Side side, const std::string& secret, const Hello& hello, const Answer& answer) {
  return HmacSha256(secret, ByteWriter().Put(side).Put(hello).Put(answer).Take());
}

std::string Saying(const Claim& claim) { return "says it is rank " + std::to_string(claim.from); }

}  // namespace

std::string ForeignUser(const std::optional<uint32_t>& user) {
  return std::string(user ? "belongs to another user" : "does not show its user") +
         ", and this job has no secret";
}

void SendWord(Socket* stream, Word word, std::string_view text, Clock::time_point deadline) {
  const std::string bytes =
      ByteWriter().Put(word).Put(static_cast<uint32_t>(text.size())).Take() + std::string(text);
  stream->WriteAll(std::as_bytes(std::span(bytes)), deadline);
}

WordFrame ReceiveWord(Socket* stream, Clock::time_point deadline) {
  std::array<uint32_t, 2> head{};
  stream->ReadAll(BytesOf(head), deadline);
  if (head[0] > static_cast<uint32_t>(Word::kStatus) || head[1] > kMostSaid) {
    throw Error("sent something unexpected");
  }
  WordFrame said{static_cast<Word>(head[0]), ""};
  // Grows with the bytes that come, and no further.
  while (said.text.size() < head[1]) {
    std::array<std::byte, 4096> piece;
    const size_t count = std::min(piece.size(), head[1] - said.text.size());
    stream->ReadAll(std::span(piece).first(count), deadline);
    said.text.append(reinterpret_cast<const char*>(piece.data()), count);
  }
  const bool ends = said.word == Word::kFailed || said.word == Word::kLost;
  if (ends && said.text.empty()) throw Error("sent something unexpected");
  return said;
}

void SendAndClose(std::span<Socket> streams, Word word, std::string_view text) {
  const Clock::time_point deadline = Clock::now() + kFarewell;
  for (Socket& stream : streams) {
    try {
      SendWord(&stream, word, text, Clock::now());
      stream.EndSending();
    } catch (const Error&) {
      stream = Socket();
    }
  }
  for (Socket& stream : streams) {
    try {
      std::array<std::byte, 4096> piece;
      while (stream && Clock::now() < deadline && AwaitReady(stream, false, deadline)) {
        stream.Read(piece);
      }
    } catch (const Error&) {
      continue;  // it has closed
    }
  }
}

Socket Handshake(Socket stream, const Claim& claim, const MeetingPoint& point,
                 const std::string& whom, Clock::time_point deadline) {
  WordFrame said;
  try {
    Hello hello;
    hello.claim = claim;
    hello.job = Sha256(point.job);
    hello.nonce = NewNonce();
    stream.WriteAll(BytesOf(hello), deadline);
    Answer answer;
    const std::span<std::byte> bytes = BytesOf(answer);
    stream.ReadAll(bytes.first(kMagic.size()), deadline);
    if (answer.magic != kMagic) throw Error("another program");
    stream.ReadAll(bytes.subspan(kMagic.size()), deadline);
    Digest proof = ProofOf(Side::kConnects, point.secret, hello, answer);
    stream.WriteAll(BytesOf(proof), deadline);
    stream.ReadAll(BytesOf(proof), deadline);
    if (!SameSecretly(proof, ProofOf(Side::kAccepts, point.secret, hello, answer))) {
      throw Error("another secret");
    }
    said = ReceiveWord(&stream, deadline);
  } catch (const Socket::Closed&) {
    return {};
  } catch (const Error& error) {
    if (std::string_view(error.what()) == "timed out") {
      throw Error("what answers as " + whom + " did not answer within " +
                  SecondsText(point.timeout) +
                  ": it is stopped, or another program uses the port; end it, or set another "
                  "MASTER_PORT");
    }
    throw Error("what answers as " + whom +
                " does not know the secret of this job, or is another program; give all processes "
                "the same secret, or set another MASTER_PORT");
  }
  if (said.word == Word::kFailed) throw RefusedError(PlainText(said.text));
  const auto user = point.user ? PeerUser(stream) : point.user;
  if (user != point.user) {
    throw Error("what answers as " + whom + " " + ForeignUser(user) +
                "; set another MASTER_PORT, or give all processes the same CONTRAFLOW_SECRET");
  }
  if (said.word != Word::kWelcome) {
    throw Error("what answers as " + whom + " is not rank 0 of this job");
  }
  return stream;
}

Claim Authenticate(Socket* stream, const MeetingPoint& point, Clock::time_point deadline) {
  Hello hello;
  const std::span<std::byte> bytes = BytesOf(hello);
  stream->ReadAll(bytes.first(kMagic.size()), deadline);
  if (hello.magic != kMagic) throw Error("does not speak this protocol");
  stream->ReadAll(bytes.subspan(kMagic.size()), deadline);
  Answer answer;
  answer.nonce = NewNonce();
  stream->WriteAll(BytesOf(answer), deadline);
  Digest proof;
  stream->ReadAll(BytesOf(proof), deadline);
  if (!SameSecretly(proof, ProofOf(Side::kConnects, point.secret, hello, answer))) {
    // Sends zeros in place of a proof, so that the other side does not retry.
    proof = {};
    stream->WriteAll(BytesOf(proof), deadline);
    throw Error("does not know the secret of this job");
  }
  proof = ProofOf(Side::kAccepts, point.secret, hello, answer);
  stream->WriteAll(BytesOf(proof), deadline);
  if (hello.version != kVersion) {
    throw RefusedError("one side speaks version " + std::to_string(hello.version) +
                       " of the protocol, the other version " + std::to_string(kVersion) +
                       "; start the same program everywhere");
  }
  const Claim& claim = hello.claim;
  const bool asks = claim.purpose == Purpose::kAsk;
  const bool sane = claim.purpose <= Purpose::kAsk && claim.from >= 0 && claim.size > 0 &&
                    (asks || claim.from < claim.size);
  if (!sane) throw Error("sent something unexpected");
  if (!point.job.empty() && !asks && hello.job != Sha256(point.job)) {
    throw RefusedError(Saying(claim) + ", but belongs to another job; set another MASTER_PORT");
  }
  return claim;
}

}  // namespace contraflow
