#include <algorithm>
#include <cmath>
#include <functional>
#include <tuple>
#include <utility>

#include "compiler/files/cost_io.h"
#include "compiler/files/json.h"
#include "compiler/plan/error.h"
#include "compiler/plan/text.h"
#include "tools/profile/sample_groups.h"

namespace contraflow {
namespace {

/// A receiver that comes so much later than the message leaves found it under way. Microseconds.
constexpr double kMostLate = 1;

Time TicksOf(double us) {
  const double ticks = std::clamp(us, 0.0, 1e12) * 1000;
  return std::min<Time>(std::llround(ticks), kMaxCost / 4);
}

std::string Lowered(std::string_view name) {
  std::string text;
  for (const char c : name) text += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return text;
}

class CostMaker {
 public:
  CostMaker(const std::vector<FileSamples>& files, const ProfileOptions& options)
      : files_(files),
        options_(options),
        groups_(GroupSamples(files, options, &result_)),
        stages_(groups_.stages) {}

  ProfiledCosts Make() {
    MakeRows();
    CostModel& costs = result_.costs;
    costs.unit = Unit::kMicroseconds;
    const bool chunks = std::any_of(groups_.of.begin(), groups_.of.end(), [](const auto& entry) {
      return WorkOf(entry.first.op) == Work::kCompute && entry.first.op != Op::R;
    });
    const bool components = std::any_of(
        groups_.of.begin(), groups_.of.end(),
        [](const auto& entry) { return OperandsOf(entry.first.op) == Operands::kLayer; });
    if (!chunks && !components) FailEmpty();
    if (chunks) {
      MakeStages();
    } else {
      MakeComponents();
    }
    MakeMessages();
    if (options_.plan && options_.plan->costs) TakeFromPlan(*options_.plan->costs);
    MakeReduceBlocks();
    costs.source = std::string("contraflow profile: ") + (options_.mean ? "means" : "medians") +
                   " of " + std::to_string(counted_) + " samples from " +
                   std::to_string(files_.size()) + (files_.size() == 1 ? " file" : " files");
    return std::move(result_);
  }

 private:
  void Note(const std::string& text) { AddNote(text, &result_); }

  [[noreturn]] void FailEmpty() const {
    std::string names;
    int shown = 0;
    for (const auto& [name, count] : result_.unmapped) {
      if (++shown > 5) break;
      names += (names.empty() ? "" : ", ") + Excerpt(name);
    }
    throw Error((files_.size() == 1 ? files_.front().place : "the files") +
                ": nothing was timed that costs are made of, such as PP:0F3, Forward 3, attn(F) or "
                "F s0 m3" +
                (names.empty() ? "" : "; ranges there are " + names) +
                "; PyTorch's runtime of schedules (_PipelineScheduleRuntime) names its actions");
  }

  void MakeRows() {
    for (auto& [key, group] : groups_.of) {
      std::sort(group.times.begin(), group.times.end());
      const bool layer = OperandsOf(key.op) == Operands::kLayer;
      std::string what = IsMessage(key.op) ? "message"
                         : layer           ? Lowered(Name(key.op))
                                           : std::string(Name(key.op));
      if (key.layer >= 0) what += " l" + std::to_string(key.layer);
      if (key.back_stage >= 0 && key.back_stage != key.stage) {
        what += " + s" + std::to_string(key.back_stage);
      }
      AddRow(what, key.stage, group.times, group.warmup);
    }
  }

  void AddRow(const std::string& what, int stage, const std::vector<double>& sorted,
              int64_t warmup) {
    counted_ += static_cast<int64_t>(sorted.size());
    result_.rows.push_back({.what = what,
                            .stage = stage,
                            .samples = static_cast<int64_t>(sorted.size()),
                            .warmup = warmup,
                            .low = QuantileOf(sorted, 0.25),
                            .median = QuantileOf(sorted, 0.5),
                            .high = QuantileOf(sorted, 0.75)});
  }

