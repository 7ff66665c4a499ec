// Rank 0 collects who has come, hands out the roster and, when every process has all of its
// connections, lets all go.

#include "runtime/launch/meeting.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <optional>
#include <thread>
#include <utility>

#include "compiler/plan/text.h"
#include "runtime/core/bytes.h"
#include "runtime/core/seconds.h"

namespace contraflow {
namespace {

using std::chrono::milliseconds;

/// How long guests leave the last word to the host, which knows more of the others; and the host to
/// a guest that knows which of its connections is missing. Only who is cut off uses them up, so
/// they are long enough for a machine that has more to do than it can.
constexpr milliseconds kGuestGrace{6'000}, kHostGrace{3'000};
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

/// What the host tells all who have come.
struct Roster {
  milliseconds left{};             // until its deadline
  std::vector<Address> processes;  // where each listens
};

std::string WriteRoster(const Roster& roster) {
  ByteWriter bytes;
  bytes.Put(static_cast<uint32_t>(std::clamp<int64_t>(roster.left.count(), 0, UINT32_MAX)));
  for (const Address& address : roster.processes) {
    bytes.PutText(address.host).Put(int32_t{address.port});
  }
  return bytes.Take();
}

Roster ReadRoster(const std::string& text, int size) {
  ByteReader bytes(text, "the list of processes is");
  Roster roster;
  roster.left = milliseconds(bytes.Take<uint32_t>());
  while (!bytes.empty()) {
    if (roster.processes.size() == static_cast<size_t>(size)) break;
    std::string host = bytes.TakeText();
    const auto port = bytes.Take<int32_t>();
    if (host.size() > 255 || port < 1 || port > 65535) throw Error("sent something unexpected");
    roster.processes.push_back({PlainLine(host), port});
  }
  if (!bytes.empty() || roster.processes.size() != static_cast<size_t>(size)) {
    throw Error("sent something unexpected");
  }
  return roster;
}

/// Whether something can be read now.
bool Speaks(const Stream& stream) {
  return stream.buffered() || AwaitReady(stream.socket(), false, Clock::now());
}

class Host {
 public:
  explicit Host(const MeetingPoint& point)
      : point_(point),
        deadline_(Clock::now() + point.timeout),
        door_(std::make_unique<Door>(point.address, point)),
        here_(door_->address()),
        guests_(static_cast<size_t>(point.size)) {
    const bool every = here_.host == "::" || here_.host == "0.0.0.0";
    if (every) here_.host = point.address.host;
    if (point.ready) point.ready(here_);
  }

  Membership Run() {
    try {
      while (!Missing().empty()) Step(deadline_);
      HandOutRoster();
      gathered_ = true;
      while (!NotReady().empty()) Step(deadline_ + kHostGrace);
      for (size_t rank = 1; rank < guests_.size(); ++rank) {
        Say(&guests_[rank].stream, Word::kGo, "", InASecond());
      }
    } catch (const Error& error) {
      std::deque<Stream> streams;
      for (Guest& guest : guests_) {
        if (guest.stream) streams.push_back(std::move(guest.stream));
      }
      while (auto visitor = door_->Next(Clock::now())) {
        streams.push_back(std::move(visitor->stream));
      }
      const bool lost = dynamic_cast<const MeetingLost*>(&error) != nullptr;
      Part(std::move(streams), lost ? Word::kLost : Word::kFailed, error.what());
      throw;
    }
    Membership members{0, point_.size, {}, std::move(door_)};
    for (Guest& guest : guests_) members.links.push_back(std::move(guest.stream));
    return members;
  }

 private:
  struct Guest {
    Stream stream;
    Address from;     // where its connection comes from
    Address listens;  // where others reach it
    bool ready = false;
  };

  void Step(Clock::time_point deadline) {
    if (auto visitor = door_->Next(std::min(deadline, Clock::now() + kLook))) {
      do Welcome(&*visitor);
      while ((visitor = door_->Next(Clock::now())));
    }
    for (size_t rank = 1; rank < guests_.size(); ++rank) {
      if (guests_[rank].stream && Speaks(guests_[rank].stream)) HearGuest(rank);
    }
    if (Clock::now() >= deadline) RequireTime();
  }

  void Welcome(Door::Visitor* visitor) {
    const Claim& claim = visitor->claim;
    const Address listens{visitor->from.host, claim.port};
    Guest& guest = guests_[static_cast<size_t>(claim.from)];
    if (guest.stream) {
      const std::string text = "two processes claim to be rank " + std::to_string(claim.from) +
                               ": one listens at " + guest.listens.Text() + ", the other at " +
                               listens.Text() +
                               "; give every process its own number (RANK, or what the "
                               "launcher sets)";
      std::deque<Stream> other;
      other.push_back(std::move(visitor->stream));
      Part(std::move(other), Word::kFailed, text);
      throw Error(text);
    }
    guest = {std::move(visitor->stream), visitor->from, listens, false};
  }

