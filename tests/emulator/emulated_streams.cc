#include "tests/emulator/emulated_streams.h"

#include <algorithm>
#include <utility>

#include "compiler/plan/error.h"

namespace contraflow {

size_t EmulatedStreams::Make() {
  streams_.push_back(std::make_unique<Stream>());
  Draw();
  return streams_.size() - 1;
}

void EmulatedStreams::Give(size_t stream, Item item) {
  std::deque<Item>& items = streams_.at(stream)->items;
  items.push_back(std::move(item));
  most_waiting_ = std::max(most_waiting_, items.size());
}

/// Draws who goes before whom until the next draw.
void EmulatedStreams::Draw() {
  for (size_t i = 0; i < streams_.size(); ++i) {
    switch (turn_) {
      case Turn::kDrawn:
        streams_[i]->rank = random_();
        break;
      case Turn::kFirst:
        streams_[i]->rank = streams_.size() - i;
        break;
      case Turn::kLast:
        streams_[i]->rank = i;
        break;
    }
  }
}

std::unique_ptr<EmulatedStreams::Replay> EmulatedStreams::Begin(const Graph& graph) {
  const size_t size = graph.nodes.size();
  auto replay = std::make_unique<Replay>(Replay{
      &graph, std::vector<size_t>(size), std::vector<std::vector<size_t>>(size), {}, {}, size});
  for (size_t node = 0; node < size; ++node) {
    for (const size_t before : graph.nodes[node].after) replay->then[before].push_back(node);
    replay->waits_for[node] = graph.nodes[node].after.size();
    const auto& outside = graph.nodes[node].outside;
    replay->outside.push_back(outside ? outside() : nullptr);
    if (replay->waits_for[node] == 0) replay->ready.push_back(node);
  }
  return replay;
}

// Work is gone before it runs, so that work that throws is not done again.
void EmulatedStreams::RunFront(Stream* stream) {
  if (stream->items.front().graph != nullptr && stream->replay == nullptr) {
    stream->replay = Begin(*stream->items.front().graph);
    if (stream->replay->left > 0) return;
    stream->replay.reset();
  }
  const Item item = std::move(stream->items.front());
  stream->items.pop_front();
  if (item.marks != nullptr) item.marks->done = true;
  if (item.work) item.work();
}

void EmulatedStreams::RunNode(Stream* stream, size_t place) {
  Replay& replay = *stream->replay;
  const size_t node = replay.ready[place];
  replay.ready.erase(replay.ready.begin() + static_cast<ptrdiff_t>(place));
  for (const size_t next : replay.then[node]) {
    if (--replay.waits_for[next] == 0) replay.ready.push_back(next);
  }
  const std::function<void()>& work = replay.graph->nodes[node].work;
  if (--replay.left == 0) {
    stream->replay.reset();
    if (stream->items.front().marks != nullptr) stream->items.front().marks->done = true;
    stream->items.pop_front();
  }
  if (work) work();
}

bool EmulatedStreams::RunOne() {
  constexpr unsigned kTurnsADraw = 8;
  if (random_() % kTurnsADraw == 0) Draw();
  Stream* next = nullptr;
  size_t node = 0;  // its place among the ready ones of a replay
  uint64_t rank = 0;
  const auto offer = [&](Stream* stream, size_t place, uint64_t candidate) {
    if (next != nullptr && candidate <= rank) return;
    next = stream;
    node = place;
    rank = candidate;
  };
  bool empty = true;
  for (const auto& stream : streams_) {
    if (stream->items.empty()) continue;
    empty = false;
    if (stream->replay != nullptr) {
      const std::vector<size_t>& ready = stream->replay->ready;
      for (size_t i = 0; i < ready.size(); ++i) {
        if (!stream->replay->MayRun(ready[i])) continue;
        offer(stream.get(), i, streams_[stream->replay->graph->nodes[ready[i]].stream]->rank);
      }
    } else {
      const std::shared_ptr<EventMark>& mark = stream->items.front().waits_for;
      if (mark == nullptr || mark->done) offer(stream.get(), 0, stream->rank);
    }
  }
  if (empty) return false;
  // Only what has been given can be waited for, so that what was given first can always go on.
  CF_ASSERT(next != nullptr);
  if (next->replay != nullptr) {
    RunNode(next, node);
  } else {
    RunFront(next);
  }
  return true;
}

void EmulatedStreams::RunUntil(const EventMark& mark) {
  while (!mark.done) CF_ASSERT(RunOne());
}

void EmulatedStreams::RunAll() {
  while (RunOne()) {
  }
}

}  // namespace contraflow
