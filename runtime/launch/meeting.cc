// Rank 0 collects who has come and, when all are there, lets all go.

#include "runtime/launch/meeting.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "compiler/plan/text.h"
#include "runtime/core/seconds.h"

namespace contraflow {
namespace {

using std::chrono::milliseconds;

/// Clients leave the last word to the host for this long, since it knows more of the others. A
/// client that is cut off waits for all of it, so it suffices on a busy machine.
constexpr milliseconds kClientGrace{6'000};
constexpr milliseconds kLook{20}, kRetry{50};

Clock::time_point InASecond() { return Clock::now() + std::chrono::seconds(1); }

/// `rank 3`, `ranks 1, 4-7`; ascending.
std::string RankNames(const std::vector<int>& ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
    if (end - i > 1) text += (end - i > 2 ? "-" : ", ") + std::to_string(ranks[end - 1]);
    i = end;
  }
  return (ranks.size() == 1 ? "rank " : "ranks ") + text;
}

class Host {
 public:
  explicit Host(const MeetingPoint& point)
      : point_(point),
        deadline_(Clock::now() + point.timeout),
        listener_(std::make_unique<Listener>(point)),
        here_(listener_->address()),
        clients_(static_cast<size_t>(point.size)) {
    const bool every = here_.host == "::" || here_.host == "0.0.0.0";
    if (every) here_.host = point.address.host;
    if (point.ready) point.ready(here_);
  }

  Membership Run() {
    try {
      while (!Missing().empty()) Step();
      for (size_t rank = 1; rank < clients_.size(); ++rank) {
        SendWord(&clients_[rank].stream, Word::kGo, "", InASecond());
      }
    } catch (const Error& error) {
      std::vector<Socket> streams;
      for (Client& client : clients_) {
        if (client.stream) streams.push_back(std::move(client.stream));
      }
      while (auto peer = listener_->Next(Clock::now())) {
        streams.push_back(std::move(peer->stream));
      }
      const bool lost = dynamic_cast<const MeetingLost*>(&error) != nullptr;
      SendAndClose(streams, lost ? Word::kLost : Word::kFailed, error.what());
      throw;
    }
    Membership members{0, point_.size, {}, std::move(listener_)};
    for (Client& client : clients_) members.links.push_back(std::move(client.stream));
    return members;
  }

 private:
  struct Client {
    Socket stream;
    Address from;
  };

  void Step() {
    if (auto peer = listener_->Next(std::min(deadline_, Clock::now() + kLook))) {
      do Welcome(&*peer);
      while ((peer = listener_->Next(Clock::now())));
    }
    for (size_t rank = 1; rank < clients_.size(); ++rank) {
      const Socket& stream = clients_[rank].stream;
      if (stream && AwaitReady(stream, false, Clock::now())) ReceiveFrom(rank);
    }
    if (Clock::now() >= deadline_ && !Missing().empty()) GiveUp();
  }

  void Welcome(Listener::Peer* peer) {
    Client& client = clients_[static_cast<size_t>(peer->claim.from)];
    if (client.stream) {
      const std::string text = "two processes claim to be rank " +
                               std::to_string(peer->claim.from) + ": one comes from " +
                               client.from.Text() + ", the other from " + peer->from.Text() +
                               "; give every process its own number (RANK, or what the "
                               "launcher sets)";
      SendAndClose({&peer->stream, 1}, Word::kFailed, text);
      throw Error(text);
    }
    client = {std::move(peer->stream), peer->from};
  }

  /// A client has nothing to say before all have come: it has left, or gives up.
  void ReceiveFrom(size_t rank) {
    Client& client = clients_[rank];
    const std::string name = "rank " + std::to_string(rank) + " (" + client.from.Text() + ") ";
    WordFrame said;
    try {
      said = ReceiveWord(&client.stream, InASecond());
    } catch (const Socket::Closed&) {
      client.stream = Socket();
      throw MeetingLost(name + "left before all processes of the job had met; see its output");
    } catch (const Error& error) {
      throw Error(name + error.what());
    }
    if (said.word == Word::kFailed) throw Error(PlainText(said.text));
    throw Error(name + "sent something unexpected");
  }

  std::vector<int> Missing() const {
    std::vector<int> ranks;
    for (size_t rank = 1; rank < clients_.size(); ++rank) {
      if (!clients_[rank].stream) ranks.push_back(static_cast<int>(rank));
    }
    return ranks;
  }