  double Typical(const std::vector<double>& times) const { return TypicalOf(times, options_.mean); }

  std::optional<double> Timed(Op op, int stage) const {
    const auto found = groups_.of.find({op, stage, -1, -1});
    if (found == groups_.of.end()) return std::nullopt;
    return Typical(found->second.times);
  }

  /// A stage's full backward and its parts, as far as they were timed.
  struct Backward {
    std::optional<double> b, w, bw;
    bool any() const { return b || w || bw; }
  };

  void Complete(Backward* back, bool* divided) const {
    if (!back->bw && back->b && back->w) back->bw = *back->b + *back->w;
    if (!back->bw) return;
    if (!back->b && !back->w) {
      back->b = *back->bw * options_.split;
      *divided = true;
    }
    if (!back->b) back->b = std::max(0.0, *back->bw - *back->w);
    if (!back->w) back->w = std::max(0.0, *back->bw - *back->b);
  }

  void MakeStages() {
    const bool alike = stages_ == 0;  // all that was timed is of every stage
    const int stages = alike ? 1 : stages_;
    std::vector<std::optional<double>> f(static_cast<size_t>(stages));
    std::vector<Backward> back(static_cast<size_t>(stages));
    bool divided = false;
    for (int s = 0; s < stages; ++s) {
      const auto i = static_cast<size_t>(s);
      const int named = alike ? -1 : s;
      f[i] = Timed(Op::F, named);
      back[i] = {Timed(Op::B, named), Timed(Op::W, named), Timed(Op::BW, named)};
      Complete(&back[i], &divided);
    }
    if (divided) {
      Note("b and w were not timed apart: b is " + FormatReal(options_.split) + " of bw (--split)");
    }
    Fill(&f, "F");
    std::vector<std::optional<double>> b, w, bw;
    for (const Backward& of_stage : back) {
      b.push_back(of_stage.b);
      w.push_back(of_stage.w);
      bw.push_back(of_stage.bw);
    }
    Fill(&bw, "backward (B and W, or BW)");
    // A chunk that has no bw has neither of its parts, and was named.
    Fill(&b, "");
    Fill(&w, "");
    const std::vector<double> saved = Savings(f, bw);
    for (int s = 0; s < stages; ++s) {
      const auto i = static_cast<size_t>(s);
      const int named = alike ? -1 : s;
      StageCost cost;
      cost.f = TicksOf(*f[i]);
      cost.b = TicksOf(*b[i]);
      cost.w = TicksOf(*w[i]);
      cost.bw = back[i].b && back[i].w && !Timed(Op::BW, named) ? cost.b + cost.w : TicksOf(*bw[i]);
      cost.fb = cost.f + cost.bw;
      if (!saved.empty()) cost.fb = TicksOf(*f[i] + *bw[i] - saved[i]);
      Clamp(s, &cost);
      if (const auto reduce = Timed(Op::REDUCE, named)) cost.reduce = TicksOf(*reduce);
      if (const auto step = Timed(Op::STEP, named)) cost.step = TicksOf(*step);
      if (const auto again = Timed(Op::R, named)) cost.r = TicksOf(*again);
      result_.costs.stages.push_back(cost);
    }
  }

  /// A figure that was not timed becomes the median of the other stages'.
  void Fill(std::vector<std::optional<double>>* figures, const std::string& what) {
    std::vector<double> known;
    std::vector<int> missing;
    for (size_t s = 0; s < figures->size(); ++s) {
      if ((*figures)[s]) {
        known.push_back(*(*figures)[s]);
      } else {
        missing.push_back(static_cast<int>(s));
      }
    }
    if (known.empty()) {
      throw Error((files_.size() == 1 ? files_.front().place : "the files") + ": no " + what +
                  " was timed alone, and costs need it");
    }
    if (missing.empty()) return;
    const double median = TypicalOf(std::move(known), false);
    for (auto& figure : *figures) figure = figure.value_or(median);
    if (what.empty()) return;
    Note((missing.size() == 1 ? "stage " : "stages ") + ListOf(missing) + ": no " + what +
         " was timed; taken as the median of the other stages");
  }

