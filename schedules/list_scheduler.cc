#include "schedules/list_scheduler.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "compiler/error.h"

namespace contraflow {
namespace {

/// So many lines of a rank are looked at in the time that the rest of a decision takes.
constexpr int kLinesAtOnce = 4;

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
        track.bw = problem.Duration({Op::BW, index}, 0);
      }
      code += 3 * static_cast<size_t>(line.count);
      tracks_.push_back(track);
    }
    rank.end = static_cast<int32_t>(tracks_.size());
    ranks_.push_back(rank);
    looks_ = std::max(looks_, int64_t{rank.end - rank.begin} / kLinesAtOnce);
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
    std::map<int32_t, Claim> claims;
    for (int32_t t = ranks_[r].begin; t < ranks_[r].end; ++t) {
      const Track& track = tracks_[static_cast<size_t>(t)];
      if (track.count == 0) continue;
      Claim& claim = claims.try_emplace(track.route, Claim{t, 0}).first->second;
      claim.held += track.held;
      if (tracks_[static_cast<size_t>(claim.track)].stage < track.stage) claim.track = t;
    }
    for (const auto& [route, claim] : claims) claims_[r].push_back(claim);
  }
}

Time ListScheduler::Duration(Op op, const Track& track) const {
  const size_t index = CostIndex(op);
  if (!scaled_[0].empty()) {
    const int32_t k = op == Op::F ? track.nf : op == Op::W ? track.nw : track.nb;
    return scaled_[index][track.first + static_cast<size_t>(k)];
  }
  return op == Op::F ? track.f : op == Op::B ? track.b : op == Op::W ? track.w : track.bw;
}

void ListScheduler::Reset(const Rules& rules) {
  fused_ = rules.fused;
  end_ = 0;
  started_ = 0;
  total_ = 0;
  given_up_ = false;
  std::fill(edge_free_.begin(), edge_free_.end(), 0);
  for (size_t t = 0; t < tracks_.size(); ++t) {
    Track& track = tracks_[t];
    track.nf = track.nb = track.nw = track.kf = track.kb = 0;
    track.cap_first = rules.ahead_first[static_cast<size_t>(track.line)];
    track.cap = rules.ahead[static_cast<size_t>(track.line)];
    if (track.before < 0) {
      track.kf = track.count;
      std::fill_n(f_in_.begin() + static_cast<ptrdiff_t>(track.first), track.count, 0);
    }
    total_ += (fused_ ? 2 : 3) * int64_t{track.count};
  }
  for (size_t r = 0; r < ranks_.size(); ++r) {
    Rank& rank = ranks_[r];
    rank.size = 0;
    rank.held = 0;
    rank.due = 0;
    rank.last = 0;
    rank.rule = rules.ranks[r];
    rank.idle = true;
    rank.was_forward = false;
    rank.left = 0;
    for (int32_t t = rank.begin; t < rank.end; ++t) {
      const Track& track = tracks_[static_cast<size_t>(t)];
      if (scaled_[0].empty()) {
        rank.left += track.count * (track.f + (fused_ ? track.bw : track.b + track.w));
        continue;
      }
      for (size_t k = track.first; k < track.first + static_cast<size_t>(track.count); ++k) {
        rank.left += scaled_[0][k] + (fused_ ? scaled_[3][k] : scaled_[1][k] + scaled_[2][k]);
      }
    }
  }
  queue_.Reset(ranks_.size());
}

std::optional<Time> ListScheduler::Run(const Rules& rules, Time below) {
  Reset(rules);
  below_ = below;
  while (queue_.first_time() != kNever && !given_up_) Decide(queue_.first(), queue_.first_time());
  return Finish();
}

