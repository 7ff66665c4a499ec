// Who sends writes a label and keeps its bytes. Who receives answers the oldest label of the
// channel, now or when it comes, and only then the bytes go; so none of them ever waits in the
// memory of the receiver, and a message that nobody takes does not hold up those behind it.
//
// One mutex guards all. It is held during system calls, which never wait: so once Abort has
// returned, nobody touches the memory of the caller any more.

#include "runtime/tcp_wire.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "compiler/error.h"
#include "runtime/tcp_link.h"

namespace contraflow {
namespace {

/// Messages of one process that nobody has received yet: more than any plan has under way.
constexpr size_t kMaxArrived = size_t{1} << 20;
constexpr std::chrono::milliseconds kPause{20};
/// How long the last bytes may take to leave.
constexpr std::chrono::milliseconds kFlush{2'000};

/// The operations there are.
constexpr int kOps = 0
#define CF_OP(name, operands, work) +1
    CF_OPS(CF_OP)
#undef CF_OP
    ;

Label LabelOf(const Frame& frame) {
  Label label;
  label.instruction.op = static_cast<Op>(frame.op);
  label.instruction.stage = frame.stage;
  label.instruction.microbatch = frame.microbatch;
  label.instruction.layer = static_cast<int16_t>(frame.layer);
  label.part = frame.part;
  label.bytes = frame.bytes;
  return label;
}

/// A thread that leaves signals to others.
std::thread StartQuietly(const std::function<void()>& serve) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread thread(serve);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return thread;
  } catch (const std::system_error& error) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw Error("cannot start a thread for the connections of this process: " +
                error.code().message());
  }
}

}  // namespace

struct TcpWire::State {
  /// A send or receive under way, or a label that came before its receive.
  struct Entry {
    enum class Kind { kFree, kSend, kReceive, kArrived };
    Kind kind = Kind::kFree;
    bool matched = false, done = false;
    int process = 0;   // at the other end
    int theirs = 0;    // of a label: the ticket of its send
    int next = -1;     // in its queue
    size_t moved = 0;  // bytes received
    std::span<const std::byte> out;
    std::span<std::byte> in;
    Label label;
    Clock::time_point begun;
  };

  /// What was begun on one channel and not met yet: all receives or all labels that came.
  struct Queue {
    int first = -1, last = -1;
  };

  /// Another process.
  struct Peer : TcpLink::User {
    Peer(State& the_state, int the_process, Socket socket)
        : state(the_state), process(the_process), link(std::move(socket), *this) {}

    void OnFrame(const Frame& frame) override { state.Take(*this, frame); }
    std::span<std::byte> Room(const Frame& frame) override { return state.Room(*this, frame); }
    void OnBytes(int receiver, size_t count) override { state.Fill(receiver, count); }
    void OnSent(int sender) override { state.Finish(state.At(sender)); }

    State& state;
    const int process;
    TcpLink link;
    std::optional<std::string> lost;  // why
    Queue queues[kChannels];
    size_t arrived = 0;  // labels in them
  };

