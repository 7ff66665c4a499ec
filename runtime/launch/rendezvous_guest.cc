// A process other than rank 0 comes to the host, learns from it where the others listen, connects
// to those with lower ranks and is connected to by those with higher ones. One loop, which never
// waits for any one connection.

#include <algorithm>
#include <thread>
#include <utility>

#include "compiler/plan/error.h"
#include "runtime/launch/handshake.h"
#include "runtime/launch/peer.h"

namespace contraflow {
namespace {

constexpr std::chrono::milliseconds kAgain{100};  // before another attempt

/// A call to another guest, made again where it is closed too early.
struct Errand {
  Purpose purpose;
  int to;
  std::optional<Call> call;
  Clock::time_point again{};  // when to call, if there is none
};

class GuestVisit {
 public:
  explicit GuestVisit(const MeetingPoint& point) : side_(point) {}

  Membership Run() {
    Come();
    try {
      while (!Step()) {
      }
    } catch (const ToldError&) {
      throw;
    } catch (const MeetingOver&) {
      throw;
    } catch (const Error& error) {
      Part(&host_, WriteFrame(Word::kFailed, error.what()));
      throw;
    }
    side_.members.watch[0] = std::move(host_);
    return std::move(side_.members);
  }

 private:
  Claim ClaimFor(Purpose purpose, int to) const {
    const MeetingPoint& point = side_.point;
    const int port = LocalAddress(side_.acceptor->listener()).port;
    return {purpose, point.rank, to, point.size, port, point.mesh};
  }

  std::string HostName() const { return "rank 0 at " + side_.point.address.Text(); }

  /// Comes to the host, again and again while it is not there.
  void Come() {
    bool closed = false;
    do {
      Socket socket;
      try {
        socket = Connect(side_.point.address, side_.deadline);
      } catch (const Error& error) {
        throw Error(std::string(error.what()) + ", for " + Seconds(side_.point.timeout) +
                    "; rank 0 must run there and be reachable: check MASTER_ADDR, MASTER_PORT and "
                    "firewalls");
      }
      ListenBeside(socket);
      Call call(std::move(socket), ClaimFor(Purpose::kMeet, 0), side_.point.secret, HostName(),
                side_.point.user);
      if (Finish(&call)) return;
      closed = true;
      std::this_thread::sleep_until(std::min(side_.deadline, Clock::now() + kAgain));
    } while (Clock::now() < side_.deadline);
    CF_ASSERT(closed);
    throw Error("what answers as " + HostName() +
                " closes every connection silently: another program may use the port; set another "
                "MASTER_PORT");
  }

  /// Whether the call stands; not if it was closed.
  bool Finish(Call* call) {
    while (true) {
      call->Ask(&side_.readiness);
      side_.Wait();
      const Call::State state = call->Serve(side_.readiness);
      if (state == Call::State::kClosed) return false;
      if (state == Call::State::kStands) {
        host_ = call->Take();
        return true;
      }
      if (Clock::now() < side_.deadline) continue;
      throw Error("what answers as " + HostName() + " did not answer within " +
                  Seconds(side_.point.timeout) +
                  ": it is stopped, or another program uses the port; end it, or set another "
                  "MASTER_PORT");
    }
  }

  /// Listens for the others where this process can be reached by them: at the interface that leads
  /// to the host. Who comes to the host by a name but over the loopback is on its machine, and
  /// others may come from elsewhere (Listen).
  void ListenBeside(const Socket& socket) {
    Address at = LocalAddress(socket);
    at.port = 0;
    const std::string& host = side_.point.address.host;
    if (IsLoopback(at.host) && !IsLoopback(host)) at.host.clear();
    side_.acceptor.emplace(Listen(at), side_.point.secret, side_.point.rank, side_.point.size,
                           side_.point.user);
  }