std::optional<Time> ListScheduler::RunInOrder(const Order& guide, const Rules& rules, Time below) {
  Reset(rules);
  below_ = below;
  guide_.clear();
  std::vector<int32_t> place(tracks_.size());
  for (size_t r = 0; r < ranks_.size(); ++r) {
    Rank& rank = ranks_[r];
    for (int32_t t = rank.begin; t < rank.end; ++t) {
      place[static_cast<size_t>(tracks_[static_cast<size_t>(t)].line)] = t - rank.begin;
    }
    rank.guide = guide_.size();
    for (const Token& token : guide[r]) {
      guide_.push_back(static_cast<uint16_t>(place[static_cast<size_t>(token.line)] * 4 +
                                             static_cast<int32_t>(CostIndex(token.op))));
    }
    rank.guide_end = guide_.size();
  }
  while (queue_.first_time() != kNever && !given_up_) {
    DecideInOrder(queue_.first(), queue_.first_time());
  }
  // Words of ranks that do not go together wait for each other for ever.
  if (started_ < total_) return std::nullopt;
  return Finish();
}

std::optional<Time> ListScheduler::Finish() {
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

/// When a forward or backward arrives that goes before the one that is ready and for which the rule
/// lets that wait, or kNever.
Time ListScheduler::WorthWaiting(const Rank& rank, int32_t ready, Time now, bool forward) const {
  const Track& first = tracks_[static_cast<size_t>(ready)];
  const std::vector<Time>& arrivals = forward ? f_in_ : b_in_;
  const auto next = [forward](const Track& track) { return forward ? track.nf : track.nb; };
  const auto arrival = [&](const Track& track) {
    return arrivals[track.first + static_cast<size_t>(next(track))];
  };
  const Time most = forward ? rank.rule.wait_forward * first.f : rank.rule.wait_backward * first.b;
  const Pick pick = forward ? rank.rule.forward : rank.rule.backward;
  Time until = kNever;
  for (int32_t t = rank.begin; t < rank.end; ++t) {
    const Track& track = tracks_[static_cast<size_t>(t)];
    if (t == ready || next(track) >= (forward ? track.kf : track.kb)) continue;
    const Time when = arrival(track);
    if (when <= now || when >= until || (when - now) * 100 > most) continue;
    if (!Before(pick, track, when, next(track), first, arrival(first), next(first))) continue;
    if (!forward || (Below(track) && Admits(rank, t))) until = when;
  }
  return until;
}

/// The track whose weight gradients are due and hold most, or -1.
int32_t ListScheduler::WeightOf(const Rank& rank) const {
  int64_t most = -1;
  int32_t which = -1;
  for (int32_t t = rank.begin; t < rank.end; ++t) {
    const Track& track = tracks_[static_cast<size_t>(t)];
    if (track.nw == track.nb) continue;
    const int64_t stashed = (track.nb - track.nw) * track.stash;
    if (stashed <= most) continue;
    most = stashed;
    which = t;
  }
  return which;
}

/// Starts a weight gradient if the rank's rule finds the gap up to `next` long enough, or waits.
void ListScheduler::FillOrWait(int r, Time now, int32_t w, Time next) {
  Rank& rank = ranks_[static_cast<size_t>(r)];
  if (w >= 0) {
    const Time length = Duration(Op::W, tracks_[static_cast<size_t>(w)]);
    if (next == kNever || (next - now) * 100 >= rank.rule.fill * length) {
      Start(r, now, Op::W, w);
      return;
    }
  }
  rank.idle = true;
  queue_.Set(r, next);
}

void ListScheduler::Decide(int r, Time now) {
  Rank& rank = ranks_[static_cast<size_t>(r)];
  Time next_f = kNever, next_b = kNever, f_arrival = 0, b_arrival = 0;
  int32_t f = -1, b = -1;
  for (int32_t t = rank.begin; t < rank.end; ++t) {
    const Track& track = tracks_[static_cast<size_t>(t)];
    if (track.nb < track.kb) {
      const Time arrival = b_in_[track.first + static_cast<size_t>(track.nb)];
      if (arrival > now) {
        next_b = std::min(next_b, arrival);
      } else if (b < 0 || Before(rank.rule.backward, track, arrival, track.nb,
                                 tracks_[static_cast<size_t>(b)], b_arrival,
                                 tracks_[static_cast<size_t>(b)].nb)) {
        b = t;
        b_arrival = arrival;
      }
    }
    if (track.nf < track.kf && Below(track) && Admits(rank, t)) {
      const Time arrival = f_in_[track.first + static_cast<size_t>(track.nf)];
      if (arrival > now) {
        next_f = std::min(next_f, arrival);
      } else if (f < 0 || Before(rank.rule.forward, track, arrival, track.nf,
                                 tracks_[static_cast<size_t>(f)], f_arrival,
                                 tracks_[static_cast<size_t>(f)].nf)) {
        f = t;
        f_arrival = arrival;
      }
    }
  }
  if (b < 0 && f >= 0 && rank.rule.wait_forward > 0 && next_f != kNever) {
    const Time until = WorthWaiting(rank, f, now, true);
    if (until != kNever) {
      FillOrWait(r, now, rank.due > 0 ? WeightOf(rank) : -1, std::min(until, next_b));
      return;
    }
  }
  if (b >= 0 && rank.rule.wait_backward > 0 && next_b != kNever) {
    const Time until = WorthWaiting(rank, b, now, false);
    if (until != kNever) {
      FillOrWait(r, now, rank.due > 0 ? WeightOf(rank) : -1, std::min(until, next_f));
      return;
    }
  }
  const int32_t w = rank.due > 0 ? WeightOf(rank) : -1;
  if (rank.due >= rank.rule.most_due) {
    Start(r, now, Op::W, w);
    return;
  }
  const bool full = f >= 0 && rank.held + tracks_[static_cast<size_t>(f)].held > limit_;
  if (full && w < 0) f = -1;
  const bool forward = f >= 0 && (b < 0 || rank.rule.turn == Turn::kForward ||
                                  (rank.rule.turn == Turn::kAlternate && !rank.was_forward));
  if (forward) {
    const Time length = tracks_[static_cast<size_t>(f)].f;
    if (b < 0 && next_b != kNever && (next_b - now) * 100 <= rank.rule.wait * length) {
      FillOrWait(r, now, w, next_b);
    } else if (full) {
      Start(r, now, Op::W, w);
    } else {
      Start(r, now, Op::F, f);
    }
  } else if (b >= 0) {
    Start(r, now, fused_ ? Op::BW : Op::B, b);
  } else {
    FillOrWait(r, now, w, std::min(next_f, next_b));
  }
}

void ListScheduler::DecideInOrder(int r, Time now) {
  Rank& rank = ranks_[static_cast<size_t>(r)];
  const int32_t w = rank.due > 0 ? WeightOf(rank) : -1;
  Time next = kNever;
  if (rank.guide < rank.guide_end) {
    const uint16_t code = guide_[rank.guide];
    const int32_t which = rank.begin + code / 4;
    const Track& track = tracks_[static_cast<size_t>(which)];
    const bool forward = code % 4 == 0;
    const int32_t k = forward ? track.nf : track.nb;
    const bool known = k < (forward ? track.kf : track.kb);
    if (known) next = (forward ? f_in_ : b_in_)[track.first + static_cast<size_t>(k)];
    if (next <= now) {
      const bool full = forward && rank.held + track.held > limit_;
      if (full) {
        if (w < 0) {
          given_up_ = true;
        } else {
          Start(r, now, Op::W, w);
        }
        return;
      }
      ++rank.guide;
      Start(r, now, forward ? Op::F : fused_ ? Op::BW : Op::B, which);
      return;
    }
  }
  FillOrWait(r, now, w, next);
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
  rank.last = end;
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
    ++rank.due;
  }
  if (op != Op::B) {
    rank.held -= track.stash;
    ++track.nw;
    --rank.due;
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

Time ListScheduler::ends() const {
  Time sum = 0;
  for (const Rank& rank : ranks_) sum += rank.last;
  return sum;
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