  State(int the_self, std::vector<Socket> connections, std::function<std::string(int)> the_name)
      : self(the_self), name(std::move(the_name)), wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!wake) throw Error("no eventfd: " + std::generic_category().message(errno));
    for (size_t p = 0; p < connections.size(); ++p) {
      CF_ASSERT((static_cast<int>(p) == self) == !connections[p]);
      peers.push_back(connections[p] ? std::make_unique<Peer>(*this, static_cast<int>(p),
                                                              std::move(connections[p]))
                                     : nullptr);
    }
    thread = StartQuietly([this] { Serve(); });
  }

  ~State() {
    {
      const std::lock_guard lock(mutex);
      closing = Clock::now() + kFlush;
    }
    WakeThread();
    thread.join();
  }

  Entry& At(int ticket) { return entries[static_cast<size_t>(ticket)]; }

  Peer& PeerAt(int process) {
    CF_ASSERT(process >= 0 && process != self && static_cast<size_t>(process) < peers.size());
    return *peers[static_cast<size_t>(process)];
  }

  int New(Entry::Kind kind, int process) {
    if (free < 0) {
      free = static_cast<int>(entries.size());
      entries.emplace_back();
    }
    const int ticket = free;
    Entry& entry = At(ticket);
    free = entry.next;
    entry = {};
    entry.kind = kind;
    entry.process = process;
    return ticket;
  }

  void Free(int ticket) {
    At(ticket) = {};
    At(ticket).next = free;
    free = ticket;
  }

  void Append(Queue* queue, int ticket) {
    (queue->first < 0 ? queue->first : At(queue->last).next) = ticket;
    queue->last = ticket;
  }

  int PopFirst(Queue* queue) {
    const int ticket = queue->first;
    queue->first = At(ticket).next;
    return ticket;
  }

  void Change() {
    ++changes;
    changed.notify_all();
  }

  void Finish(Entry& entry) {
    entry.done = true;
    Change();
  }

  void Lose(Peer& peer, const std::string& why) {
    if (peer.lost) return;
    peer.lost = why;
    peer.link.Shutdown();
    Change();
  }

  void RequireConnected(const Entry& entry) const {
    const Peer& peer = *peers[static_cast<size_t>(entry.process)];
    if (!peer.lost || entry.done) return;
    const std::string who = name ? name(peer.process) : "process " + std::to_string(peer.process);
    throw Error("lost the connection to " + who + ": " + *peer.lost);
  }

  /// Throws if nothing more can come of something under way.
  void RequireHope() const {
    if (aborted) throw Aborted();
    if (std::none_of(peers.begin(), peers.end(), [](const auto& p) { return p && p->lost; })) {
      return;
    }
    for (const Entry& entry : entries) {
      if (entry.kind == Entry::Kind::kSend || entry.kind == Entry::Kind::kReceive) {
        RequireConnected(entry);
      }
    }
  }

  /// A label and its receive have met.
  void Match(Peer& peer, int ticket, const Label& label, int theirs, Clock::time_point begun) {
    Entry& receive = At(ticket);
    receive.label = label;
    receive.begun = begun;
    receive.matched = true;
    Frame answer;
    answer.kind = label.bytes == receive.in.size() ? Frame::kReady : Frame::kRefuse;
    answer.sender = theirs;
    answer.receiver = ticket;
    peer.link.Put(answer);
    if (answer.kind == Frame::kRefuse || label.bytes == 0) Finish(receive);
  }

  void Take(Peer& peer, const Frame& frame) {
    if (frame.kind == Frame::kLabel) return TakeLabel(peer, frame);
    if (frame.kind != Frame::kReady && frame.kind != Frame::kRefuse) {
      throw Error("it sent a frame of an unknown kind");
    }
    if (!Knows(peer, frame.sender, Entry::Kind::kSend) || At(frame.sender).matched) {
      throw Error("it answered a message that was not sent");
    }
    Entry& send = At(frame.sender);
    send.matched = true;
    if (frame.kind == Frame::kRefuse || send.out.empty()) return Finish(send);
    peer.link.PutBytes(frame.sender, frame.receiver, send.out);
  }

  void TakeLabel(Peer& peer, const Frame& frame) {
    if (frame.channel >= kChannels || frame.op >= kOps || frame.layer < INT16_MIN ||
        frame.layer > INT16_MAX) {
      throw Error("it sent a message with an unknown label");
    }
    Queue& queue = peer.queues[frame.channel];
    if (queue.first >= 0 && At(queue.first).kind == Entry::Kind::kReceive) {
      return Match(peer, PopFirst(&queue), LabelOf(frame), frame.sender, Clock::now());
    }
    if (peer.arrived == kMaxArrived) {
      throw Error("it sent more than " + std::to_string(kMaxArrived) +
                  " messages that nobody received yet");
    }
    ++peer.arrived;
    const int ticket = New(Entry::Kind::kArrived, peer.process);
    Entry& label = At(ticket);
    label.label = LabelOf(frame);
    label.theirs = frame.sender;
    label.begun = Clock::now();
    Append(&queue, ticket);
  }

  std::span<std::byte> Room(const Peer& peer, const Frame& frame) {
    if (!Knows(peer, frame.receiver, Entry::Kind::kReceive)) {
      throw Error("it sent bytes that nobody receives");
    }
    const Entry& receive = At(frame.receiver);
    if (!receive.matched || frame.bytes == 0 || frame.bytes > receive.in.size() - receive.moved) {
      throw Error("it sent other bytes than it announced");
    }
    return receive.in.subspan(receive.moved, static_cast<size_t>(frame.bytes));
  }

  /// Whether a ticket that a process names is one of those under way with it.
  bool Knows(const Peer& peer, int ticket, Entry::Kind kind) const {
    if (ticket < 0 || static_cast<size_t>(ticket) >= entries.size()) return false;
    const Entry& entry = entries[static_cast<size_t>(ticket)];
    return entry.kind == kind && entry.process == peer.process && !entry.done;
  }

  void Fill(int ticket, size_t count) {
    Entry& receive = At(ticket);
    receive.moved += count;
    if (receive.moved == receive.in.size()) Finish(receive);
  }

  /// Writes at once what can be; the thread writes the rest.
  void Write(Peer& peer) {
    if (peer.lost || aborted || !peer.link.writes()) return;
    try {
      peer.link.Write();
    } catch (const Error& error) {
      Lose(peer, error.what());
    }
    if (peer.link.writes()) WakeThread();
  }

  void WakeThread() const {
    const uint64_t one = 1;
    // Full means that it is awake.
    [[maybe_unused]] const ssize_t count = write(wake.fd(), &one, sizeof(one));
  }

  void Serve() {
    std::vector<pollfd> polled(peers.size() + 1);
    for (;;) {
      int wait = -1;
      {
        const std::lock_guard lock(mutex);
        bool writes = false;
        for (size_t p = 0; p < peers.size(); ++p) {
          const bool live = peers[p] && !peers[p]->lost && !aborted;
          const bool out = live && peers[p]->link.writes();
          writes = writes || out;
          polled[p] = {live ? peers[p]->link.fd() : -1,
                       static_cast<int16_t>(out ? POLLIN | POLLOUT : POLLIN), 0};
        }
        if (closing) {
          const auto left =
              std::chrono::ceil<std::chrono::milliseconds>(*closing - Clock::now()).count();
          if (!writes || left <= 0) return;
          wait = static_cast<int>(left);
        }
      }
      polled.back() = {wake.fd(), POLLIN, 0};
      if (poll(polled.data(), static_cast<nfds_t>(polled.size()), wait) <= 0) continue;
      if (polled.back().revents != 0) {
        uint64_t count = 0;
        [[maybe_unused]] const ssize_t got = read(wake.fd(), &count, sizeof(count));
      }
      for (size_t p = 0; p < peers.size(); ++p) {
        if (polled[p].revents != 0) Serve(*peers[p], (polled[p].revents & ~POLLOUT) != 0);
      }
    }
  }

  /// A bit of the work with one process, then it is the turn of another.
  void Serve(Peer& peer, bool reads) {
    const std::lock_guard lock(mutex);
    if (peer.lost || aborted) return;
    try {
      if (reads) peer.link.Read();
      if (peer.link.writes()) peer.link.Write();
    } catch (const Error& error) {
      Lose(peer, error.what());
    }
  }

  const int self;
  const std::function<std::string(int)> name;
  const Socket wake;  // an eventfd: ends the poll of the thread
  std::mutex mutex;   // guards all that follows
  std::condition_variable changed;
  uint64_t changes = 0, seen = 0;  // how often something was done; when the caller last paused
  bool aborted = false;
  std::optional<Clock::time_point> closing;  // the end of the thread
  std::vector<Entry> entries;                // by ticket
  int free = -1;                             // the first of those that are free
  std::vector<std::unique_ptr<Peer>> peers;  // by process; none for itself
  std::thread thread;
};

