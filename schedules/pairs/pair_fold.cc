#include "schedules/pairs/pair_fold.h"

#include <cstddef>

namespace contraflow {
namespace {

bool Alike(const Line& a, const Line& b) {
  return a.cost == b.cost && a.count == b.count && a.hop == b.hop && a.held == b.held &&
         a.stash == b.stash && a.stage == b.stage;
}

/// The tokens with the lines that `line` gives for theirs.
template <typename LineOf>
Word Renamed(const Word& word, const LineOf& line) {
  Word renamed;
  renamed.reserve(word.size());
  for (const Token& token : word) {
    renamed.push_back({token.op, line(token.line), token.op == Op::FB ? line(token.back) : -1});
  }
  return renamed;
}

}  // namespace

std::optional<SearchProblem> Fold(const SearchProblem& problem) {
  const Plan& frame = problem.frame;
  if (frame.routes.size() != 2 || frame.ranks % 2 != 0 || frame.stages != frame.ranks) {
    return std::nullopt;
  }
  if (!problem.scale.empty()) return std::nullopt;
  const auto stages = static_cast<size_t>(frame.stages);
  for (size_t s = 0; s < stages; ++s) {
    const Line &down = problem.lines[s], &up = problem.lines[stages + s];
    if (!Alike(down, up) || down.rank != down.stage) return std::nullopt;
    if (up.rank != frame.ranks - 1 - up.stage) return std::nullopt;
  }
  SearchProblem folded = problem;
  folded.lines.resize(stages);
  folded.lines_of.assign(static_cast<size_t>(frame.ranks) / 2, {});
  folded.frame.ranks = frame.ranks / 2;
  folded.frame.routes.pop_back();
  folded.frame.microbatches /= 2;
  folded.frame.programs.resize(folded.lines_of.size());
  for (size_t s = 0; s < stages; ++s) {
    Line& line = folded.lines[s];
    if (line.rank >= folded.frame.ranks) line.rank = frame.ranks - 1 - line.rank;
    folded.frame.routes[0].ranks[s] = line.rank;
    folded.lines_of[static_cast<size_t>(line.rank)].push_back(static_cast<int>(s));
  }
  return folded;
}

Order FoldOrder(const SearchProblem& problem, const Order& order) {
  Order folded;
  for (size_t r = 0; r < order.size() / 2; ++r) {
    folded.push_back(Renamed(order[r], [&](int32_t line) {
      return int32_t{problem.lines[static_cast<size_t>(line)].stage};
    }));
  }
  return folded;
}

Order UnfoldOrder(const SearchProblem& problem, const Order& folded) {
  const int32_t stages = problem.frame.stages;
  const auto half = static_cast<int32_t>(folded.size());
  Order order(folded.size() * 2);
  for (size_t r = 0; r < folded.size(); ++r) {
    // Stages of the first half are on this rank on the first route, the others on the second.
    order[r] = Renamed(folded[r], [&](int32_t s) { return s < half ? s : stages + s; });
    order[order.size() - 1 - r] =
        Renamed(folded[r], [&](int32_t s) { return s < half ? stages + s : s; });
  }
  return order;
}

}  // namespace contraflow
