// Who sends writes a label and keeps its bytes. Who receives answers the oldest label of the
// channel, now or when it comes, and only then the bytes go; so none of them ever waits in the
// memory of the receiver, and a message that nobody takes does not hold up those behind it.

#include "runtime/transport/tcp_traffic.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "compiler/plan/error.h"

namespace contraflow {
namespace {

/// Of a message, before another one has its turn: long enough that a system call does not count.
constexpr size_t kChunk = size_t{256} << 10;
/// Read at once where frames are expected: many of those, but little of a chunk, which is copied.
constexpr size_t kReadAhead = 50 * sizeof(Frame);

bool Later(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

/// How a connection ended. Whether bytes were left that nobody read is no matter.
TcpLink::Closed Broken(int error) {
  if (error == ECONNRESET || error == EPIPE) error = 0;
  return TcpLink::Closed(error == 0 ? "it was closed at the other end"
                                    : std::generic_category().message(error));
}

}  // namespace

TcpLink::TcpLink(Socket socket, User& user)
    : socket_(std::move(socket)), user_(user), read_(kReadAhead) {}

void TcpLink::Put(const Frame& frame) {
  const auto bytes = std::as_bytes(std::span(&frame, 1));
  frames_.insert(frames_.end(), bytes.begin(), bytes.end());
}

void TcpLink::PutBytes(int sender, int receiver, std::span<const std::byte> bytes) {
  messages_.push_back({sender, receiver, bytes});
}

bool TcpLink::writes() const {
  return written_ < writing_.size() || !chunk_.empty() || !frames_.empty() || !messages_.empty();
}

void TcpLink::Write() {
  if (written_ == writing_.size() && chunk_.empty()) {
    // Frames first: they are short, and others wait for them.
    writing_.clear();
    written_ = 0;
    writing_.swap(frames_);
    if (!messages_.empty()) {
      Message& message = messages_.front();
      chunk_ = message.rest.first(std::min(kChunk, message.rest.size()));
      message.rest = message.rest.subspan(chunk_.size());
      Frame frame;
      frame.kind = Frame::kBytes;
      frame.receiver = message.receiver;
      frame.bytes = chunk_.size();
      const auto bytes = std::as_bytes(std::span(&frame, 1));
      writing_.insert(writing_.end(), bytes.begin(), bytes.end());
    }
  }
  if (written_ == writing_.size() && chunk_.empty()) return;
  iovec parts[2] = {{writing_.data() + written_, writing_.size() - written_},
                    // Only read, whatever the type says.
                    {const_cast<std::byte*>(chunk_.data()), chunk_.size()}};
  msghdr header{};
  header.msg_iov = parts;
  header.msg_iovlen = 2;
  const ssize_t count = sendmsg(socket_.fd(), &header, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (count < 0) {
    if (Later(errno)) return;
    throw Broken(errno);
  }
  const size_t of_frames = std::min(static_cast<size_t>(count), writing_.size() - written_);
  const size_t of_chunk = static_cast<size_t>(count) - of_frames;
  written_ += of_frames;
  if (of_chunk == 0) return;
  chunk_ = chunk_.subspan(of_chunk);
  if (!chunk_.empty()) return;
  const Message message = messages_.front();
  messages_.pop_front();
  if (message.rest.empty()) {
    user_.OnSent(message.sender);
  } else {
    messages_.push_back(message);
  }
}

void TcpLink::Read() {
  const bool to_room = !room_.empty();
  std::byte* const to = to_room ? room_.data() : read_.data() + end_;
  const size_t most = to_room ? room_.size() : read_.size() - end_;
  const ssize_t count = recv(socket_.fd(), to, most, MSG_DONTWAIT);
  if (count == 0) throw Broken(0);
  if (count < 0) {
    if (Later(errno)) return;
    throw Broken(errno);
  }
  if (to_room) {
    room_ = room_.subspan(static_cast<size_t>(count));
    user_.OnBytes(receiver_, static_cast<size_t>(count));
  } else {
    end_ += static_cast<size_t>(count);
    Parse();
  }
}

/// Takes frames, and bytes between them, out of what was read ahead.
void TcpLink::Parse() {
  while (end_ - begin_ >= sizeof(Frame)) {
    Frame frame;
    std::memcpy(&frame, read_.data() + begin_, sizeof(Frame));
    begin_ += sizeof(Frame);
    if (frame.kind != Frame::kBytes) {
      user_.OnFrame(frame);
      continue;
    }
    room_ = user_.Room(frame);
    CF_ASSERT(room_.size() == frame.bytes);
    receiver_ = frame.receiver;
    const size_t count = std::min(room_.size(), end_ - begin_);
    if (count == 0) continue;
    std::memcpy(room_.data(), read_.data() + begin_, count);
    begin_ += count;
    room_ = room_.subspan(count);
    user_.OnBytes(receiver_, count);
  }
  // An incomplete frame stays, at the front.
  std::copy(read_.begin() + static_cast<std::ptrdiff_t>(begin_),
            read_.begin() + static_cast<std::ptrdiff_t>(end_), read_.begin());
  end_ -= begin_;
  begin_ = 0;
}

namespace {

/// Messages of one process that nobody has received yet: more than any plan has under way.
constexpr size_t kMaxArrived = size_t{1} << 18;

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

}  // namespace

TcpTraffic::Peer::Peer(TcpTraffic& the_traffic, int the_process, Socket socket)
    : traffic(the_traffic), process(the_process), link(std::move(socket), *this) {}

TcpTraffic::TcpTraffic(int self, std::vector<Socket> connections,
                       std::function<std::string(int)> name, std::chrono::milliseconds grace)
    : self_(self), name_(std::move(name)), grace_(grace) {
  for (size_t p = 0; p < connections.size(); ++p) {
    const auto process = static_cast<int>(p);
    CF_ASSERT((process == self) == !connections[p]);
    peers_.push_back(process == self
                         ? nullptr
                         : std::make_unique<Peer>(*this, process, std::move(connections[p])));
  }
}

int TcpTraffic::Send(Wire::Channel channel, int to, const Label& label,
                     std::span<const std::byte> bytes) {
  Peer& peer = PeerAt(to);
  const int ticket = New(Entry::Kind::kSend, to);
  At(ticket).out = bytes;
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
  if (!peer.lost) peer.link.Put(frame);
  return ticket;
}

int TcpTraffic::Receive(Wire::Channel channel, int from, std::span<std::byte> bytes) {
  Peer& peer = PeerAt(from);
  const int ticket = New(Entry::Kind::kReceive, from);
  At(ticket).in = bytes;
  Queue& queue = peer.queues[static_cast<size_t>(channel)];
  if (queue.first < 0 || At(queue.first).kind == Entry::Kind::kReceive) {
    Append(&queue, ticket);
    return ticket;
  }
  const int arrived = PopFirst(&queue);
  const Entry label = At(arrived);
  Free(arrived);
  --peer.arrived;
  Match(&peer, ticket, label.label, label.theirs, label.begun);
  return ticket;
}

Wire::Status TcpTraffic::Test(int ticket) {
  CF_ASSERT(ticket >= 0 && static_cast<size_t>(ticket) < entries_.size());
  const Entry& entry = At(ticket);
  CF_ASSERT(entry.kind == Entry::Kind::kSend || entry.kind == Entry::Kind::kReceive);
  RequireConnected(entry);
  if (!entry.done) return {};
  const Wire::Status status = {true, entry.label, entry.begun};
  Free(ticket);
  return status;
}

void TcpTraffic::RequireHope() const {
  if (lost_ == 0) return;
  for (const Entry& entry : entries_) {
    if (entry.kind == Entry::Kind::kSend || entry.kind == Entry::Kind::kReceive) {
      RequireConnected(entry);
    }
  }
}

int TcpTraffic::fd(int process) const {
  const auto& peer = peers_[static_cast<size_t>(process)];
  return peer && !peer->lost ? peer->link.fd() : -1;
}

bool TcpTraffic::writes(int process) const {
  return fd(process) >= 0 && peers_[static_cast<size_t>(process)]->link.writes();
}

void TcpTraffic::Serve(int process, bool reads) {
  Peer& peer = PeerAt(process);
  if (peer.lost) return;
  try {
    if (reads) peer.link.Read();
    if (peer.link.writes()) peer.link.Write();
  } catch (const TcpLink::Closed& error) {
    Lose(&peer, error.what(), grace_);
  } catch (const Error& error) {
    Lose(&peer, error.what(), {});
  }
}

TcpTraffic::Peer& TcpTraffic::PeerAt(int process) {
  CF_ASSERT(process >= 0 && process != self_ && process < processes());
  return *peers_[static_cast<size_t>(process)];
}

int TcpTraffic::New(Entry::Kind kind, int process) {
  if (free_ < 0) {
    free_ = static_cast<int>(entries_.size());
    entries_.emplace_back();
  }
  const int ticket = free_;
  Entry& entry = At(ticket);
  free_ = entry.next;
  entry = {};
  entry.kind = kind;
  entry.process = process;
  return ticket;
}

void TcpTraffic::Free(int ticket) {
  At(ticket) = {};
  At(ticket).next = free_;
  free_ = ticket;
}

void TcpTraffic::Append(Queue* queue, int ticket) {
  (queue->first < 0 ? queue->first : At(queue->last).next) = ticket;
  queue->last = ticket;
}

int TcpTraffic::PopFirst(Queue* queue) {
  const int ticket = queue->first;
  queue->first = At(ticket).next;
  return ticket;
}

void TcpTraffic::Finish(Entry* entry) {
  entry->done = true;
  ++changes_;
}

void TcpTraffic::Lose(Peer* peer, const std::string& why, std::chrono::milliseconds grace) {
  peer->lost = why;
  peer->told = Clock::now() + grace;
  // The other side may not know what this one saw.
  peer->link.Shutdown();
  ++lost_;
  ++changes_;
}

void TcpTraffic::RequireConnected(const Entry& entry) const {
  const Peer& peer = *peers_[static_cast<size_t>(entry.process)];
  if (!peer.lost || entry.done || Clock::now() < peer.told) return;
  const std::string who = name_ ? name_(peer.process) : "process " + std::to_string(peer.process);
  throw Error("lost the connection to " + who + ": " + *peer.lost);
}

/// A label and its receive have met.
void TcpTraffic::Match(Peer* peer, int ticket, const Label& label, int theirs,
                       Clock::time_point begun) {
  Entry& receive = At(ticket);
  receive.label = label;
  receive.begun = begun;
  receive.matched = true;
  Frame answer;
  answer.kind = label.bytes == receive.in.size() ? Frame::kReady : Frame::kRefuse;
  answer.sender = theirs;
  answer.receiver = ticket;
  peer->link.Put(answer);
  if (answer.kind == Frame::kRefuse || label.bytes == 0) Finish(&receive);
}

void TcpTraffic::Take(Peer* peer, const Frame& frame) {
  if (frame.kind == Frame::kLabel) return TakeLabel(peer, frame);
  if (frame.kind != Frame::kReady && frame.kind != Frame::kRefuse) {
    throw Error("it sent a frame of an unknown kind");
  }
  if (!Knows(*peer, frame.sender, Entry::Kind::kSend) || At(frame.sender).matched) {
    throw Error("it answered a message that was not sent");
  }
  Entry& send = At(frame.sender);
  send.matched = true;
  if (frame.kind == Frame::kRefuse || send.out.empty()) return Finish(&send);
  peer->link.PutBytes(frame.sender, frame.receiver, send.out);
}

void TcpTraffic::TakeLabel(Peer* peer, const Frame& frame) {
  if (frame.channel >= Wire::kChannels || frame.op >= kOpCount || frame.layer < INT16_MIN ||
      frame.layer > INT16_MAX) {
    throw Error("it sent a message with an unknown label");
  }
  Queue& queue = peer->queues[frame.channel];
  if (queue.first >= 0 && At(queue.first).kind == Entry::Kind::kReceive) {
    return Match(peer, PopFirst(&queue), LabelOf(frame), frame.sender, Clock::now());
  }
  if (peer->arrived == kMaxArrived) {
    throw Error("it sent more than " + std::to_string(kMaxArrived) +
                " messages that nobody received yet");
  }
  ++peer->arrived;
  const int ticket = New(Entry::Kind::kArrived, peer->process);
  Entry& label = At(ticket);
  label.label = LabelOf(frame);
  label.theirs = frame.sender;
  label.begun = Clock::now();
  Append(&queue, ticket);
}

std::span<std::byte> TcpTraffic::Room(const Peer& peer, const Frame& frame) {
  if (!Knows(peer, frame.receiver, Entry::Kind::kReceive)) {
    throw Error("it sent bytes that nobody receives");
  }
  const Entry& receive = At(frame.receiver);
  if (!receive.matched || frame.bytes == 0 || frame.bytes > receive.in.size() - receive.moved) {
    throw Error("it sent other bytes than it announced");
  }
  return receive.in.subspan(receive.moved, static_cast<size_t>(frame.bytes));
}

void TcpTraffic::Fill(int ticket, size_t count) {
  Entry& receive = At(ticket);
  receive.moved += count;
  if (receive.moved == receive.in.size()) Finish(&receive);
}

/// Whether a ticket that a process names is one of those under way with it.
bool TcpTraffic::Knows(const Peer& peer, int ticket, Entry::Kind kind) const {
  if (ticket < 0 || static_cast<size_t>(ticket) >= entries_.size()) return false;
  const Entry& entry = entries_[static_cast<size_t>(ticket)];
  return entry.kind == kind && entry.process == peer.process && !entry.done;
}

}  // namespace contraflow
