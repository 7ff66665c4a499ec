#include "schedules/search/list_scheduler.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "compiler/plan/error.h"

namespace contraflow {
namespace {

/// So many stages of a rank are looked at in the time that the rest of a decision takes.
constexpr int kStagesAtOnce = 4;

constexpr Time kNever = RankQueue::kNever;

}  // namespace

ListScheduler::ListScheduler(const SearchProblem& problem) {
  latency_ = problem.costs.comm.latency;
  std::vector<int32_t> state_of(problem.stages.size());
  int32_t next = 0;
  for (const std::vector<int>& here : problem.stages_of) {
    CF_ASSERT(here.size() < (1 << 14));
    for (const int stage : here) state_of[static_cast<size_t>(stage)] = next++;
  }
  size_t code = 0;
  for (const std::vector<int>& here : problem.stages_of) {
    Rank rank;
    rank.room = problem.Room(ranks_.size());
    rank.begin = static_cast<int32_t>(states_.size());
    rank.first = code;
    for (const int index : here) {
      const RouteStage& stage = problem.stage(index);
      StageState state;
      state.stage = index;
      state.rank = stage.rank;
      state.route = stage.route;
      state.number = stage.number;
      state.count = stage.count;
      state.first = stage.first;
      state.memory = stage.memory;
      if (stage.before >= 0) {
        state.before = state_of[static_cast<size_t>(stage.before)];
        state.edge_before = stage.edge_before;
        state.hop_before = stage.hop;
      }
      if (stage.after >= 0) {
        state.after = state_of[static_cast<size_t>(stage.after)];
        state.edge_after = stage.edge_after;
        state.hop_after = problem.stage(stage.after).hop;
      }
      if (stage.count > 0) {
        state.f = problem.Duration({Op::F, index}, 0);
        state.b = problem.Duration({Op::B, index}, 0);
        state.w = problem.Duration({Op::W, index}, 0);
        state.bw = problem.Duration({Op::BW, index}, 0);
      }
      code += 3 * static_cast<size_t>(stage.count);
      states_.push_back(state);
    }
    rank.end = static_cast<int32_t>(states_.size());
    ranks_.push_back(rank);
    looks_ = std::max(looks_, int64_t{rank.end - rank.begin} / kStagesAtOnce);
  }
  if (!problem.alike()) scaled_ = problem.ChunkDurations();
  const auto chunks = static_cast<size_t>(problem.chunks());
  codes_.resize(code);
  f_in_.resize(chunks);
  b_in_.resize(chunks);
  edge_free_.resize(problem.edges);
  claims_.resize(ranks_.size());
  for (size_t r = 0; r < ranks_.size(); ++r) {
    std::map<int32_t, Claim> claims;
    for (int32_t t = ranks_[r].begin; t < ranks_[r].end; ++t) {
      const StageState& state = At(t);
      if (state.count == 0) continue;
      Claim& claim = claims.try_emplace(state.route, Claim{t, 0}).first->second;
      claim.held += state.memory.activation;
      if (At(claim.state).number < state.number) claim.state = t;
    }
    for (const auto& [route, claim] : claims) claims_[r].push_back(claim);
  }
}

Time ListScheduler::Duration(Op op, const StageState& state) const {
  const size_t index = CostIndex(op);
  if (!scaled_[0].empty()) {
    const int32_t k = op == Op::F ? state.nf : op == Op::W ? state.nw : state.nb;
    return scaled_[index][state.first + static_cast<size_t>(k)];
  }
  return op == Op::F ? state.f : op == Op::B ? state.b : op == Op::W ? state.w : state.bw;
}

void ListScheduler::Reset(const Rules& rules) {
  fused_ = rules.fused;
  end_ = 0;
  started_ = 0;
  total_ = 0;
  given_up_ = false;
  std::fill(edge_free_.begin(), edge_free_.end(), 0);
  for (size_t t = 0; t < states_.size(); ++t) {
    StageState& state = states_[t];
    state.nf = state.nb = state.nw = state.kf = state.kb = 0;
    state.cap_first = rules.ahead_first[static_cast<size_t>(state.stage)];
    state.cap = rules.ahead[static_cast<size_t>(state.stage)];
    if (state.before < 0) {
      state.kf = state.count;
      std::fill_n(f_in_.begin() + static_cast<ptrdiff_t>(state.first), state.count, 0);
    }
    total_ += (fused_ ? 2 : 3) * int64_t{state.count};
  }
  for (size_t r = 0; r < ranks_.size(); ++r) {
    Rank& rank = ranks_[r];
    rank = {.begin = rank.begin,
            .end = rank.end,
            .first = rank.first,
            .room = rank.room,
            .rule = rules.ranks[r]};
    for (int32_t t = rank.begin; t < rank.end; ++t) {
      const StageState& state = At(t);
      if (scaled_[0].empty()) {
        rank.left += state.count * (state.f + (fused_ ? state.bw : state.b + state.w));
        continue;
      }
      for (size_t k = state.first; k < state.first + static_cast<size_t>(state.count); ++k) {
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
  if (given_up_) return std::nullopt;
  CF_ASSERT(started_ == total_);
  return end_;
}

void ListScheduler::Start(int r, Time now, Op op, int32_t which) {
  Rank& rank = ranks_[static_cast<size_t>(r)];
  StageState& state = At(which);
  const Time duration = Duration(op, state);
  const Time end = now + duration;
  codes_[rank.first + rank.size++] =
      static_cast<uint16_t>((which - rank.begin) * 4 + static_cast<int32_t>(CostIndex(op)));
  ++started_;
  rank.left -= duration;
  rank.last = end;
  end_ = std::max(end_, end);
  if (end + rank.left >= below_) given_up_ = true;
  rank.idle = false;
  rank.held += Taken(op, state.memory) - Given(op, state.memory, state.memory);
  queue_.Set(r, end);
  if (op == Op::F) {
    rank.was_forward = true;
    if (state.after < 0) {
      b_in_[state.first + static_cast<size_t>(state.kb++)] = end;
    } else {
      Depart(state.after, state.edge_after, state.hop_after, end, true);
    }
    ++state.nf;
    return;
  }
  if (op != Op::W) {
    rank.was_forward = false;
    if (state.before >= 0) Depart(state.before, state.edge_before, state.hop_before, end, false);
    ++state.nb;
    ++rank.due;
  }
  if (op != Op::B) {
    ++state.nw;
    --rank.due;
  }
}

void ListScheduler::Depart(int32_t to, int32_t edge, Time hop, Time made, bool forward) {
  StageState& state = At(to);
  if (edge >= 0) {
    Time& free = edge_free_[static_cast<size_t>(edge)];
    made = std::max(made, free);
    free = made + hop - latency_;
  }
  const Time arrival = made + hop;
  if (forward) {
    f_in_[state.first + static_cast<size_t>(state.kf++)] = arrival;
  } else {
    b_in_[state.first + static_cast<size_t>(state.kb++)] = arrival;
  }
  if (ranks_[static_cast<size_t>(state.rank)].idle && arrival < queue_.time(state.rank)) {
    queue_.Set(state.rank, arrival);
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
      const StageState& state = At(rank.begin + code / 4);
      order[r].push_back({kCosted[code % 4], state.stage, -1});
    }
  }
  return order;
}

}  // namespace contraflow