  [[noreturn]] void GiveUp() {
    const std::string refused = listener_->Refused();
    throw Error(RankNames(Missing()) + " of " + std::to_string(point_.size) +
                " did not reach rank 0 at " + here_.Text() + " within " +
                SecondsText(point_.timeout) +
                (refused.empty() ? "" : "; refused meanwhile: " + refused) +
                "; were they started, with the same MASTER_ADDR, MASTER_PORT and secret?");
  }

  const MeetingPoint& point_;
  const Clock::time_point deadline_;
  std::unique_ptr<Listener> listener_;
  Address here_;
  std::vector<Client> clients_;  // by rank, without 0
};

class MeetingClient {
 public:
  explicit MeetingClient(const MeetingPoint& point)
      : point_(point), deadline_(Clock::now() + point.timeout) {
    members_.rank = point.rank;
    members_.size = point.size;
    members_.links.resize(static_cast<size_t>(point.size));
  }

  Membership Run() {
    Come();
    AwaitGo();
    return std::move(members_);
  }

 private:
  std::string HostName() const { return "rank 0 at " + point_.address.Text(); }
  Socket& host() { return members_.links.front(); }

  /// Comes to the host, again and again while it is not there.
  void Come() {
    bool answered = false;
    do {
      Socket socket;
      try {
        socket = Connect(point_.address, deadline_);
      } catch (const Error& error) {
        // It may have given up a moment before: its earlier behaviour tells more.
        if (answered) break;
        throw Error(std::string(error.what()) + ", for " + SecondsText(point_.timeout) +
                    "; rank 0 must run there and be reachable: check MASTER_ADDR, MASTER_PORT and "
                    "firewalls");
      }
      try {
        host() = Handshake(std::move(socket), {Purpose::kMeet, point_.rank, point_.size}, point_,
                           HostName(), deadline_);
      } catch (const RefusedError&) {
        throw;
      } catch (const Error&) {
        if (answered && Clock::now() >= deadline_) break;  // as above
        throw;
      }
      if (host()) return;
      answered = true;
      std::this_thread::sleep_until(std::min(deadline_, Clock::now() + kRetry));
    } while (Clock::now() < deadline_);
    throw Error("what answers as " + HostName() +
                " closes every connection silently: it has another secret, or another program uses "
                "the port; give all processes the same secret, or set another MASTER_PORT");
  }

  void AwaitGo() {
    WordFrame said;
    try {
      said = ReceiveWord(&host(), deadline_ + kClientGrace);
    } catch (const Socket::Closed&) {
      throw MeetingLost(HostName() +
                        " left before all processes of the job had met; see its output");
    } catch (const Error& error) {
      const std::string text = HostName() + " did not say within " + SecondsText(point_.timeout) +
                               " that all processes of the job have met";
      SendAndClose({&host(), 1}, Word::kFailed, text);
      throw Error(text);
    }
    if (said.word == Word::kFailed || said.word == Word::kLost) {
      throw MeetingOver(PlainText(said.text), said.word == Word::kLost);
    }
    if (said.word != Word::kGo) throw Error(HostName() + " sent something unexpected");
  }

  const MeetingPoint& point_;
  const Clock::time_point deadline_;
  Membership members_;
};

}  // namespace

Membership Meet(const MeetingPoint& point) {
  CF_ASSERT(point.size >= 1 && point.rank >= 0 && point.rank < point.size);
  if (point.size > 1) return point.rank == 0 ? Host(point).Run() : MeetingClient(point).Run();
  Membership alone;
  alone.links.resize(1);
  return alone;
}

std::string AskJob(const MeetingPoint& point) {
  const Clock::time_point deadline = Clock::now() + point.timeout;
  const std::string whom = "rank 0 at " + point.address.Text();
  Socket stream =
      Handshake(Connect(point.address, deadline), {Purpose::kAsk, 0, 1}, point, whom, deadline);
  if (!stream) throw Error("what answers as " + whom + " closes the connection: no job runs there");
  const WordFrame said = ReceiveWord(&stream, deadline);
  if (said.word != Word::kStatus) throw Error(whom + " sent something unexpected");
  return PlainText(said.text);
}

}  // namespace contraflow
