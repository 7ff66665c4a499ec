#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "compiler/files/json.h"
#include "compiler/plan/plan.h"
#include "compiler/plan/timeline.h"

namespace contraflow {

/// A rank that computes slower than the others.
struct Straggler {
  int rank = 0;
  double slower = 0;  ///< 0.23: its instructions take 1.23 times as long as those of others

  bool operator==(const Straggler&) const = default;
};

/// Finds slow ranks by the compute times of measured steps. For each rank and kind of instruction,
/// the shortest time of 8 steps is compared with the mean of the other ranks' shortest, weighted by
/// its frequency. The median of all these windows counts. The compute of only one rank compares
/// with nothing: forwards of the first stage, which embed the text, and chunks of the last, which
/// have the head, are kinds of their own, and so are chunks of this many layers.
class Stragglers {
 public:
  /// Slowness that may be noise, this or less.
  static constexpr double kNoise = 0.1;

  /// `layers`: how many each stage has; empty: as many as any other.
  explicit Stragglers(const Plan& plan, std::vector<int> layers = {})
      : plan_(plan), layers_(std::move(layers)), slower_(plan.programs.size()) {}

  /// Adds a step.
  void Add(const Timeline& timeline);
  /// Forgets all steps.
  void Clear();
  /// Stragglers by rank; none before a step was added.
  std::vector<Straggler> Find() const;

 private:
  static constexpr int kWindow = 8;
  /// However long a training is, the newest this many windows count.
  static constexpr size_t kMostWindows = 128;

  /// Operation, whether it embeds the text, whether its forward and its backward have the head, and
  /// the layers of both.
  using Kind = std::tuple<Op, bool, bool, bool, int, int>;
  /// Shortest times of the instructions of a kind. The others may have waited for a core.
  struct Shortest {
    double time = 0;
    int count = 0;
  };

  Kind KindOf(const Instruction& instruction) const;
  int LayersOf(int stage) const;
  std::vector<double> SlowerInWindow() const;

  const Plan& plan_;
  const std::vector<int> layers_;
  std::map<Kind, std::vector<Shortest>> window_;  // by rank
  int steps_ = 0;                                 // in it
  std::vector<std::deque<double>> slower_;        // by rank, of each window before
};

/// "slower than the others: rank 2 (+23 %), rank 3 (+11 %)\n"; "" without any.
std::string FormatStragglers(const std::vector<Straggler>& stragglers);

/// Like FormatStragglers, as a member "stragglers" of a document, a list that may be empty.
void StragglersToJson(const std::vector<Straggler>& stragglers, Json* document);

}  // namespace contraflow