  void HearGuest(size_t rank) {
    Guest& guest = guests_[rank];
    const std::string name = "rank " + std::to_string(rank) + " (" + guest.from.Text() + ") ";
    Said said;
    try {
      said = Hear(&guest.stream, InASecond());
    } catch (const Stream::Closed&) {
      guest.stream = Stream();
      throw MeetingLost(name + "left before all processes of the job had met; see its output");
    } catch (const Error& error) {
      throw Error(name + error.what());
    }
    if (said.word == Word::kFailed) throw Error(PlainText(said.text));
    if (said.word != Word::kReady || !gathered_ || guest.ready) {
      throw Error(name + "sent something unexpected");
    }
    guest.ready = true;
  }

  template <typename IsSo>
  std::vector<int> GuestsThat(const IsSo& is_so) const {
    std::vector<int> ranks;
    for (size_t rank = 1; rank < guests_.size(); ++rank) {
      if (is_so(guests_[rank])) ranks.push_back(static_cast<int>(rank));
    }
    return ranks;
  }
  std::vector<int> Missing() const {
    return GuestsThat([](const Guest& guest) { return !guest.stream; });
  }
  std::vector<int> NotReady() const {
    return GuestsThat([](const Guest& guest) { return !guest.ready; });
  }

  void HandOutRoster() {
    // The host's address as those on other machines see it, if there are any. Those that came over
    // the loopback of this machine can be reached there too.
    std::string outside;
    for (size_t rank = 1; rank < guests_.size() && outside.empty(); ++rank) {
      const Guest& guest = guests_[rank];
      if (!IsLoopback(guest.from.host)) outside = LocalAddress(guest.stream.socket()).host;
    }
    std::vector<Address> processes(guests_.size(), here_);
    for (size_t rank = 1; rank < guests_.size(); ++rank) {
      processes[rank] = guests_[rank].listens;
      if (!outside.empty() && IsLoopback(processes[rank].host)) processes[rank].host = outside;
    }
    const auto left = std::chrono::floor<milliseconds>(deadline_ - Clock::now());
    const std::string text = WriteRoster({left, std::move(processes)});
    for (size_t rank = 1; rank < guests_.size(); ++rank) {
      try {
        Say(&guests_[rank].stream, Word::kRoster, text, InASecond());
      } catch (const Stream::Closed&) {
        continue;  // Step finds out
      }
    }
  }

  void RequireTime() {
    const std::string within = " within " + SecondsText(point_.timeout);
    if (gathered_) {
      throw Error(RankNames(NotReady()) + " of " + std::to_string(point_.size) +
                  " did not connect to the others" + within +
                  "; can the machines reach each other at all ports?");
    }
    if (Missing().empty()) return;
    const std::string refused = door_->Refused();
    throw Error(RankNames(Missing()) + " of " + std::to_string(point_.size) +
                " did not reach rank 0 at " + here_.Text() + within +
                (refused.empty() ? "" : "; refused meanwhile: " + refused) +
                "; were they started, with the same MASTER_ADDR, MASTER_PORT and secret?");
  }

  const MeetingPoint& point_;
  const Clock::time_point deadline_;
  std::unique_ptr<Door> door_;
  Address here_;
  std::vector<Guest> guests_;  // by rank, without 0
  bool gathered_ = false;      // all have come and have the roster
};

class GuestVisit {
 public:
  explicit GuestVisit(const MeetingPoint& point)
      : point_(point), deadline_(Clock::now() + point.timeout) {
    members_.rank = point.rank;
    members_.size = point.size;
    members_.links.resize(static_cast<size_t>(point.size));
  }

  Membership Run() {
    Come();
    try {
      const Roster roster = ReadRoster(Await(Word::kRoster), point_.size);
      // Who was started later than the host must not name what is missing later than the host gives
      // up.
      deadline_ = std::min(deadline_, Clock::now() + roster.left);
      for (int to = 1; to < (point_.mesh ? point_.rank : std::min(point_.rank, 2)); ++to) {
        Link(to) = Reach(to, roster.processes[static_cast<size_t>(to)]);
      }
      while (!HasAll()) TakeIn();
      Say(&Link(0), Word::kReady, "", InASecond());
      Await(Word::kGo);
    } catch (const ToldError&) {
      throw;
    } catch (const MeetingOver&) {
      throw;
    } catch (const Error& error) {
      std::deque<Stream> host;
      host.push_back(std::move(Link(0)));
      Part(std::move(host), Word::kFailed, error.what());
      throw;
    }
    return std::move(members_);
  }

 private:
  std::string Name() const { return "rank " + std::to_string(point_.rank); }
  std::string HostName() const { return "rank 0 at " + point_.address.Text(); }
  Stream& Link(int rank) { return members_.links[static_cast<size_t>(rank)]; }
  Claim ClaimFor(Purpose purpose, int to) const {
    return {purpose, point_.rank, to, point_.size, door_->address().port, point_.mesh ? 1U : 0U};
  }

