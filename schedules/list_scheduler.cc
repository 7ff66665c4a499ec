#include "schedules/list_scheduler.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "compiler/error.h"

namespace contraflow {
namespace {

constexpr Time kNever = RankQueue::kNever;
constexpr Op kCosted[] = {Op::F, Op::B, Op::W, Op::BW};
constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max() / 2;

size_t CostIndex(Op op) { return op == Op::F ? 0 : op == Op::B ? 1 : op == Op::W ? 2 : 3; }

}  // namespace

ListScheduler::ListScheduler(const SearchProblem& problem)
    : limit_(problem.limit.value_or(kNoLimit)) {
  const CommCost& comm = problem.costs.comm;
  occupancy_ = comm.occupancy;
  latency_ = comm.latency;
  std::map<std::pair<int, int>, int32_t> edges;
  std::vector<int32_t> track_of(problem.lines.size());
  std::vector<size_t> first(problem.lines.size());
  size_t chunks = 0;
  for (size_t line = 0; line < problem.lines.size(); ++line) {
    first[line] = chunks;
    chunks += static_cast<size_t>(problem.lines[line].count);
  }
  int32_t next = 0;
  for (const std::vector<int>& here : problem.lines_of) {
    CF_ASSERT(here.size() < (1 << 14));
    for (const int line : here) track_of[static_cast<size_t>(line)] = next++;
  }
  size_t code = 0;
  for (const std::vector<int>& here : problem.lines_of) {
    Rank rank;
    rank.begin = static_cast<int32_t>(tracks_.size());
    rank.first = code;
    for (const int index : here) {
      const Line& line = problem.lines[static_cast<size_t>(index)];
      Track track;
      track.line = index;
      track.rank = line.rank;
      track.route = line.route;
      track.stage = line.stage;
      track.stages_after = problem.frame.stages - 1 - line.stage;
      track.count = line.count;
      track.first = first[static_cast<size_t>(index)];
      track.held = line.held;
      track.stash = line.stash;
      const auto meet = [&](int other, int32_t* to, int32_t* edge, Time* hop) {
        if (other < 0) return;
        *to = track_of[static_cast<size_t>(other)];
        const Line& end = problem.lines[static_cast<size_t>(other)];
        if (end.rank == line.rank) return;
        *hop = comm.latency + comm.occupancy;
        if (!comm.exclusive()) return;
        *edge = edges.emplace(std::pair(line.rank, end.rank), static_cast<int32_t>(edges.size()))
                    .first->second;
      };
      meet(line.before, &track.before, &track.edge_before, &track.hop_before);
      meet(line.after, &track.after, &track.edge_after, &track.hop_after);
      if (line.count > 0) {
        track.f = problem.Duration({Op::F, index}, 0);
        track.b = problem.Duration({Op::B, index}, 0);
        track.w = problem.Duration({Op::W, index}, 0);
      }
      code += 3 * static_cast<size_t>(line.count);
      tracks_.push_back(track);
    }
    rank.end = static_cast<int32_t>(tracks_.size());
    ranks_.push_back(rank);
  }
  if (!problem.scale.empty()) {
    for (size_t i = 0; i < 4; ++i) {
      scaled_[i].reserve(chunks);
      for (size_t line = 0; line < problem.lines.size(); ++line) {
        for (int k = 0; k < problem.lines[line].count; ++k) {
          scaled_[i].push_back(problem.Duration({kCosted[i], static_cast<int32_t>(line)}, k));
        }
      }
    }
  }
  codes_.resize(code);
  f_in_.resize(chunks);
  b_in_.resize(chunks);
  edge_free_.resize(edges.size());
  claims_.resize(ranks_.size());
  for (size_t r = 0; r < ranks_.size(); ++r) {
    Time one = 0;
    std::map<int32_t, Claim> claims;
    for (int32_t t = ranks_[r].begin; t < ranks_[r].end; ++t) {
      const Track& track = tracks_[static_cast<size_t>(t)];
      if (track.count == 0) continue;
      one += track.f + track.b + track.w;
      Claim& claim = claims.try_emplace(track.route, Claim{t, 0}).first->second;
      claim.held += track.held;
      if (tracks_[static_cast<size_t>(claim.track)].stage < track.stage) claim.track = t;
    }
    busiest_ = std::max(busiest_, one);
    for (const auto& [route, claim] : claims) claims_[r].push_back(claim);
  }
  // Lines are numbered by stage, so what is after a line has been visited before it.
  lag_.resize(tracks_.size());
  for (size_t line = problem.lines.size(); line-- > 0;) {
    const Track& track = tracks_[static_cast<size_t>(track_of[line])];
    if (track.after < 0) continue;
    const Track& after = tracks_[static_cast<size_t>(track.after)];
    lag_[static_cast<size_t>(track_of[line])] =
        lag_[static_cast<size_t>(track.after)] + after.f + after.b + 2 * track.hop_after;
  }
}

Time ListScheduler::Duration(Op op, const Track& track) const {
  const size_t index = CostIndex(op);
  if (!scaled_[0].empty()) {
    const int32_t k = op == Op::F ? track.nf : op == Op::W ? track.nw : track.nb;
    return scaled_[index][track.first + static_cast<size_t>(k)];
  }
  return op == Op::F ? track.f : op == Op::B ? track.b : op == Op::W ? track.w : track.b + track.w;
}

void ListScheduler::Reset(const Policy& policy) {
  policy_ = policy;
  end_ = 0;
  started_ = 0;
  total_ = 0;
  given_up_ = false;
  std::fill(edge_free_.begin(), edge_free_.end(), 0);
  for (size_t t = 0; t < tracks_.size(); ++t) {
    Track& track = tracks_[t];
    track.nf = track.nb = track.nw = track.kf = track.kb = 0;
    track.cap = track.count;
    if (policy.ahead > 0) {
      const Time depth = policy.depth == Depth::kLag ? lag_[t] : track.stages_after;
      const Rank& rank = ranks_[static_cast<size_t>(track.rank)];
      const Time whole =
          policy.depth == Depth::kLag ? std::max<Time>(1, busiest_) : rank.end - rank.begin;
      const Time cap = 1 + (depth * policy.ahead + 100 * whole - 1) / (100 * whole);
      track.cap = static_cast<int32_t>(std::min<Time>(cap, track.count));
    }
    if (track.before < 0) {
      track.kf = track.count;
      std::fill_n(f_in_.begin() + static_cast<ptrdiff_t>(track.first), track.count, 0);
    }
    total_ += (policy.fused ? 2 : 3) * int64_t{track.count};
  }
  for (size_t r = 0; r < ranks_.size(); ++r) {
    Rank& rank = ranks_[r];
    rank.size = 0;
    rank.held = 0;
    rank.idle = true;
    rank.was_forward = false;
    rank.left = 0;
    for (int32_t t = rank.begin; t < rank.end; ++t) {
      const Track& track = tracks_[static_cast<size_t>(t)];
      if (scaled_[0].empty()) {
        rank.left += track.count * (track.f + track.b + track.w);
        continue;
      }
      for (size_t k = track.first; k < track.first + static_cast<size_t>(track.count); ++k) {
        rank.left += scaled_[0][k] + scaled_[1][k] + scaled_[2][k];
      }
    }
  }
  queue_.Reset(ranks_.size());
}

std::optional<Time> ListScheduler::Run(const Policy& policy, Time below) {
  Reset(policy);
  below_ = below;
  while (queue_.first_time() != kNever && !given_up_) Decide(queue_.first(), queue_.first_time());
  if (given_up_) return std::nullopt;
  CF_ASSERT(started_ == total_);
  return end_;
}

// A forward takes memory that only the backward of the same micro-batch gives back, so a rank may
// fill up with forwards none of which can ever come back. That cannot happen while all
// micro-batches of all routes have a common order (by number, then by route) in which they could be
// finished one after the other: while on every rank, for the first micro-batch in this order of
// each route that has not run all its forwards there,
//
//     all it takes on the rank + what later ones hold there <= limit.
//
// What earlier ones hold comes back before; weight gradients that are due count as run. A forward
// is started only if this stays true, which needs no look at other ranks.
bool ListScheduler::Admits(const Rank& rank, int32_t which) const {
  if (rank.end - rank.begin == 1) return true;
  const Track& added = tracks_[static_cast<size_t>(which)];
  for (const Claim& claim : claims_[static_cast<size_t>(added.rank)]) {
    const Track& last = tracks_[static_cast<size_t>(claim.track)];
    const int32_t first = last.nf + (claim.track == which);
    if (first == last.count) continue;
    int64_t sum = claim.held;
    for (int32_t t = rank.begin; t < rank.end; ++t) {
      const Track& track = tracks_[static_cast<size_t>(t)];
      const int32_t later = std::max(track.nb, first + (track.route <= last.route));
      const int32_t holding = track.nf + (t == which) - later;
      if (holding > 0) sum += holding * track.held;
    }
    if (sum > limit_) return false;
  }
  return true;
}

bool ListScheduler::Before(Pick pick, const Track& a, Time arrival_a, int32_t next_a,
                           const Track& b, Time arrival_b, int32_t next_b) const {
  switch (pick) {
    case Pick::kDeep:
      return a.stage > b.stage;
    case Pick::kShallow:
      return a.stage < b.stage;
    case Pick::kEarly:
      return arrival_a < arrival_b;
    case Pick::kOld:
      return next_a < next_b;
  }
  return false;
}

/// Starts something on the rank, or lets it wait; false if it waits.
bool ListScheduler::Decide(int r, Time now) {
  Rank& rank = ranks_[static_cast<size_t>(r)];
  Time next = kNever, next_b = kNever, f_arrival = 0, b_arrival = 0;
  int32_t f = -1, b = -1, w = -1;
  int64_t waiting = -1;
  for (int32_t t = rank.begin; t < rank.end; ++t) {
    const Track& track = tracks_[static_cast<size_t>(t)];
    if (track.nb < track.kb) {
      const Time arrival = b_in_[track.first + static_cast<size_t>(track.nb)];
      if (arrival > now) {
        next_b = std::min(next_b, arrival);
      } else if (b < 0 ||
                 Before(policy_.backward, track, arrival, track.nb, tracks_[static_cast<size_t>(b)],
                        b_arrival, tracks_[static_cast<size_t>(b)].nb)) {
        b = t;
        b_arrival = arrival;
      }
    }
    if (track.nw < track.nb) {
      const int64_t stashed = (track.nb - track.nw) * track.stash;
      if (stashed > waiting) {
        waiting = stashed;
        w = t;
      }
    }
    if (track.nf < track.kf && track.nf - track.nb < track.cap && Admits(rank, t)) {
      const Time arrival = f_in_[track.first + static_cast<size_t>(track.nf)];
      if (arrival > now) {
        next = std::min(next, arrival);
      } else if (f < 0 ||
                 Before(policy_.forward, track, arrival, track.nf, tracks_[static_cast<size_t>(f)],
                        f_arrival, tracks_[static_cast<size_t>(f)].nf)) {
        f = t;
        f_arrival = arrival;
      }
    }
  }
  next = std::min(next, next_b);
  bool make_room = false;
  if (f >= 0 && rank.held + tracks_[static_cast<size_t>(f)].held > limit_) {
    make_room = w >= 0;
    if (!make_room) f = -1;
  }
  const bool forward = f >= 0 && (b < 0 || policy_.turn == Turn::kForward ||
                                  (policy_.turn == Turn::kAlternate && !rank.was_forward));
  if (forward) {
    const Time length = tracks_[static_cast<size_t>(f)].f;
    if (b >= 0 || next_b == kNever || (next_b - now) * 100 > policy_.wait * length) {
      if (make_room) {
        Start(r, now, Op::W, w);
      } else {
        Start(r, now, Op::F, f);
      }
      return true;
    }
    next = next_b;
  } else if (b >= 0) {
    Start(r, now, policy_.fused ? Op::BW : Op::B, b);
    return true;
  }
  if (w >= 0 &&
      (next == kNever ||
       (next - now) * 100 >= policy_.fill * Duration(Op::W, tracks_[static_cast<size_t>(w)]))) {
    Start(r, now, Op::W, w);
    return true;
  }
  rank.idle = true;
  queue_.Set(r, next);
  return false;
}

void ListScheduler::Start(int r, Time now, Op op, int32_t which) {
  Rank& rank = ranks_[static_cast<size_t>(r)];
  Track& track = tracks_[static_cast<size_t>(which)];
  const Time duration = Duration(op, track);
  const Time end = now + duration;
  codes_[rank.first + rank.size++] =
      static_cast<uint16_t>((which - rank.begin) * 4 + static_cast<int32_t>(CostIndex(op)));
  ++started_;
  rank.left -= duration;
  end_ = std::max(end_, end);
  if (end + rank.left >= below_) given_up_ = true;
  rank.idle = false;
  queue_.Set(r, end);
  if (op == Op::F) {
    rank.was_forward = true;
    rank.held += track.held;
    if (track.after < 0) {
      b_in_[track.first + static_cast<size_t>(track.kb++)] = end;
    } else {
      Depart(track.after, track.edge_after, track.hop_after, end, true);
    }
    ++track.nf;
    return;
  }
  if (op != Op::W) {
    rank.was_forward = false;
    rank.held -= track.held - track.stash;
    if (track.before >= 0) Depart(track.before, track.edge_before, track.hop_before, end, false);
    ++track.nb;
  }
  if (op != Op::B) {
    rank.held -= track.stash;
    ++track.nw;
  }
}

void ListScheduler::Depart(int32_t to, int32_t edge, Time hop, Time made, bool forward) {
  Track& track = tracks_[static_cast<size_t>(to)];
  if (edge >= 0) {
    Time& free = edge_free_[static_cast<size_t>(edge)];
    made = std::max(made, free);
    free = made + occupancy_;
  }
  const Time arrival = made + hop;
  if (forward) {
    f_in_[track.first + static_cast<size_t>(track.kf++)] = arrival;
  } else {
    b_in_[track.first + static_cast<size_t>(track.kb++)] = arrival;
  }
  if (ranks_[static_cast<size_t>(track.rank)].idle && arrival < queue_.time(track.rank)) {
    queue_.Set(track.rank, arrival);
  }
}

Order ListScheduler::TakeOrder() const {
  Order order(ranks_.size());
  for (size_t r = 0; r < ranks_.size(); ++r) {
    const Rank& rank = ranks_[r];
    order[r].reserve(rank.size);
    for (size_t i = rank.first; i < rank.first + rank.size; ++i) {
      const uint16_t code = codes_[i];
      const Track& track = tracks_[static_cast<size_t>(rank.begin + code / 4)];
      order[r].push_back({kCosted[code % 4], track.line, -1});
    }
  }
  return order;
}

}  // namespace contraflow
