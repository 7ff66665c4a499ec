#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace contraflow {

/// Meaning of an event when it was recorded; a stream that waits for it keeps it.
struct EventMark {
  bool done = false;
  int asked = 0;              ///< how often, whether it is done
  uint64_t capture = 0;       ///< the capture in which it was recorded; 0: none
  std::vector<size_t> nodes;  ///< of that capture, after which it is
};

/// Work of several streams and what must come before what.
struct Graph {
  struct Node {
    std::function<void()> work;
    size_t stream;
    std::vector<size_t> after;
    /// Another wait: for the result of this when the graph begins; empty: none.
    std::function<std::shared_ptr<EventMark>()> outside = nullptr;
  };
  std::vector<Node> nodes;
  std::shared_ptr<EventMark> last_launch;  ///< which the next one waits for
};

/// Work that a stream has been given.
struct Item {
  std::function<void()> work = nullptr;
  std::shared_ptr<EventMark> waits_for = nullptr;
  std::shared_ptr<EventMark> marks = nullptr;
  Graph* graph = nullptr;
};

/// Which of the streams that can go on takes the next turn: one that is drawn, and that often keeps
/// its turn for a while, so that it gets far ahead of the others; or always the one that was made
/// first, or last, of those.
enum class Turn : uint8_t { kDrawn, kFirst, kLast };

/// Streams whose work waits until somebody needs its result, and is then done in an order that
/// nobody should rely on: any that streams and events allow.
class EmulatedStreams {
 public:
  EmulatedStreams(Turn turn, uint64_t seed) : turn_(turn), random_(seed) {}

  /// A new stream: its number, from 0.
  size_t Make();
  void Give(size_t stream, Item item);
  /// Does one thing, unless there is nothing to do; throws what the work throws.
  bool RunOne();
  void RunUntil(const EventMark& mark);
  void RunAll();
  /// The most that has ever waited in one stream.
  size_t most_waiting() const { return most_waiting_; }

 private:
  /// A graph that a stream is busy with.
  struct Replay {
    const Graph* graph;
    std::vector<size_t> waits_for;  // nodes, by node
    std::vector<std::vector<size_t>> then;
    std::vector<size_t> ready;
    std::vector<std::shared_ptr<EventMark>> outside;  // by node; null: nothing
    size_t left;

    bool MayRun(size_t node) const { return outside[node] == nullptr || outside[node]->done; }
  };
  struct Stream {
    std::deque<Item> items;
    std::unique_ptr<Replay> replay;
    uint64_t rank = 0;  // the highest that can go on takes the turn
  };

  void Draw();
  void RunFront(Stream* stream);
  void RunNode(Stream* stream, size_t place);
  static std::unique_ptr<Replay> Begin(const Graph& graph);

  const Turn turn_;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Stream>> streams_;
  size_t most_waiting_ = 0;
};

}  // namespace contraflow
