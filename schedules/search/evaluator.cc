#include "schedules/search/evaluator.h"

#include <algorithm>
#include <map>
#include <utility>

#include "compiler/plan/error.h"
#include "schedules/local/noise.h"

namespace contraflow {
namespace {

constexpr Time kUnset = -1;
constexpr int64_t kRuns = -1;  // a rank that waits for nothing

}  // namespace

Evaluator::Evaluator(const SearchProblem& problem) : problem_(problem) {
  const std::vector<Line>& lines = problem.lines;
  const CommCost& comm = problem.costs.comm;
  occupancy_ = comm.occupancy;
  latency_ = comm.latency;
  std::map<std::pair<int, int>, int32_t> edges;
  const auto edge = [&](int from, int to) -> int32_t {
    if (!comm.exclusive()) return -1;
    return edges.emplace(std::pair(from, to), static_cast<int32_t>(edges.size())).first->second;
  };
  size_t first = 0;
  for (const Line& line : lines) {
    Track track;
    track.first = first;
    track.count = line.count;
    first += static_cast<size_t>(line.count);
    if (line.before >= 0) {
      track.before = line.before;
      track.rank_before = lines[static_cast<size_t>(line.before)].rank;
      track.before_here = track.rank_before == line.rank;
      if (!track.before_here) track.edge_before = edge(line.rank, track.rank_before);
    }
    if (line.after >= 0) {
      track.after = line.after;
      track.rank_after = lines[static_cast<size_t>(line.after)].rank;
      track.after_here = track.rank_after == line.rank;
      if (!track.after_here) track.edge_after = edge(line.rank, track.rank_after);
    }
    track.held = line.held;
    track.stash = line.stash;
    const auto index = static_cast<int32_t>(tracks_.size());
    for (size_t i = 0; i < 4 && line.count > 0; ++i) {
      track.cost[i] = problem.Duration({kCosted[i], index}, 0);
    }
    tracks_.push_back(track);
  }
  if (!problem.scale.empty()) {
    for (size_t i = 0; i < 4; ++i) {
      scaled_[i].reserve(first);
      for (size_t line = 0; line < lines.size(); ++line) {
        for (int k = 0; k < lines[line].count; ++k) {
          scaled_[i].push_back(problem.Duration({kCosted[i], static_cast<int32_t>(line)}, k));
        }
      }
    }
  }
  place_.resize(lines.size());
  for (const std::vector<int>& here : problem.lines_of) {
    places_ = std::max(places_, here.size());
    for (size_t i = 0; i < here.size(); ++i) {
      place_[static_cast<size_t>(here[i])] = static_cast<int32_t>(i);
    }
  }
  if (problem.scale.empty()) {
    pair_.resize(lines.size() * places_);
    for (size_t line = 0; line < lines.size(); ++line) {
      const std::vector<int>& here = problem.lines_of[static_cast<size_t>(lines[line].rank)];
      for (size_t i = 0; i < here.size(); ++i) {
        if (lines[line].count == 0 || lines[static_cast<size_t>(here[i])].count == 0) continue;
        pair_[line * places_ + i] =
            problem.Duration({Op::FB, static_cast<int32_t>(line), here[i]}, 0, 0);
      }
    }
  }
  const size_t ranks = problem.lines_of.size();
  f_in_.resize(first);
  b_in_.resize(first);
  edge_free_.resize(edges.size());
  lane_free_.resize(ranks);
  first_start_.resize(ranks);
  waits_.resize(ranks);
  held_.resize(ranks);
  next_.resize(ranks);
  ready_.reserve(ranks);
  result_.peak.resize(ranks);
  result_.rank_ends.resize(ranks);
}

const Evaluation& Evaluator::Run(const Order& order, const NoiseDraw* draw) {
  draw_ = draw;
  CF_ASSERT(order.size() == problem_.lines_of.size());
  Reset();
  while (!ready_.empty()) {
    const int r = ready_.back();
    ready_.pop_back();
    if (!Walk(r, order[static_cast<size_t>(r)])) return result_;
  }
  for (size_t r = 0; r < order.size(); ++r) {
    if (next_[r] < order[r].size()) return result_;
  }
  result_.runs = true;
  result_.fits = true;
  for (size_t r = 0; r < order.size(); ++r) {
    const Time end = lane_free_[r];
    result_.rank_ends[r] = end;
    result_.makespan = std::max(result_.makespan, end);
    if (!order[r].empty()) result_.span = std::max(result_.span, end - first_start_[r]);
    if (problem_.limit && result_.peak[r] > *problem_.limit) result_.fits = false;
  }
  return result_;
}

void Evaluator::Reset() {
  for (Track& track : tracks_) track.f = track.b = track.w = 0;
  std::fill(f_in_.begin(), f_in_.end(), kUnset);
  std::fill(b_in_.begin(), b_in_.end(), kUnset);
  std::fill(edge_free_.begin(), edge_free_.end(), 0);
  std::fill(lane_free_.begin(), lane_free_.end(), 0);
  std::fill(first_start_.begin(), first_start_.end(), 0);
  std::fill(waits_.begin(), waits_.end(), kRuns);
  std::fill(held_.begin(), held_.end(), 0);
  std::fill(next_.begin(), next_.end(), 0);
  std::fill(result_.peak.begin(), result_.peak.end(), 0);
  result_.runs = result_.fits = false;
  result_.makespan = result_.span = 0;
  ready_.clear();
  for (size_t r = next_.size(); r-- > 0;) ready_.push_back(static_cast<int>(r));
}

/// Runs a rank until it waits or ends; false if it would wait for ever on its own tokens.
bool Evaluator::Walk(int rank, const Word& word) {
  const auto r = static_cast<size_t>(rank);
  Time lane = lane_free_[r];
  int64_t held = held_[r], peak = result_.peak[r];
  size_t at = next_[r];
  bool sound = true;
  for (; at < word.size(); ++at) {
    const Token& token = word[at];
    Time start = lane;
    const Step step = Ready(rank, token, &start);
    if (step != Step::kDone) {
      sound = step == Step::kWaits;
      break;
    }
    if (at == 0) first_start_[r] = start;
    lane = start + Duration(token);
    const auto line = static_cast<size_t>(token.line);
    if (HasForward(token.op)) {
      Track& track = tracks_[line];
      const int k = track.f++;
      held += track.held;
      peak = std::max(peak, held);
      if (track.after >= 0 && !track.after_here) {
        const size_t to = tracks_[static_cast<size_t>(track.after)].first + static_cast<size_t>(k);
        Depart(track.rank_after, track.edge_after, lane, &f_in_, to, static_cast<int64_t>(2 * to));
      }
    }
    if (HasBackward(token.op)) {
      Track& track = tracks_[token.op == Op::FB ? static_cast<size_t>(token.back) : line];
      const int k = track.b++;
      held -= track.held - track.stash;
      if (track.before >= 0 && !track.before_here) {
        const size_t to = tracks_[static_cast<size_t>(track.before)].first + static_cast<size_t>(k);
        Depart(track.rank_before, track.edge_before, lane, &b_in_, to,
               static_cast<int64_t>(2 * to + 1));
      }
    }
    if (HasWeight(token.op)) {
      Track& track = tracks_[token.op == Op::FB ? static_cast<size_t>(token.back) : line];
      ++track.w;
      held -= track.stash;
    }
  }
  next_[r] = at;
  lane_free_[r] = lane;
  held_[r] = held;
  result_.peak[r] = peak;
  return sound;
}

/// When all that the token needs is there, or what it waits for. What a rank makes itself is there
/// once it has run: its lane is free no earlier.
Evaluator::Step Evaluator::Ready(int rank, const Token& token, Time* ready) {
  Track& own = tracks_[static_cast<size_t>(token.line)];
  int64_t& wait = waits_[static_cast<size_t>(rank)];
  if (HasForward(token.op)) {
    if (own.f == own.count) return Step::kNever;
    if (own.before_here) {
      if (tracks_[static_cast<size_t>(own.before)].f <= own.f) return Step::kNever;
    } else if (own.before >= 0) {
      const size_t at = own.first + static_cast<size_t>(own.f);
      if (f_in_[at] == kUnset) {
        wait = static_cast<int64_t>(2 * at);
        return Step::kWaits;
      }
      *ready = std::max(*ready, f_in_[at]);
    }
  }
  Track& back = token.op == Op::FB ? tracks_[static_cast<size_t>(token.back)] : own;
  if (HasBackward(token.op)) {
    if (back.b == back.f || (HasWeight(token.op) && back.w != back.b)) return Step::kNever;
    if (back.after_here) {
      if (tracks_[static_cast<size_t>(back.after)].b <= back.b) return Step::kNever;
    } else if (back.after >= 0) {
      const size_t at = back.first + static_cast<size_t>(back.b);
      if (b_in_[at] == kUnset) {
        wait = static_cast<int64_t>(2 * at + 1);
        return Step::kWaits;
      }
      *ready = std::max(*ready, b_in_[at]);
    }
  } else if (HasWeight(token.op) && back.w == back.b) {
    return Step::kNever;
  }
  return Step::kDone;
}

Time Evaluator::Duration(const Token& token) const {
  const auto line = static_cast<size_t>(token.line);
  const Track& own = tracks_[line];
  if (draw_ != nullptr) {
    if (token.op == Op::FB) {
      return draw_->Duration(token, own.f, tracks_[static_cast<size_t>(token.back)].b);
    }
    const int k = HasForward(token.op) ? own.f : HasBackward(token.op) ? own.b : own.w;
    return draw_->Duration(token, k);
  }
  if (token.op == Op::FB) {
    const auto back = static_cast<size_t>(token.back);
    if (!pair_.empty()) return pair_[line * places_ + static_cast<size_t>(place_[back])];
    return problem_.Duration(token, own.f, tracks_[back].b);
  }
  const size_t index = CostIndex(token.op);
  if (scaled_[0].empty()) return own.cost[index];
  const int k = index == 0 ? own.f : index == 2 ? own.w : own.b;
  return scaled_[index][own.first + static_cast<size_t>(k)];
}

void Evaluator::Depart(int32_t to, int32_t edge, Time made, std::vector<Time>* arrivals, size_t at,
                       int64_t wait) {
  if (edge >= 0) {
    Time& free = edge_free_[static_cast<size_t>(edge)];
    made = std::max(made, free);
    free = made + occupancy_;
  }
  (*arrivals)[at] = made + occupancy_ + latency_;
  if (waits_[static_cast<size_t>(to)] != wait) return;
  waits_[static_cast<size_t>(to)] = kRuns;
  ready_.push_back(to);
}

}  // namespace contraflow
