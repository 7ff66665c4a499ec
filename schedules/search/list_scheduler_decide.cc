// Next step of a rank: which of what has arrived it starts, what memory admits, and what it is
// worth waiting for.

#include <algorithm>

#include "schedules/search/list_scheduler.h"

namespace contraflow {

// A forward takes memory that only the backward of the same micro-batch gives back, so a rank may
// fill up with forwards none of which can ever come back. That cannot happen while all
// micro-batches of all routes have a common order (by number, then by route) in which they could be
// finished one after the other: while on every rank, for the first micro-batch in this order of
// each route that has not run all its forwards there,
//
//     all it takes on the rank + what later ones hold there <= limit.
//
// Memory that earlier ones hold comes back before; weight gradients that are due count as run. A
// forward is started only if this stays true, which needs no look at other ranks.
bool ListScheduler::Admits(const Rank& rank, int32_t which) const {
  if (rank.end - rank.begin == 1) return true;
  const StageState& added = At(which);
  for (const Claim& claim : claims_[static_cast<size_t>(added.rank)]) {
    const StageState& last = At(claim.state);
    const int32_t first = last.nf + (claim.state == which);
    if (first == last.count) continue;
    int64_t sum = claim.held;
    for (int32_t t = rank.begin; t < rank.end; ++t) {
      const StageState& state = At(t);
      const int32_t later = std::max(state.nb, first + (state.route <= last.route));
      const int32_t holding = state.nf + (t == which) - later;
      if (holding > 0) sum += holding * state.memory.activation;
    }
    if (sum > rank.room) return false;
  }
  return true;
}

bool ListScheduler::Before(Pick pick, const StageState& a, Time arrival_a, int32_t next_a,
                           const StageState& b, Time arrival_b, int32_t next_b) const {
  switch (pick) {
    case Pick::kDeep:
      return a.number > b.number;
    case Pick::kShallow:
      return a.number < b.number;
    case Pick::kEarly:
      return arrival_a < arrival_b;
    case Pick::kOld:
      return next_a < next_b;
  }
  return false;
}

/// When a forward or backward arrives that goes before the one that is ready and for which the rule
/// lets that wait, or RankQueue::kNever.
Time ListScheduler::WorthWaiting(const Rank& rank, int32_t ready, Time now, bool forward) const {
  const StageState& first = At(ready);
  const std::vector<Time>& arrivals = forward ? f_in_ : b_in_;
  const auto next = [forward](const StageState& state) { return forward ? state.nf : state.nb; };
  const auto arrival = [&](const StageState& state) {
    return arrivals[state.first + static_cast<size_t>(next(state))];
  };
  const Time most = forward ? rank.rule.wait_forward * first.f : rank.rule.wait_backward * first.b;
  const Pick pick = forward ? rank.rule.forward : rank.rule.backward;
  Time until = RankQueue::kNever;
  for (int32_t t = rank.begin; t < rank.end; ++t) {
    const StageState& state = At(t);
    if (t == ready || next(state) >= (forward ? state.kf : state.kb)) continue;
    const Time when = arrival(state);
    if (when <= now || when >= until || (when - now) * 100 > most) continue;
    if (!Before(pick, state, when, next(state), first, arrival(first), next(first))) continue;
    if (!forward || (Below(state) && Admits(rank, t))) until = when;
  }
  return until;
}

/// The state whose weight gradients are due and hold most, or -1.
int32_t ListScheduler::WeightOf(const Rank& rank) const {
  int64_t most = -1;
  int32_t which = -1;
  for (int32_t t = rank.begin; t < rank.end; ++t) {
    const StageState& state = At(t);
    if (state.nw == state.nb) continue;
    const int64_t stashed = (state.nb - state.nw) * state.memory.stash;
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
    const Time length = Duration(Op::W, At(w));
    if (next == RankQueue::kNever || (next - now) * 100 >= rank.rule.fill * length) {
      Start(r, now, Op::W, w);
      return;
    }
  }
  rank.idle = true;
  queue_.Set(r, next);
}

void ListScheduler::Decide(int r, Time now) {
  Rank& rank = ranks_[static_cast<size_t>(r)];
  Time next_f = RankQueue::kNever, next_b = RankQueue::kNever, f_arrival = 0, b_arrival = 0;
  int32_t f = -1, b = -1;
  // An arrived chunk may be first; of those still to come, the next.
  const auto look = [&](int32_t t, const std::vector<Time>& arrivals, int32_t StageState::*started,
                        Pick pick, int32_t* first, Time* first_arrival, Time* next) {
    const StageState& state = At(t);
    const Time arrival = arrivals[state.first + static_cast<size_t>(state.*started)];
    if (arrival > now) {
      *next = std::min(*next, arrival);
    } else if (*first < 0 || Before(pick, state, arrival, state.*started, At(*first),
                                    *first_arrival, At(*first).*started)) {
      *first = t;
      *first_arrival = arrival;
    }
  };
  for (int32_t t = rank.begin; t < rank.end; ++t) {
    const StageState& state = At(t);
    if (state.nb < state.kb) {
      look(t, b_in_, &StageState::nb, rank.rule.backward, &b, &b_arrival, &next_b);
    }
    if (state.nf < state.kf && Below(state) && Admits(rank, t)) {
      look(t, f_in_, &StageState::nf, rank.rule.forward, &f, &f_arrival, &next_f);
    }
  }
  if (b < 0 && f >= 0 && rank.rule.wait_forward > 0 && next_f != RankQueue::kNever) {
    const Time until = WorthWaiting(rank, f, now, true);
    if (until != RankQueue::kNever) {
      FillOrWait(r, now, rank.due > 0 ? WeightOf(rank) : -1, std::min(until, next_b));
      return;
    }
  }
  if (b >= 0 && rank.rule.wait_backward > 0 && next_b != RankQueue::kNever) {
    const Time until = WorthWaiting(rank, b, now, false);
    if (until != RankQueue::kNever) {
      FillOrWait(r, now, rank.due > 0 ? WeightOf(rank) : -1, std::min(until, next_f));
      return;
    }
  }
  const int32_t w = rank.due > 0 ? WeightOf(rank) : -1;
  if (rank.due >= rank.rule.most_due) {
    Start(r, now, Op::W, w);
    return;
  }
  const bool full = f >= 0 && rank.held + At(f).memory.activation > rank.room;
  if (full && w < 0) f = -1;
  const bool forward = f >= 0 && (b < 0 || rank.rule.turn == Turn::kForward ||
                                  (rank.rule.turn == Turn::kAlternate && !rank.was_forward));
  if (forward) {
    const Time length = At(f).f;
    if (b < 0 && next_b != RankQueue::kNever && (next_b - now) * 100 <= rank.rule.wait * length) {
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

}  // namespace contraflow