  /// Whether the host lets all go.
  bool Step() {
    side_.readiness.Add(host_);
    side_.acceptor->Ask(&side_.readiness);
    for (const Errand& errand : errands_) {
      if (errand.call) errand.call->Ask(&side_.readiness);
    }
    side_.Wait();
    for (Peer& peer : side_.acceptor->Serve(side_.readiness)) side_.TakeIn(&peer);
    if (side_.readiness.Has(host_) && Hear()) return true;
    std::erase_if(errands_, [&](Errand& errand) { return Go(&errand); });
    if (!said_ready_ && HasAllConnections()) {
      said_ready_ = true;
      TrySend(host_, WriteFrame(Word::kReady));  // Where it cannot, Hear finds out why.
    }
    RequireTime();
    return false;
  }

  /// Whether the errand is done.
  bool Go(Errand* errand) {
    const Address& there = side_.members.roster[static_cast<size_t>(errand->to)];
    const std::string whom = "rank " + std::to_string(errand->to) + " at " + there.Text();
    if (!errand->call) {
      if (Clock::now() < errand->again) return false;
      try {
        errand->call.emplace(BeginConnect(there), ClaimFor(errand->purpose, errand->to),
                             side_.point.secret, whom, side_.point.user);
      } catch (const Error& error) {
        throw Error(Name() + " cannot connect to " + whom + ": " + error.what());
      }
      return false;
    }
    Call::State state;
    try {
      state = errand->call->Serve(side_.readiness);
    } catch (const Error& error) {
      throw Error(Name() + ": " + error.what());
    }
    if (state == Call::State::kClosed) {
      errand->call.reset();
      errand->again = Clock::now() + kAgain;
    }
    if (state != Call::State::kStands) return false;
    const bool watch = errand->purpose == Purpose::kWatch;
    std::vector<Socket>& sockets = watch ? side_.members.watch : side_.members.mesh;
    sockets[static_cast<size_t>(errand->to)] = errand->call->Take();
    return true;
  }

  std::string Name() const { return "rank " + std::to_string(side_.point.rank); }

  /// Whether the host lets all go.
  bool Hear() {
    try {
      if (!frames_.Fill(host_)) return false;
    } catch (const Error& error) {
      throw ToldError(HostName() + " " + error.what() +
                      " before all processes of the job had met; see its output");
    }
    const Word word = frames_.word();
    if (word == Word::kFailed) throw MeetingOver(frames_.payload());
    if (word == Word::kGo && said_ready_) return true;
    if (word != Word::kRoster || has_roster_) {
      throw Error(HostName() + " sent something unexpected");
    }
    has_roster_ = true;
    side_.members.roster = ReadRoster(frames_.payload(), side_.point.size);
    if (side_.point.rank > 1) errands_.push_back({Purpose::kWatch, 1, {}});
    if (!side_.point.mesh) return false;
    for (int to = 0; to < side_.point.rank; ++to) errands_.push_back({Purpose::kMesh, to, {}});
    return false;
  }

  bool HasAllConnections() const {
    if (!has_roster_ || !errands_.empty()) return false;
    return side_.HasAll(side_.members.mesh, 0) &&
           (side_.point.rank != 1 || side_.HasAll(side_.members.watch, 2));
  }

  void RequireTime() const {
    const Clock::time_point now = Clock::now();
    const std::string within = " within " + Seconds(side_.point.timeout);
    if (!errands_.empty() && now >= side_.deadline) {
      const int to = errands_.front().to;
      throw Error(Name() + " could not connect" + within + " to rank " + std::to_string(to) +
                  " at " + side_.members.roster[static_cast<size_t>(to)].Text() +
                  "; can the machines reach each other at all ports?");
    }
    if (now < side_.deadline + kGuestGrace) return;
    throw Error(HostName() + " did not say" + within + " that all processes of the job have met");
  }

  MeetingSide side_;
  Socket host_;
  FrameInbox frames_;
  bool has_roster_ = false, said_ready_ = false;
  std::vector<Errand> errands_;
};

}  // namespace

Membership VisitMeeting(const MeetingPoint& point) { return GuestVisit(point).Run(); }

}  // namespace contraflow
