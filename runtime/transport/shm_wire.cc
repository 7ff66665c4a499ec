#include "runtime/transport/shm_wire.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "compiler/plan/error.h"

namespace contraflow {
namespace {

constexpr std::chrono::milliseconds kPause{20};

/// A label in a ring.
struct Record {
  uint64_t bytes;
  int64_t begun;  // nanoseconds of the clock that all processes of a machine share
  int32_t op, stage, layer, microbatch, part;
  int32_t unused;
};
static_assert(sizeof(Record) == 40);

/// Copies bytes into a ring, or out of it, from a place that counts round and round.
template <typename Copy>
void Around(std::span<std::byte> ring, uint64_t at, size_t count, const Copy& copy) {
  const size_t begin = static_cast<size_t>(at) & (ring.size() - 1);
  const size_t straight = std::min(count, ring.size() - begin);
  copy(ring.data() + begin, size_t{0}, straight);
  if (straight < count) copy(ring.data(), straight, count - straight);
}

void Put(std::span<std::byte> ring, uint64_t at, std::span<const std::byte> bytes) {
  Around(ring, at, bytes.size(), [&](std::byte* place, size_t from, size_t count) {
    if (count > 0) std::memcpy(place, bytes.data() + from, count);
  });
}

void Get(std::span<std::byte> ring, uint64_t at, std::span<std::byte> bytes) {
  Around(ring, at, bytes.size(), [&](const std::byte* place, size_t from, size_t count) {
    if (count > 0) std::memcpy(bytes.data() + from, place, count);
  });
}

int64_t Ticks(Clock::time_point time) { return Nanoseconds(time.time_since_epoch()); }

}  // namespace

ShmWire::ShmWire(const SharedMemory& memory, int self, std::function<std::string(int)> name)
    : memory_(memory), self_(self), name_(std::move(name)) {
  CF_ASSERT(self >= 0 && self < memory.processes());
  for (int peer = 0; peer < memory.processes(); ++peer) {
    for (int c = 0; c < kChannels; ++c) {
      for (const bool sends : {false, true}) {
        Lane& lane = lanes_.emplace_back();
        lane.channel = static_cast<Channel>(c);
        lane.peer = peer;
        lane.sends = sends;
        const int from = sends ? self : peer, to = sends ? peer : self;
        lane.ring = &memory.RingOf(lane.channel, from, to);
        lane.bytes = memory.BytesOf(lane.channel, from, to);
      }
    }
  }
  busy_.reserve(lanes_.size());
}

int ShmWire::Send(Channel channel, int to, const Label& label, std::span<const std::byte> bytes) {
  Entry entry;
  entry.lane = 1;
  entry.label = label;
  entry.label.bytes = bytes.size();
  entry.out = bytes;
  return Begin(channel, to, entry);
}

int ShmWire::Receive(Channel channel, int from, std::span<std::byte> bytes) {
  Entry entry;
  entry.in = bytes;
  return Begin(channel, from, entry);
}

int ShmWire::Begin(Channel channel, int peer, const Entry& entry) {
  RequireRunning();
  CF_ASSERT(peer >= 0 && peer < processes() && peer != self_);
  const int ticket = tickets_.Take(entry);
  Entry& here = At(ticket);
  here.begun = Clock::now();
  here.lane += (static_cast<size_t>(peer) * kChannels + static_cast<size_t>(channel)) * 2;
  Lane& lane = lanes_[here.lane];
  (lane.first < 0 ? lane.first : At(lane.last).next) = ticket;
  lane.last = ticket;
  if (lane.sends) {
    here.number = lane.count++;
    if (lane.current < 0) lane.current = ticket;
  }
  if (!std::exchange(lane.listed, true)) busy_.push_back(here.lane);
  Turn(&lane);
  return ticket;
}

Wire::Status ShmWire::Test(int ticket) {
  RequireRunning();
  CF_ASSERT(tickets_.Has(ticket));
  Entry& entry = At(ticket);
  if (!entry.done) Turn(&lanes_[entry.lane]);
  if (!entry.done) return {};
  const Status status = {true, entry.label, entry.begun};
  tickets_.Free(ticket);
  return status;
}

void ShmWire::Poll() {
  RequireRunning();
  std::erase_if(busy_, [&](size_t place) {
    Lane& lane = lanes_[place];
    Turn(&lane);
    lane.listed = lane.first >= 0 || lane.skip > 0;
    return !lane.listed;
  });
}

void ShmWire::Pause() {
  Poll();
  if (events_ == seen_) {
    memory_.PrepareToSleep(self_);
    // A process that wrote before it could see this one asleep has written by now.
    Poll();
    if (events_ == seen_ && !aborted_) memory_.Sleep(self_, kPause);
  }
  seen_ = events_;
}

void ShmWire::Abort() {
  aborted_ = true;
  memory_.Wake(self_);
}

void ShmWire::RequireRunning() const {
  if (aborted_) throw Aborted();
}

Error ShmWire::Lied(const Lane& lane) const {
  return Error(name_(lane.peer) + " has damaged the memory that it shares with " + name_(self_));
}

/// Moves all that can be moved now.
void ShmWire::Turn(Lane* lane) {
  if (lane->sends ? Write(lane) : Read(lane)) memory_.Wake(lane->peer);
}

/// The first message of a lane is done.
void ShmWire::Finish(Lane* lane) {
  Entry& entry = At(lane->first);
  lane->first = entry.next;
  entry.done = true;
  ++events_;
}

/// Whether the other side has something new to read.
bool ShmWire::Write(Lane* lane) {
  const uint64_t before = lane->at;
  const size_t size = lane->bytes.size();
  if (lane->current >= 0) {
    const uint64_t read = lane->ring->read;
    if (lane->at - read > size) throw Lied(*lane);
    size_t room = size - static_cast<size_t>(lane->at - read);
    while (lane->current >= 0) {
      Entry& entry = At(lane->current);
      if (!entry.labelled) {
        if (room < sizeof(Record)) break;
        const Instruction& i = entry.label.instruction;
        const Record record = {
            entry.out.size(), Ticks(entry.begun), static_cast<int32_t>(i.op), i.stage,
            i.layer,          i.microbatch,       entry.label.part,           0};
        Put(lane->bytes, lane->at, std::as_bytes(std::span(&record, 1)));
        lane->at += sizeof record;
        room -= sizeof record;
        entry.labelled = true;
      }
      const auto piece =
          entry.out.subspan(entry.moved, std::min(room, entry.out.size() - entry.moved));
      Put(lane->bytes, lane->at, piece);
      lane->at += piece.size();
      room -= piece.size();
      entry.moved += piece.size();
      if (entry.moved < entry.out.size()) break;
      lane->current = entry.next;
    }
    if (lane->at != before) lane->ring->written = lane->at;
  }
  const uint64_t begun = lane->ring->begun;
  if (begun > lane->count) throw Lied(*lane);
  while (lane->first >= 0 && lane->first != lane->current && At(lane->first).number < begun) {
    Finish(lane);
  }
  return lane->at != before;
}

/// Whether the other side has room again, or a receive has begun.
bool ShmWire::Read(Lane* lane) {
  const uint64_t before = lane->at, count = lane->count;
  const uint64_t written = lane->ring->written;
  if (written - lane->at > lane->bytes.size()) throw Lied(*lane);
  auto left = static_cast<size_t>(written - lane->at);
  for (;;) {
    if (const size_t skipped = static_cast<size_t>(std::min<uint64_t>(lane->skip, left))) {
      lane->skip -= skipped;
      lane->at += skipped;
      left -= skipped;
    }
    if (lane->first < 0 || lane->skip > 0) break;
    Entry& entry = At(lane->first);
    if (!entry.labelled) {
      if (left < sizeof(Record)) break;
      TakeLabel(lane, &entry);
      left -= sizeof(Record);
      if (entry.label.bytes != entry.in.size()) {
        lane->skip = entry.label.bytes;
        Finish(lane);
        continue;
      }
    }
    const auto piece = entry.in.subspan(entry.moved, std::min(left, entry.in.size() - entry.moved));
    Get(lane->bytes, lane->at, piece);
    lane->at += piece.size();
    left -= piece.size();
    entry.moved += piece.size();
    if (entry.moved < entry.in.size()) break;
    Finish(lane);
  }
  if (lane->at != before) lane->ring->read = lane->at;
  if (lane->count != count) lane->ring->begun = lane->count;
  return lane->at != before || lane->count != count;
}

/// The next label of a ring, which has one, is that of a receive.
void ShmWire::TakeLabel(Lane* lane, Entry* entry) {
  Record record;
  Get(lane->bytes, lane->at, std::as_writable_bytes(std::span(&record, 1)));
  if (record.op < 0 || record.op >= kOpCount || record.layer < INT16_MIN ||
      record.layer > INT16_MAX) {
    throw Lied(*lane);
  }
  lane->at += sizeof record;
  ++lane->count;
  entry->labelled = true;
  Instruction& i = entry->label.instruction;
  i.op = static_cast<Op>(record.op);
  i.stage = record.stage;
  i.layer = static_cast<int16_t>(record.layer);
  i.microbatch = record.microbatch;
  entry->label.part = record.part;
  entry->label.bytes = record.bytes;
  const Clock::time_point begun{std::chrono::nanoseconds(record.begun)};
  entry->begun = std::min(begun, Clock::now());
}

}  // namespace contraflow