  /// Saving of an overlapped pair over its parts, of each stage; empty if there were no pairs.
  std::vector<double> Savings(const std::vector<std::optional<double>>& f,
                              const std::vector<std::optional<double>>& bw) {
    std::vector<std::vector<double>> of_stage(f.size());
    bool any = false;
    for (const auto& [key, group] : groups_.of) {
      if (key.op != Op::FB) continue;
      const auto s = static_cast<size_t>(std::max(0, key.stage));
      const auto t = static_cast<size_t>(std::max(0, key.back_stage));
      const double saving = *f[s] + *bw[t] - Typical(group.times);
      of_stage[s].push_back(saving);
      if (t != s) of_stage[t].push_back(saving);
      any = true;
    }
    std::vector<double> savings;
    for (size_t s = 0; any && s < f.size(); ++s) {
      savings.push_back(of_stage[s].empty() ? 0 : Typical(of_stage[s]));
    }
    return savings;
  }

  /// Mends them like noisy costs of a file, however far they are off: both are measured.
  void Clamp(int stage, StageCost* cost) {
    const Time part = std::max(cost->b, cost->w);
    const Time longest = std::max(cost->f, part);
    if (cost->bw >= part && cost->fb >= longest) return;
    const bool apart = cost->fb == cost->f + cost->bw;
    Note("stage " + std::to_string(stage) + ": " +
         (cost->bw < part ? "bw is shorter than b or w" : "fb is shorter than f, b or w") +
         ", and taken as the longest of them");
    cost->bw = std::max(cost->bw, part);
    cost->fb = apart ? cost->f + cost->bw : std::max(cost->fb, longest);
  }

  void MakeComponents() {
    MoeCost moe;
    int named = 0;
    for (const auto& [key, group] : groups_.of) named = std::max(named, key.layer + 1);
    moe.layers_per_stage = named > 0 ? named : groups_.layers;
    if (options_.plan && options_.plan->layers > 0) moe.layers_per_stage = options_.plan->layers;
    if (moe.layers_per_stage < 1) {
      moe.layers_per_stage = 1;
      Note("the profile does not say how many layers a stage has: \"layers_per_stage\" is 1");
    }
    moe.layers_per_stage = std::min(moe.layers_per_stage, kMaxLayers);
    for (const ComponentCost& component : kComponentCosts) {
      std::vector<double> all;
      std::vector<Time>& times = moe.*component.times;
      bool each = named > 0;
      for (int layer = -1; layer < named; ++layer) {
        const auto group = groups_.of.find({component.op, -1, -1, layer});
        if (group == groups_.of.end()) {
          each = each && layer < 0;
          continue;
        }
        all.insert(all.end(), group->second.times.begin(), group->second.times.end());
        times.push_back(TicksOf(Typical(group->second.times)));
      }
      if (all.empty()) {
        throw Error(std::string("no ") + Lowered(Name(component.op)) +
                    " was timed, and costs by component need all ten");
      }
      if (!each || times.size() != static_cast<size_t>(moe.layers_per_stage)) {
        times = {TicksOf(Typical(all))};
      }
    }
    result_.costs.moe = std::move(moe);
  }

