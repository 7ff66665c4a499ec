#include <algorithm>
#include <utility>

#include "schedules/pairs/pairs.h"

namespace contraflow {
namespace {

/// Farthest that an action moves or finds another one.
constexpr size_t kFar = 24, kNear = 4;

class Drawing {
 public:
  Drawing(const ActionList& list, std::mt19937_64* random) : list_(list), random_(random) {}

  std::optional<PairMove> Draw() {
    if (list_.size() < 2) return std::nullopt;
    at_ = Of(list_.size());
    const size_t kind = Of(16);
    if (kind < 9) return Shift();
    if (kind < 12) return Form();
    if (kind < 14) return Split();
    return Weight();
  }

 private:
  size_t Of(size_t count) { return contraflow::Draw(random_, count); }

  /// Another place, mostly near.
  size_t Place() {
    const size_t far = Of(3) == 0 ? kFar : kNear;
    const size_t by = 1 + Of(far);
    if (Of(2) == 0) return at_ >= by ? at_ - by : 0;
    return std::min(list_.size() - 1, at_ + by);
  }

  PairMove Window(size_t low, size_t high) const {
    const auto place = [](size_t i) { return static_cast<std::ptrdiff_t>(i); };
    return {low, high + 1, {list_.begin() + place(low), list_.begin() + place(high) + 1}};
  }

  /// One action to another place.
  std::optional<PairMove> Shift() {
    const size_t to = Place();
    if (to == at_) return std::nullopt;
    PairMove move = Window(std::min(at_, to), std::max(at_, to));
    ActionList& piece = move.piece;
    if (to > at_) {
      std::rotate(piece.begin(), piece.begin() + 1, piece.end());
    } else {
      std::rotate(piece.begin(), piece.end() - 1, piece.end());
    }
    if (piece.front() == list_[move.from] && piece.back() == list_[move.to - 1] &&
        piece.size() == 2) {
      return std::nullopt;
    }
    return move;
  }

  /// The nearest action in one direction, within reach, for which `is` holds.
  template <typename Is>
  std::optional<size_t> Find(size_t from, bool ahead, size_t reach, const Is& is) const {
    for (size_t by = 1; by <= reach; ++by) {
      if (!ahead && by > from) break;
      const size_t i = ahead ? from + by : from - by;
      if (i >= list_.size()) break;
      if (is(list_[i])) return i;
    }
    return std::nullopt;
  }

  /// A forward and a backward become a pair at the place of either.
  std::optional<PairMove> Form() {
    const Action& action = list_[at_];
    const bool forward = action.op == Op::F;
    if (!forward && action.op != Op::BW && action.op != Op::B) return std::nullopt;
    const size_t reach = 1 + Of(kFar);
    const auto other = Find(at_, Of(2) == 0, reach, [&](const Action& t) {
      return forward ? t.op == Op::BW || t.op == Op::B : t.op == Op::F;
    });
    if (!other) return std::nullopt;
    const size_t f = forward ? at_ : *other, b = forward ? *other : at_;
    size_t low = std::min(f, b), high = std::max(f, b);
    std::optional<size_t> w;
    if (list_[b].op == Op::B) {
      w = WeightOf(b);
      if (!w) return std::nullopt;
      high = std::max(high, *w);
    }
    const size_t place = Of(2) == 0 ? f : b;
    PairMove move = {low, high + 1, {}};
    for (size_t i = low; i <= high; ++i) {
      if (i == place) {
        move.piece.push_back({Op::FB, list_[f].stage, list_[b].stage});
      } else if (i != f && i != b && (!w || i != *w)) {
        move.piece.push_back(list_[i]);
      }
    }
    return move;
  }

  /// The W of a B: as many weight gradients of its stage wait before it as come between them.
  std::optional<size_t> WeightOf(size_t b) const {
    const int32_t stage = list_[b].stage;
    int waiting = 0;
    for (size_t i = 0; i < b; ++i) {
      if (list_[i].stage == stage) waiting += (list_[i].op == Op::B) - (list_[i].op == Op::W);
    }
    for (size_t i = b + 1; i < list_.size(); ++i) {
      if (list_[i].op != Op::W || list_[i].stage != stage) continue;
      if (waiting-- == 0) return i;
    }
    return std::nullopt;
  }

  /// A pair becomes a forward and a backward; one of them may move away.
  std::optional<PairMove> Split() {
    const Action& action = list_[at_];
    if (action.op != Op::FB) return std::nullopt;
    const Action f = {Op::F, action.stage};
    ActionList back = {{Op::BW, action.back}};
    if (Of(2) == 0) back = {{Op::B, action.back}, {Op::W, action.back}};
    size_t low = at_, high = at_;
    const bool away = Of(2) == 0;
    if (away) {
      const size_t to = Place();
      low = std::min(at_, to);
      high = std::max(at_, to);
    }
    PairMove move = {low, high + 1, {}};
    ActionList& piece = move.piece;
    const bool f_moves = Of(2) == 0;
    // [low, high] with at_ at one end: what moves goes to the other.
    const auto put = [&](bool forward) {
      if (forward) {
        piece.push_back(f);
      } else {
        piece.insert(piece.end(), back.begin(), back.end());
      }
    };
    put(f_moves != (at_ == low));
    for (size_t i = low; i <= high; ++i) {
      if (i != at_) piece.push_back(list_[i]);
    }
    put(f_moves == (at_ == low));
    return move;
  }

  /// Splits BW into B and a later W, or joins B and W.
  std::optional<PairMove> Weight() {
    const Action& action = list_[at_];
    if (action.op == Op::BW) {
      const size_t high = std::min(list_.size() - 1, at_ + Of(kFar));
      PairMove move = Window(at_, high);
      move.piece.front().op = Op::B;
      move.piece.push_back({Op::W, action.stage});
      return move;
    }
    if (action.op != Op::B) return Shift();
    const auto w = WeightOf(at_);
    if (!w) return std::nullopt;
    PairMove move = Window(at_, *w);
    move.piece.pop_back();
    move.piece.front().op = Op::BW;
    if (Of(2) == 0) std::rotate(move.piece.begin(), move.piece.begin() + 1, move.piece.end());
    return move;
  }

  const ActionList& list_;
  std::mt19937_64* random_;
  size_t at_ = 0;
};

}  // namespace

std::optional<PairMove> DrawMove(const ActionList& list, std::mt19937_64* random) {
  return Drawing(list, random).Draw();
}

}  // namespace contraflow
