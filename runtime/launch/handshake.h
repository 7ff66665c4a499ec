#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/digest.h"
#include "runtime/transport/socket.h"

// What two processes of a job say to each other while they meet (runtime/README.md). All numbers
// travel as 32 bits, the lowest byte first.

namespace contraflow {

/// What a connection is for: to come to the meeting (and then to rank 0's watch), to rank 1's
/// watch, or for messages.
enum class Purpose : uint32_t { kMeet, kWatch, kMesh };

/// What a process says of itself when it connects to another.
struct Claim {
  Purpose purpose = Purpose::kMeet;
  int from = 0, to = 0, size = 1;
  int port = 0;       ///< where it listens itself
  bool mesh = false;  ///< it wants connections for messages
};

constexpr size_t kMagicBytes = 8, kNonceBytes = 32, kProofBytes = 32;
constexpr size_t kHelloBytes = kMagicBytes + 7 * 4 + kNonceBytes;
constexpr size_t kChallengeBytes = kMagicBytes + 3 * 4 + kNonceBytes + kProofBytes;

/// The first words of the side that connects, with a nonce of its own.
std::string WriteHello(const Claim& claim);
/// Why the bytes (of a hello, or the first so many of one) are none, or "". `claim` is set if it is
/// whole; nothing in it is proven yet, but its numbers are in range.
std::string ReadHello(std::string_view bytes, Claim* claim);
/// Whether it is a whole hello, but of another version of the protocol.
bool IsOtherVersion(std::string_view bytes);

/// The answer of the side that was connected to, rank `rank` of `size`: it proves that it knows the
/// secret, and sends a nonce of its own.
std::string WriteChallenge(std::string_view secret, std::string_view hello, int rank, int size);
/// The same to one that speaks another version of the protocol: who reads it learns which.
std::string WriteVersion();
/// Throws Error, which says what is wrong with who answers (without its address), and what to do.
/// `bytes` may be only the magic, to know early.
void ReadChallenge(std::string_view secret, std::string_view hello, std::string_view bytes);

/// The proof of the side that connects.
std::string WriteProof(std::string_view secret, std::string_view hello, std::string_view challenge);
bool ProofHolds(std::string_view secret, std::string_view hello, std::string_view challenge,
                std::string_view proof);

/// What is said once both are proven.
enum class Word : uint32_t {
  kConnected,  ///< to who connects: this connection stands
  kRoster,     ///< from rank 0: all have come, and listen there
  kReady,      ///< to rank 0: all connections of this process stand
  kGo,         ///< from rank 0: those of all
  kFailed,     ///< the meeting is over: the reason
};
std::string WriteFrame(Word word, std::string_view payload = {});

/// A roster's payload. Reading throws Error unless it is one of so many processes.
std::string WriteRoster(const std::vector<Address>& roster);
std::vector<Address> ReadRoster(std::string_view payload, int size);

/// What a peer wrote as it may be shown on a terminal: what could steer one becomes a question
/// mark.
std::string PlainText(std::string_view text);

/// Collects exactly so many bytes of a connection, not one more, as they come.
class Inbox {
 public:
  explicit Inbox(size_t want) : want_(want) {}

  /// Takes what is there; never waits. False if the connection is closed or broken.
  bool Fill(const Socket& socket);
  bool full() const { return bytes_.size() == want_; }
  const std::string& bytes() const { return bytes_; }
  /// From now on it wants so many in all.
  void Want(size_t bytes) { want_ = bytes; }

 private:
  size_t want_;
  std::string bytes_;
};

/// The frames of a connection, one by one.
class FrameInbox {
 public:
  /// Takes what is there, up to the end of a frame; true if one is whole, in word() and payload().
  /// Throws Error if the connection is closed or what comes is no frame.
  bool Fill(const Socket& socket);
  Word word() const { return word_; }
  const std::string& payload() const { return payload_; }

 private:
  static constexpr size_t kHead = 8;

  Inbox inbox_{kHead};
  Word word_ = Word::kFailed;
  std::string payload_;
};

}  // namespace contraflow
