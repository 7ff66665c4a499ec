#include "schedules/search/list_scheduler.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "compiler/plan/error.h"

namespace contraflow {
namespace {

/// So many lines of a rank are looked at in the time that the rest of a decision takes.
constexpr int kLinesAtOnce = 4;

constexpr Time kNever = RankQueue::kNever;
constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max() / 2;

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
