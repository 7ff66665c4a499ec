#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <string>

#include "compiler/files/json.h"
#include "compiler/plan/error.h"
#include "compiler/plan/plan.h"
#include "tools/profile/samples.h"

// The timers add up what a rank took for all micro-batches and chunks of a step, in milliseconds:
//
//   times across ranks (ms):                (min, max) time across ranks (ms):
//     forward-compute:                          forward-compute ......: (98.10, 103.20)
//        rank  0: 103.20
//
// or "forward-compute: rank 0: 103.20", each rank in a line of its own,
// or "max time across ranks (ms):" with one number, or "time (ms) | forward-compute: 103.20 | ..".
// Receives have timers of their own.

namespace contraflow {
namespace {

constexpr double kMostMilliseconds = 24 * 3600e3;
constexpr int kMostLogRanks = 1 << 20;

std::string_view TrimDots(std::string_view text) {
  while (text.starts_with(' ') || text.starts_with('.')) text.remove_prefix(1);
  while (text.ends_with(' ') || text.ends_with('\r')) text.remove_suffix(1);
  return text;
}

/// The number at the front, and what follows it.
std::optional<double> TakeReal(std::string_view* text) {
  *text = TrimDots(*text);
  double value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc()) return std::nullopt;
  text->remove_prefix(static_cast<size_t>(end - text->data()));
  return value;
}

class TimerLog {
 public:
  TimerLog(const std::string& place, const LogShape& shape) : shape_(shape) { file_.place = place; }

  void Take(std::string_view line) {
    ++line_;
    for (const auto& [timer, op] : {std::pair<std::string_view, Op>("forward-compute", Op::F),
                                    std::pair<std::string_view, Op>("backward-compute", Op::BW)}) {
      size_t at = line.find(timer);
      if (at == std::string_view::npos) continue;
      std::string_view rest = TrimDots(line.substr(at + timer.size()));
      if (!rest.starts_with(':')) continue;
      rest = TrimDots(rest.substr(1));
      if (rest.empty()) {
        Begin(op);
        return;
      }
      current_.reset();
      if (TakeRank(op, rest)) return;
      TakeAll(op, rest);
      // The old form has all timers in one line.
      if (op == Op::BW) return;
    }
    if (!current_) return;
    const size_t at = line.find("rank");
    if (at == std::string_view::npos) {
      // Another timer, or whatever the job prints between.
      if (TrimDots(line).ends_with(':')) current_.reset();
      return;
    }
    if (const auto rank = RankIn(line.substr(at))) Add(*current_, rank->first, rank->second, line);
  }

  FileSamples Finish() {
    if (times_.empty()) {
      throw Error(file_.place +
                  ": has no timers \"forward-compute\" and \"backward-compute\"; log them with "
                  "--timing-log-level 2 --timing-log-option all");
    }
    if (shape_.microbatches < 1) {
      throw Error(file_.place +
                  ": the timers add up the micro-batches of a step; say with `microbatches` how "
                  "many there are (and with `chunks` how many stages a rank has), or give `plan`");
    }
    const int most = times_.rbegin()->first.rank;
    const int ranks = shape_.ranks > 0 ? shape_.ranks : most + 1;
    // The pipeline's ranks are the slowest to change: those of one stage stand together.
    if (most >= 0 && (most + 1) % ranks != 0) {
      throw Error(file_.place + ": the log has " + std::to_string(most + 1) +
                  " ranks, which is no multiple of `ranks` " + std::to_string(ranks));
    }
    const int group = std::max(1, (most + 1) / std::max(1, ranks));
    const double parts = static_cast<double>(shape_.microbatches) * shape_.chunks;
    for (const auto& [key, time] : times_) {
      for (int chunk = 0; chunk < (key.rank < 0 ? 1 : shape_.chunks); ++chunk) {
        Sample sample{.what = {}, .time = time * 1000 / parts, .step = key.step};
        sample.what.op = key.op;
        sample.what.stage = key.rank < 0 ? -1 : key.rank / group + chunk * ranks;
        if (sample.what.stage >= kMaxStages) throw Error(file_.place + ": has too many stages");
        file_.samples.push_back(sample);
      }
    }
    if (shape_.chunks > 1) {
      file_.notes.push_back(
          "the timers do not tell the stages of a rank apart: all are taken as alike");
    }
    if (most < 0) {
      file_.notes.push_back(
          "the log has no time of each rank: the longest is taken for every stage; "
          "--timing-log-option all has them");
    }
    return std::move(file_);
  }

 private:
  /// "rank  0: 103.20"; nothing for what is no rank.
  std::optional<std::pair<int, double>> RankIn(std::string_view line) const {
    std::string_view rest = line.substr(4);
    const std::optional<double> rank = TakeReal(&rest);
    if (!rank || !rest.starts_with(':')) return std::nullopt;
    rest.remove_prefix(1);
    if (*rank < 0 || *rank >= kMostLogRanks || *rank != std::floor(*rank)) Fail("no rank", line);
    const std::optional<double> time = TakeReal(&rest);
    if (!time) Fail("must be a time in milliseconds", line);
    return std::pair(static_cast<int>(*rank), *time);
  }

  /// A rank after its timer. A step begins with a rank that is no higher than the one before.
  bool TakeRank(Op op, std::string_view rest) {
    if (!rest.starts_with("rank")) return false;
    const auto rank = RankIn(rest);
    if (!rank) return false;
    const auto [last, first] = last_rank_.try_emplace(op, rank->first);
    if (first || rank->first <= last->second) {
      Begin(op);
      current_.reset();
    }
    last->second = rank->first;
    Add(op, rank->first, rank->second, rest);
    return true;
  }

  struct Key {
    int rank;
    Op op;
    int step;
    auto operator<=>(const Key&) const = default;
  };

  [[noreturn]] void Fail(const std::string& what, std::string_view line) const {
    throw Error(file_.place + ":" + std::to_string(line_) + ": " + what + ": " +
                Excerpt(TrimDots(line)));
  }

  void Begin(Op op) {
    current_ = op;
    ++steps_[op];
  }

  /// "(98.10, 103.20)" or "103.20 | ..."
  void TakeAll(Op op, std::string_view rest) {
    const std::string_view line = rest;
    Begin(op);
    current_.reset();
    std::optional<double> time;
    if (rest.starts_with('(')) {
      rest.remove_prefix(1);
      time = TakeReal(&rest);
      if (time && rest.starts_with(',')) {
        rest.remove_prefix(1);
        time = TakeReal(&rest);
      }
    } else {
      time = TakeReal(&rest);
    }
    if (!time) Fail("must be a time in milliseconds", line);
    Add(op, -1, *time, line);
  }

  void Add(Op op, int rank, double time, std::string_view line) {
    if (!(time >= 0 && time <= kMostMilliseconds))
      Fail("must be a time in milliseconds, up to a day", line);
    times_[{rank, op, steps_[op] - 1}] = time;
  }

  const LogShape shape_;
  FileSamples file_;
  std::optional<Op> current_;
  std::map<Op, int> steps_, last_rank_;
  std::map<Key, double> times_;
  size_t line_ = 0;
};

}  // namespace

FileSamples ReadMegatronSamples(std::string_view text, const std::string& place,
                                const LogShape& shape) {
  TimerLog log(place, shape);
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    log.Take(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return log.Finish();
}

}  // namespace contraflow