  /// Delays of those messages that found their receiver waiting, forward or backward.
  std::vector<double> Delays(bool forward) const {
    using Key = std::tuple<int, int, int>;  // stage that takes it, micro-batch, step
    std::map<Key, double> sends;
    std::vector<double> delays;
    const auto each = [&](Op op, const std::function<void(const MessageEnd&)>& take) {
      for (const FileSamples& file : files_) {
        const int warmup = WarmupOf(file, options_);
        for (const MessageEnd& end : file.messages) {
          if (end.what.op == op && end.step >= warmup) take(end);
        }
      }
    };
    each(forward ? Op::SEND_F : Op::SEND_B, [&](const MessageEnd& end) {
      sends.emplace(Key(end.what.stage + (forward ? 1 : -1), end.what.microbatch, end.step),
                    end.start);
    });
    each(forward ? Op::RECV_F : Op::RECV_B, [&](const MessageEnd& end) {
      const auto send = sends.find(Key(end.what.stage, end.what.microbatch, end.step));
      if (send == sends.end()) return;
      const double late = end.start - send->second, delay = end.end - send->second;
      // One that waited ends with its message; in a run's own trace none begins before its SEND.
      if (late > 0 ? late > std::min(kMostLate, delay / 2) : late < 0 && end.end <= end.start) {
        return;
      }
      delays.push_back(delay);
    });
    std::sort(delays.begin(), delays.end());
    return delays;
  }

  void MakeMessages() {
    const auto given = groups_.of.find({Op::SEND_F, -1, -1, -1});
    std::optional<double> time;
    if (given != groups_.of.end()) time = Typical(given->second.times);
    std::vector<double> transfers;
    for (const FileSamples& file : files_) {
      transfers.insert(transfers.end(), file.transfers.begin(), file.transfers.end());
    }
    if (!time) {
      // The offset of two hosts' clocks cancels over both directions.
      double sum = 0;
      int directions = 0;
      for (const bool forward : {true, false}) {
        const std::vector<double> delays = Delays(forward);
        if (delays.empty()) continue;
        AddRow(forward ? "message, forward" : "message, backward", -1, delays, 0);
        // A busy host only makes them longer.
        sum += QuantileOf(delays, 0.25);
        ++directions;
      }
      if (directions > 0) time = std::max(0.0, sum / directions);
    }
    if (!time && !transfers.empty()) {
      std::sort(transfers.begin(), transfers.end());
      AddRow("message", -1, transfers, 0);
      time = QuantileOf(transfers, 0.25);
      Note(
          "a message is the lower quartile of the device's transfers, which also wait for the "
          "other side");
    }
    if (time) {
      result_.costs.comm.latency = TicksOf(*time);
    } else if (!options_.plan || !options_.plan->costs) {
      Note("no message could be timed: \"comm\" is 0");
    } else {
      Note("no message could be timed: \"comm\" is that of the plan");
    }
    timed_messages_ = time.has_value();
  }

  /// After TakeFromPlan: what was seen counts.
  void MakeReduceBlocks() {
    std::optional<bool> blocks;
    for (const FileSamples& file : files_) {
      if (file.reduce_blocks) blocks = blocks.value_or(true) && *file.reduce_blocks;
    }
    if (!blocks) return;
    result_.costs.comm.reduce_blocks = *blocks;
    if (*blocks) Note("nothing was computed during a REDUCE: it blocks its rank (reduce_blocks)");
  }

  void TakeFromPlan(const CostModel& known) {
    CostModel& costs = result_.costs;
    costs.memory = known.memory;
    costs.host = known.host;
    costs.ranks = known.ranks;
    for (RankCost& rank : costs.ranks) rank.speed = 1;
    if (!timed_messages_ && known.unit != Unit::kUnit) {
      costs.comm = {.latency = known.comm.latency + known.comm.occupancy};
    }
    costs.comm.reduce_blocks = known.comm.reduce_blocks;
    costs.comm.bytes = known.comm.bytes;
  }

  const std::vector<FileSamples>& files_;
  const ProfileOptions& options_;
  ProfiledCosts result_;
  SampleGroups groups_;
  const int stages_;
  int64_t counted_ = 0;
  bool timed_messages_ = false;
};

}  // namespace

ProfiledCosts CostsOfSamples(const std::vector<FileSamples>& files, const ProfileOptions& options) {
  return CostMaker(files, options).Make();
}

}  // namespace contraflow