TcpWire::TcpWire(int self, std::vector<Socket> connections, std::function<std::string(int)> name)
    : state_(std::make_unique<State>(self, std::move(connections), std::move(name))) {}

TcpWire::~TcpWire() = default;

int TcpWire::processes() const { return static_cast<int>(state_->peers.size()); }

int TcpWire::self() const { return state_->self; }

int TcpWire::Send(Channel channel, int to, const Label& label, std::span<const std::byte> bytes,
                  bool) {
  State& state = *state_;
  const std::lock_guard lock(state.mutex);
  State::Peer& peer = state.PeerAt(to);
  const int ticket = state.New(State::Entry::Kind::kSend, to);
  state.At(ticket).out = bytes;
  Frame frame;
  frame.kind = Frame::kLabel;
  frame.channel = static_cast<uint8_t>(channel);
  frame.op = static_cast<uint8_t>(label.instruction.op);
  frame.sender = ticket;
  frame.stage = label.instruction.stage;
  frame.microbatch = label.instruction.microbatch;
  frame.layer = label.instruction.layer;
  frame.part = label.part;
  frame.bytes = bytes.size();
  peer.link.Put(frame);
  state.Write(peer);
  return ticket;
}

int TcpWire::Receive(Channel channel, int from, std::span<std::byte> bytes) {
  State& state = *state_;
  const std::lock_guard lock(state.mutex);
  State::Peer& peer = state.PeerAt(from);
  const int ticket = state.New(State::Entry::Kind::kReceive, from);
  state.At(ticket).in = bytes;
  State::Queue& queue = peer.queues[static_cast<size_t>(channel)];
  if (queue.first < 0 || state.At(queue.first).kind == State::Entry::Kind::kReceive) {
    state.Append(&queue, ticket);
    return ticket;
  }
  const int arrived = state.PopFirst(&queue);
  const State::Entry label = state.At(arrived);
  state.Free(arrived);
  --peer.arrived;
  state.Match(peer, ticket, label.label, label.theirs, label.begun);
  state.Write(peer);
  return ticket;
}

Wire::Status TcpWire::Test(int ticket) {
  State& state = *state_;
  const std::lock_guard lock(state.mutex);
  if (state.aborted) throw Aborted();
  CF_ASSERT(ticket >= 0 && static_cast<size_t>(ticket) < state.entries.size());
  const State::Entry& entry = state.At(ticket);
  CF_ASSERT(entry.kind == State::Entry::Kind::kSend || entry.kind == State::Entry::Kind::kReceive);
  state.RequireConnected(entry);
  if (!entry.done) return {};
  const Status status = {true, entry.label, entry.begun};
  state.Free(ticket);
  return status;
}

void TcpWire::Poll() {
  const std::lock_guard lock(state_->mutex);
  state_->RequireHope();
}

void TcpWire::Pause() {
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  state.RequireHope();
  // What was done since the last pause the caller may have missed.
  state.changed.wait_for(lock, kPause,
                         [&] { return state.changes != state.seen || state.aborted; });
  state.seen = state.changes;
  state.RequireHope();
}

void TcpWire::Abort() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->aborted = true;
    state_->Change();
  }
  state_->WakeThread();
}

}  // namespace contraflow