  /// Comes to the host, again and again while it is not there.
  void Come() {
    bool answered = false;
    do {
      Socket socket;
      try {
        socket = Connect(point_.address, deadline_);
      } catch (const Error& error) {
        // It may have given up a moment before this one: what it did before tells more.
        if (answered) break;
        throw Error(std::string(error.what()) + ", for " + SecondsText(point_.timeout) +
                    "; rank 0 must run there and be reachable: check MASTER_ADDR, MASTER_PORT and "
                    "firewalls");
      }
      if (!door_) ListenBeside(socket);
      try {
        Link(0) =
            Greet(std::move(socket), ClaimFor(Purpose::kMeet, 0), point_, HostName(), deadline_);
      } catch (const ToldError&) {
        throw;
      } catch (const Error&) {
        if (answered && Clock::now() >= deadline_) break;  // as above
        throw;
      }
      if (Link(0)) return;
      answered = true;
      std::this_thread::sleep_until(std::min(deadline_, Clock::now() + kRetry));
    } while (Clock::now() < deadline_);
    throw Error("what answers as " + HostName() +
                " closes every connection silently: it has another secret, or another program uses "
                "the port; give all processes the same secret, or set another MASTER_PORT");
  }

  /// Listens for the others where this process can be reached by them: at the interface that leads
  /// to the host. Who comes to the host by a name but over the loopback is on its machine, and
  /// others may come from elsewhere (Listen).
  void ListenBeside(const Socket& socket) {
    Address at = LocalAddress(socket);
    at.port = 0;
    if (IsLoopback(at.host) && !IsLoopback(point_.address.host)) at.host.clear();
    door_ = std::make_unique<Door>(at, point_);
  }

  /// What the host says next.
  std::string Await(Word word) {
    Said said;
    try {
      said = Hear(&Link(0), deadline_ + kGuestGrace);
    } catch (const Stream::Closed&) {
      throw MeetingLost(HostName() +
                        " left before all processes of the job had met; see its output");
    } catch (const Error& error) {
      throw Error(HostName() + " did not say within " + SecondsText(point_.timeout) +
                  " that all processes of the job have met");
    }
    if (said.word == Word::kFailed || said.word == Word::kLost) {
      throw MeetingOver(PlainText(said.text), said.word == Word::kLost);
    }
    if (said.word != word) throw Error(HostName() + " sent something unexpected");
    return said.text;
  }

  Stream Reach(int to, const Address& there) {
    const std::string whom = "rank " + std::to_string(to) + " at " + there.Text();
    do {
      try {
        // Another process of the job may not listen any more because the meeting is over.
        const Clock::time_point soon = std::min(deadline_, Clock::now() + kRetry * 4);
        Stream stream =
            Greet(Connect(there, soon), ClaimFor(Purpose::kLink, to), point_, whom, deadline_);
        if (stream) return stream;
      } catch (const ToldError& error) {
        throw Error(Name() + ": " + error.what());
      } catch (const Error& error) {
        if (Speaks(Link(0))) Await(Word::kFailed);
        if (Clock::now() < deadline_) continue;
        throw Error(Name() + ": " + error.what() + " within " + SecondsText(point_.timeout) +
                    "; can the machines reach each other at all ports?");
      }
      std::this_thread::sleep_for(kRetry);
    } while (true);
  }

  bool HasAll() const {
    // Of those that come here: in a mesh all of higher rank, otherwise to rank 1 only.
    if (!point_.mesh && point_.rank != 1) return true;
    return std::all_of(members_.links.begin() + point_.rank + 1, members_.links.end(),
                       [](const Stream& link) { return static_cast<bool>(link); });
  }

  void TakeIn() {
    if (auto visitor = door_->Next(Clock::now() + kLook)) {
      // Nobody of the job comes twice.
      Stream& link = Link(visitor->claim.from);
      if (!link) link = std::move(visitor->stream);
    }
    if (Speaks(Link(0)) || Clock::now() >= deadline_ + kGuestGrace) Await(Word::kFailed);
  }

  const MeetingPoint& point_;
  Clock::time_point deadline_;
  Membership members_;
  std::unique_ptr<Door> door_;
};

}  // namespace

Membership Meet(const MeetingPoint& point) {
  CF_ASSERT(point.size >= 1 && point.rank >= 0 && point.rank < point.size);
  if (point.size > 1) return point.rank == 0 ? Host(point).Run() : GuestVisit(point).Run();
  Membership alone;
  alone.links.resize(1);
  return alone;
}

std::string AskJob(const MeetingPoint& point) {
  const Clock::time_point deadline = Clock::now() + point.timeout;
  const std::string whom = "rank 0 at " + point.address.Text();
  Stream stream = Greet(Connect(point.address, deadline), {Purpose::kAsk, 0, 0, 1, 0, 0}, point,
                        whom, deadline);
  if (!stream) throw Error("what answers as " + whom + " closes the connection: no job runs there");
  const Said said = Hear(&stream, deadline);
  if (said.word != Word::kStatus) throw Error(whom + " sent something unexpected");
  return PlainText(said.text);
}

}  // namespace contraflow
