// Time is cut into slots of the same length, and an operation is known by the slot in which it
// starts. The slots of an operation are put off against those of the one before it by what that and
// the hop take, so that a way without pairs takes a whole number of them; in a pair an operation is
// taken for up to a slot shorter. What an operation costs is the least for any start within its
// slot. Both only lower the bound. Sums have no more than some millions of terms, so that rounding
// is far below the margin by which prices must refute a makespan (prices.cc).

#include <algorithm>

#include "compiler/bound/payment.h"

namespace contraflow::pricing {
namespace {

class Asking {
 public:
  Asking(const PricedStep& step, Time horizon, Time slot)
      : step_(step), horizon_(horizon), slot_(slot) {}

  Question Ask() {
    Question question;
    question.ranks = static_cast<size_t>(step_.ranks);
    question.slots = static_cast<size_t>((horizon_ + slot_ - 1) / slot_);
    NumberPairs();
    question.pairs = pairs_.size();
    for (size_t r = 0; r < step_.routes.size(); ++r) {
      if (step_.routes[r].microbatches > 0) question.ways.push_back(WayOf(r));
    }
    return question;
  }

 private:
  struct Kind {
    size_t route = 0, stage = 0, back_route = 0, back = 0;
  };

  const PricedStage& At(size_t route, size_t stage) const {
    return step_.routes[route].stages[stage];
  }
  static Time Full(const StageCost& cost) { return std::min(cost.bw, cost.b + cost.w); }
  /// As CostModel::Duration has it.
  static Time OfPair(const StageCost& cost, const StageCost& back) {
    const Time saving = std::min(cost.f + cost.bw - cost.fb, back.f + back.bw - back.fb);
    return std::max({cost.f, back.b, cost.f + back.bw - saving});
  }
  Time OfPair(const Kind& kind) const {
    return OfPair(At(kind.route, kind.stage).cost, At(kind.back_route, kind.back).cost);
  }

  /// Those that are shorter than their parts.
  void NumberPairs() {
    for (size_t route = 0; route < step_.routes.size(); ++route) {
      for (size_t s = 0; s < step_.routes[route].stages.size(); ++s) {
        for (size_t other = 0; other < step_.routes.size(); ++other) {
          for (size_t back = 0; back < step_.routes[other].stages.size(); ++back) {
            const Kind kind = {route, s, other, back};
            const PricedStage &ahead = At(route, s), &behind = At(other, back);
            if (ahead.rank < 0 || ahead.rank != behind.rank) continue;
            if (OfPair(kind) < ahead.cost.f + Full(behind.cost)) pairs_.push_back(kind);
          }
        }
      }
    }
  }

  Offset Place(Time time) const {
    return {static_cast<size_t>(time / slot_),
            static_cast<double>(time % slot_) / static_cast<double>(slot_)};
  }

  /// Of an operation whose slots begin at `offset`, with what follows `hop` later in slots that
  /// begin at `next`.
  Mode ModeOf(Time offset, Time duration, Time hop, Time next) const {
    Mode mode;
    mode.advance = static_cast<size_t>((offset + duration + hop - next) / slot_);
    const Time last = horizon_ - offset - duration;
    mode.starts = last < 0 ? 0 : static_cast<size_t>(last / slot_) + 1;
    mode.end = static_cast<size_t>((offset + duration) / slot_);
    mode.length = static_cast<double>(duration) / static_cast<double>(slot_);
    // A sum is linear between two slots, so the difference is between these and what ends there.
    const Time grid = (offset + duration + slot_ - 1) / slot_ * slot_ - duration;
    for (const Time start : {offset, slot_, grid, offset + slot_}) {
      if (start < offset || start > offset + slot_) continue;
      mode.spans.emplace_back(Place(start), Place(start + duration));
    }
    return mode;
  }

  Visit VisitOf(size_t route, size_t s, bool back, Time offset, Time hop) const {
    const auto& [rank, cost, after] = At(route, s);
    const Time alone = back ? cost.b : cost.f, next = (offset + alone + hop) % slot_;
    Visit visit;
    visit.modes.push_back(ModeOf(offset, alone, hop, next));
    if (rank < 0) {
      visit.modes.back().timed = false;
      return visit;
    }
    visit.rank = static_cast<size_t>(rank);
    visit.share = rank == step_.doubled ? 2 : 1;
    if (back) {
      visit.modes.back().rest = true;
      visit.weight = ModeOf((offset + alone) % slot_, cost.w, 0, 0);
      if (Full(cost) < alone + cost.w) {
        visit.modes.push_back(ModeOf(offset, Full(cost), hop, next));
      }
    }
    for (size_t p = 0; p < pairs_.size(); ++p) {
      const Kind& kind = pairs_[p];
      const bool has = back ? kind.back_route == route && kind.back == s
                            : kind.route == route && kind.stage == s;
      if (!has) continue;
      visit.modes.push_back(ModeOf(offset, OfPair(kind), hop, next));
      visit.modes.back().pair = static_cast<int>(p);
      visit.modes.back().timed = back;
    }
    return visit;
  }

  Way WayOf(size_t route) const {
    Way way = {step_.routes[route].microbatches, {}};
    const size_t stages = step_.routes[route].stages.size();
    Time offset = 0;
    for (size_t o = 0; o < 2 * stages; ++o) {
      const bool back = o >= stages;
      const size_t s = back ? 2 * stages - 1 - o : o;
      Time hop = 0;
      if (back && s > 0) hop = At(route, s - 1).hop;
      if (!back && s + 1 < stages) hop = At(route, s).hop;
      way.visits.push_back(VisitOf(route, s, back, offset, hop));
      const StageCost& cost = At(route, s).cost;
      offset = (offset + (back ? cost.b : cost.f) + hop) % slot_;
    }
    return way;
  }

  const PricedStep& step_;
  const Time horizon_, slot_;
  std::vector<Kind> pairs_;
};

}  // namespace

Question Ask(const PricedStep& step, Time horizon, Time slot) {
  return Asking(step, horizon, slot).Ask();
}

Prices Blank(const Question& question) {
  return {std::vector<double>(question.ranks * question.slots, 0.0),
          std::vector<double>(question.pairs * question.slots, 0.0)};
}

}  // namespace contraflow::pricing
