#include "runtime/transport/tcp_wire.h"

#include <algorithm>
#include <utility>

#include "compiler/plan/error.h"

namespace contraflow {
namespace {

constexpr std::chrono::milliseconds kPause{20};
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

TcpWire::TcpWire(LinkSet& links, std::function<std::string(int)> name,
                 std::chrono::milliseconds grace)
    : links_(links),
      name_(std::move(name)),
      grace_(grace),
      peers_(static_cast<size_t>(links.size())) {
  const std::lock_guard lock(links_.mutex());
  links_.SetTensors(this);
}

TcpWire::~TcpWire() {
  const std::lock_guard lock(links_.mutex());
  links_.SetTensors(nullptr);
}

int TcpWire::Send(Channel channel, int to, const Label& label, std::span<const std::byte> bytes) {
  const std::lock_guard lock(links_.mutex());
  if (aborted_) throw Aborted();
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
  links_.At(to)->Put(frame);
  links_.Flush(to);
  return ticket;
}

int TcpWire::Receive(Channel channel, int from, std::span<std::byte> bytes) {
  const std::lock_guard lock(links_.mutex());
  if (aborted_) throw Aborted();
  const int ticket = New(Entry::Kind::kReceive, from);
  At(ticket).in = bytes;
  Queue& queue = PeerAt(from).queues[static_cast<size_t>(channel)];
  if (queue.first < 0 || At(queue.first).kind == Entry::Kind::kReceive) {
    Append(&queue, ticket);
    return ticket;
  }
  const int arrived = PopFirst(&queue);
  const Entry label = At(arrived);
  Free(arrived);
  --PeerAt(from).arrived;
  Match(from, ticket, label.label, label.theirs, label.begun);
  links_.Flush(from);
  return ticket;
}

Wire::Status TcpWire::Test(int ticket) {
  const std::lock_guard lock(links_.mutex());
  if (aborted_) throw Aborted();
  CF_ASSERT(ticket >= 0 && static_cast<size_t>(ticket) < entries_.size());
  const Entry& entry = At(ticket);
  CF_ASSERT(entry.kind == Entry::Kind::kSend || entry.kind == Entry::Kind::kReceive);
  RequireConnected(entry);
  if (!entry.done) return {};
  const Wire::Status status = {true, entry.label, entry.begun};
  Free(ticket);
  return status;
}

void TcpWire::Poll() {
  const std::lock_guard lock(links_.mutex());
  RequireHope();
}

void TcpWire::Pause() {
  std::unique_lock lock(links_.mutex());
  RequireHope();
  // What was done since the last pause the caller may have missed.
  links_.changed().wait_for(lock, kPause, [&] { return links_.events() != seen_ || aborted_; });
  seen_ = links_.events();
  RequireHope();
}

void TcpWire::Abort() {
  const std::lock_guard lock(links_.mutex());
  if (std::exchange(aborted_, true)) return;
  // From now on nobody touches the memory of the caller.
  links_.SetTensors(nullptr);
  links_.changed().notify_all();
}

/// Throws Error if something under way can never be done: its process is lost, and the grace is
/// over.
void TcpWire::RequireHope() {
  if (aborted_) throw Aborted();
  bool lost = false;
  for (int p = 0; p < links_.size(); ++p) {
    lost = lost || (links_.At(p) != nullptr && !links_.At(p)->open());
  }
  if (!lost) return;
  for (const Entry& entry : entries_) {
    if (entry.kind == Entry::Kind::kSend || entry.kind == Entry::Kind::kReceive) {
      RequireConnected(entry);
    }
  }
}

void TcpWire::RequireConnected(const Entry& entry) {
  const Link& link = *links_.At(entry.process);
  if (link.open() || entry.done) return;
  Clock::time_point& lost = PeerAt(entry.process).lost;
  const Clock::time_point now = Clock::now();
  if (lost == Clock::time_point{}) lost = now;
  if (now < lost + grace_) return;
  throw Error("lost the connection to " + name_(entry.process) + ": " + link.reason());
}

int TcpWire::New(Entry::Kind kind, int process) {
  CF_ASSERT(process >= 0 && process < links_.size() && links_.At(process) != nullptr);
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

void TcpWire::Free(int ticket) {
  At(ticket) = {};
  At(ticket).next = free_;
  free_ = ticket;
}

void TcpWire::Append(Queue* queue, int ticket) {
  (queue->first < 0 ? queue->first : At(queue->last).next) = ticket;
  queue->last = ticket;
}

int TcpWire::PopFirst(Queue* queue) {
  const int ticket = queue->first;
  queue->first = At(ticket).next;
  return ticket;
}

void TcpWire::Finish(Entry* entry) {
  entry->done = true;
  links_.Note();
}

/// A label and its receive have met.
void TcpWire::Match(int process, int ticket, const Label& label, int theirs,
                    Clock::time_point begun) {
  Entry& receive = At(ticket);
  receive.label = label;
  receive.begun = begun;
  receive.matched = true;
  Frame answer;
  answer.kind = label.bytes == receive.in.size() ? Frame::kReady : Frame::kRefuse;
  answer.sender = theirs;
  answer.receiver = ticket;
  links_.At(process)->Put(answer);
  if (answer.kind == Frame::kRefuse || label.bytes == 0) Finish(&receive);
}

void TcpWire::OnFrame(int process, const Frame& frame) {
  if (frame.kind == Frame::kLabel) return TakeLabel(process, frame);
  if (!Knows(process, frame.sender, Entry::Kind::kSend) || At(frame.sender).matched) {
    throw Error("it answered a message that was not sent");
  }
  Entry& send = At(frame.sender);
  send.matched = true;
  if (frame.kind == Frame::kRefuse || send.out.empty()) return Finish(&send);
  links_.At(process)->PutTensor(frame.sender, frame.receiver, send.out);
}

void TcpWire::TakeLabel(int process, const Frame& frame) {
  if (frame.channel >= kChannels || frame.op >= kOpCount || frame.layer < INT16_MIN ||
      frame.layer > INT16_MAX) {
    throw Error("it sent a message with an unknown label");
  }
  Peer& peer = PeerAt(process);
  Queue& queue = peer.queues[frame.channel];
  if (queue.first >= 0 && At(queue.first).kind == Entry::Kind::kReceive) {
    return Match(process, PopFirst(&queue), LabelOf(frame), frame.sender, Clock::now());
  }
  if (peer.arrived == kMaxArrived) {
    throw Error("it sent more than " + std::to_string(kMaxArrived) +
                " messages that nobody received yet");
  }
  ++peer.arrived;
  const int ticket = New(Entry::Kind::kArrived, process);
  Entry& label = At(ticket);
  label.label = LabelOf(frame);
  label.theirs = frame.sender;
  label.begun = Clock::now();
  Append(&queue, ticket);
}

std::span<std::byte> TcpWire::Room(int process, const Frame& frame) {
  if (!Knows(process, frame.receiver, Entry::Kind::kReceive)) {
    throw Error("it sent bytes that nobody receives");
  }
  const Entry& receive = At(frame.receiver);
  if (!receive.matched || frame.bytes == 0 || frame.bytes > receive.in.size() - receive.moved) {
    throw Error("it sent other bytes than it announced");
  }
  return receive.in.subspan(receive.moved, static_cast<size_t>(frame.bytes));
}

void TcpWire::OnBytes(int, int receiver, size_t count) {
  Entry& receive = At(receiver);
  receive.moved += count;
  if (receive.moved == receive.in.size()) Finish(&receive);
}

/// Whether a ticket that a process names is one of those under way with it.
bool TcpWire::Knows(int process, int ticket, Entry::Kind kind) {
  if (ticket < 0 || static_cast<size_t>(ticket) >= entries_.size()) return false;
  const Entry& entry = At(ticket);
  return entry.kind == kind && entry.process == process && !entry.done;
}

}  // namespace contraflow
