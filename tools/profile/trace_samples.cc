#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "compiler/plan/plan.h"
#include "tools/profile/chrome_trace.h"
#include "tools/profile/samples.h"

// A host range of PyTorch covers what the host does: it launches work for a device, and waits for
// receives. It stands for the span of the device's work that was launched in it; without a device,
// for the range less the time up to the end of the receive that it waited for.

namespace contraflow {
namespace {

/// Length of an instruction of no time as it is drawn, a nanosecond. Microseconds.
constexpr double kDrawn = 1.5e-3;

struct Interval {
  double start = 0, end = 0;
};

/// A host range with a name.
struct Range {
  std::optional<Instruction> what;
  std::string name;
  Interval span;
  int64_t tid = -1;
};

/// A slice of this project's own traces.
struct OwnRange {
  Instruction what;
  Interval span;
  int64_t pid = -1;
};

struct OnThread {
  Interval span;
  int64_t tid = -1;
};

bool IsReceive(const std::string& name) {
  return name.starts_with("gloo:recv") || name.starts_with("nccl:recv") ||
         name.starts_with("mpi:recv");
}

/// Ranges of the profiler and of libraries below the schedule, which need no mention.
bool IsKnownOther(const std::string& name) {
  constexpr std::array<std::string_view, 6> kOthers = {
      "gloo:", "nccl:", "mpi:", "ProfilerStep#", "PyTorch Profiler", "Optimizer."};
  return std::any_of(kOthers.begin(), kOthers.end(),
                     [&](std::string_view other) { return name.starts_with(other); });
}

/// Categories of this project's traces, and of those that have none.
bool IsOwn(const std::string& category) {
  constexpr std::array<std::string_view, 8> kOwn = {"",       "compute", "component", "all-to-all",
                                                    "reduce", "step",    "send",      "receive"};
  return std::find(kOwn.begin(), kOwn.end(), category) != kOwn.end();
}

class TraceSamples {
 public:
  explicit TraceSamples(FileSamples* file) : file_(*file) {}

  void Take(const TraceEvent& event) {
    const Interval span = {event.start, event.end()};
    if (event.category == "user_annotation") {
      if (IsReceive(event.name)) receives_.push_back({span, event.tid});
      ranges_.push_back({ParseRange(event.name), event.name, span, event.tid});
    } else if (event.category == "gpu_user_annotation") {
      device_ranges_.push_back({ParseRange(event.name), event.name, span, event.tid});
    } else if (event.category == "cpu_op") {
      host_ops_.push_back({span, event.tid});
    } else if (event.category == "cuda_runtime" || event.category == "cuda_driver") {
      if (event.correlation >= 0) launches_.emplace_back(event.start, event.correlation);
    } else if (event.category == "kernel" || event.category == "gpu_memcpy" ||
               event.category == "gpu_memset") {
      TakeWork(event, span);
    } else if (const auto what = OwnSlice(event)) {
      if (IsMessage(what->op)) {
        const bool none = event.duration < kDrawn;
        file_.messages.push_back({*what, span.start, none ? span.start : span.end, 0});
      } else {
        own_.push_back({*what, span, event.pid});
      }
    } else if (IsOwn(event.category)) {
      AddUnmapped(event.name, &file_);
    }
  }

  void Finish(const TraceHead& head) {
    file_.rank = static_cast<int>(std::clamp<int64_t>(head.rank, -1, kMaxRanks));
    file_.world_size = static_cast<int>(std::clamp<int64_t>(head.world_size, 0, INT32_MAX));
    const auto by_start = [](const Range& a, const Range& b) {
      return std::pair(a.span.start, -a.span.end) < std::pair(b.span.start, -b.span.end);
    };
    NameOneStage();
    std::stable_sort(ranges_.begin(), ranges_.end(), by_start);
    std::stable_sort(device_ranges_.begin(), device_ranges_.end(), by_start);
    std::sort(launches_.begin(), launches_.end());
    const auto by_end = [](const OnThread& a, const OnThread& b) {
      return a.span.end < b.span.end;
    };
    std::stable_sort(receives_.begin(), receives_.end(), by_end);
    std::stable_sort(host_ops_.begin(), host_ops_.end(), by_end);
    posted_ = receives_;
    std::stable_sort(posted_.begin(), posted_.end(), [](const OnThread& a, const OnThread& b) {
      return a.span.start < b.span.start;
    });
    for (const Range& range : ranges_) {
      if (IsComponent(range)) components_.push_back(range.span.start);
      if (range.what) boundaries_.insert(boundaries_.end(), {range.span.start, range.span.end});
    }
    std::sort(boundaries_.begin(), boundaries_.end());
    for (const Range& range : ranges_) TakeRange(range);
    if (!works_.empty() && without_work_ > 0) {
      file_.notes.push_back(std::to_string(without_work_) +
                            " ranges launched no work of a device and do not count");
    }
    if (works_.empty()) TakeDeviceRanges();
    TakeOwnSlices();
    std::stable_sort(file_.messages.begin(), file_.messages.end(),
                     [](const MessageEnd& a, const MessageEnd& b) { return a.start < b.start; });
    for (MessageEnd& end : file_.messages) {
      end.start += head.base;
      end.end += head.base;
    }
    for (Sample& sample : file_.samples) sample.end += head.base;
    CountLayers();
    if (host_) {
      file_.notes.push_back(
          "no work of a device in the trace: times are of the host, without its waits for "
          "receives");
    }
  }

 private:
  /// Takes "Forward 3" and "Backward 3", if no range is an instruction, of PyTorch's schedules of
  /// one stage a rank, Schedule1F1B and ScheduleGPipe.
  void NameOneStage() {
    const auto named = [](const Range& range) { return range.what.has_value(); };
    if (!own_.empty() || std::ranges::any_of(ranges_, named) ||
        std::ranges::any_of(device_ranges_, named)) {
      return;
    }
    for (std::vector<Range>* ranges : {&ranges_, &device_ranges_}) {
      for (Range& range : *ranges) {
        range.what = ParseOneStage(range.name, file_.rank);
        file_.one_stage = file_.one_stage || range.what;
      }
    }
    if (!file_.one_stage) return;
    file_.notes.push_back(
        std::string("\"Forward\" and \"Backward\" name no stage: they are taken for ") +
        (file_.rank < 0 ? "every stage, as the trace names no rank"
                        : "the stage with the number of the rank") +
        "; waits for receives are within them");
  }

  static bool IsComponent(const Range& range) {
    return range.what && OperandsOf(range.what->op) == Operands::kLayer;
  }

  void TakeWork(const TraceEvent& event, const Interval& span) {
    if (event.name.find("ncclDevKernel_SendRecv") != std::string::npos ||
        event.name.find("ncclKernel_SendRecv") != std::string::npos) {
      file_.transfers.push_back(event.duration);
      return;
    }
    if (event.correlation < 0) return;
    const auto [work, fresh] = works_.try_emplace(event.correlation, span);
    if (fresh) return;
    work->second.start = std::min(work->second.start, span.start);
    work->second.end = std::max(work->second.end, span.end);
  }

  void TakeRange(const Range& range) {
    if (!range.what) {
      if (!IsKnownOther(range.name) && !AroundComponents(range.span))
        AddUnmapped(range.name, &file_);
      return;
    }
    const Instruction& what = *range.what;
    if (IsMessage(what.op)) {
      // The host does not wait for what a device sends and receives.
      if (works_.empty()) TakeHostMessage(range);
      return;
    }
    if (!works_.empty()) {
      const std::optional<Interval> work = WorkOfRange(range.span);
      if (work) {
        file_.samples.push_back({what, work->end - work->start, 0, -1, work->end});
      } else {
        ++without_work_;
      }
      return;
    }
    if (!device_ranges_.empty()) return;
    TakeHostRange(range);
  }

  /// True for a range that means nothing by itself, and is what components belong to.
  bool AroundComponents(const Interval& span) const {
    const auto first = std::lower_bound(components_.begin(), components_.end(), span.start);
    return first != components_.end() && *first <= span.end;
  }

  /// Work launched in a host range, by whatever thread: the backward has its own.
  std::optional<Interval> WorkOfRange(const Interval& range) const {
    std::optional<Interval> whole;
    auto launch =
        std::lower_bound(launches_.begin(), launches_.end(), std::pair(range.start, int64_t{-1}));
    for (; launch != launches_.end() && launch->first <= range.end; ++launch) {
      const auto work = works_.find(launch->second);
      if (work == works_.end()) continue;
      if (!whole) whole = work->second;
      whole->start = std::min(whole->start, work->second.start);
      whole->end = std::max(whole->end, work->second.end);
    }
    return whole;
  }

  void TakeHostRange(const Range& range) {
    const Instruction& what = *range.what;
    const auto inside = [&](const OnThread& other) {
      return other.tid == range.tid && other.span.end > range.span.start &&
             other.span.end <= range.span.end;
    };
    const auto first_after = [&](const std::vector<OnThread>& list) {
      return std::upper_bound(list.begin(), list.end(), range.span.start,
                              [](double start, const OnThread& x) { return start < x.span.end; });
    };
    double waited = 0, from = range.span.start;
    auto op = first_after(host_ops_);
    for (auto receive = first_after(receives_);
         receive != receives_.end() && receive->span.end <= range.span.end; ++receive) {
      if (!inside(*receive)) continue;
      // A pair waits twice: the second time from the end of what it ran in between.
      for (; what.op == Op::FB && op != host_ops_.end() && op->span.end <= receive->span.end;
           ++op) {
        if (inside(*op)) from = std::max(from, op->span.end);
      }
      waited += receive->span.end - from;
      from = receive->span.end;
    }
    host_ = true;
    file_.samples.push_back(
        {what, range.span.end - range.span.start - waited, 0, -1, range.span.end});
  }

  /// A receive is posted in its range, and ends where it was waited for. That wait began where the
  /// host was done with its range before, or in the range that waits.
  void TakeHostMessage(const Range& range) {
    Interval span = range.span;
    if (IsRecv(range.what->op)) {
      span.start = span.end;
      const auto posted = std::lower_bound(
          posted_.begin(), posted_.end(), range.span.start,
          [](const OnThread& receive, double start) { return receive.span.start < start; });
      for (auto receive = posted; receive != posted_.end() && receive->span.start <= range.span.end;
           ++receive) {
        if (receive->tid == range.tid) span.end = std::max(span.end, receive->span.end);
      }
      const auto after = std::upper_bound(boundaries_.begin(), boundaries_.end(), span.end);
      if (after != boundaries_.begin()) span.start = std::max(span.start, *std::prev(after));
    }
    file_.messages.push_back({*range.what, span.start, span.end, 0});
  }

  /// Ranges that the profiler itself has projected on a device, one for each of its streams.
  void TakeDeviceRanges() {
    std::vector<Range> merged;
    std::map<std::string, size_t> last;  // of each name, in `merged`
    for (const Range& range : device_ranges_) {
      if (!range.what) continue;
      const auto same = last.find(range.name);
      if (same != last.end() && range.span.start <= merged[same->second].span.end) {
        Interval& whole = merged[same->second].span;
        whole.end = std::max(whole.end, range.span.end);
      } else {
        last[range.name] = merged.size();
        merged.push_back(range);
      }
    }
    for (const auto& [what, name, span, tid] : merged) {
      if (IsMessage(what->op)) {
        file_.messages.push_back({*what, span.start, span.end, 0});
      } else {
        file_.samples.push_back({*what, span.end - span.start, 0, -1, span.end});
      }
    }
  }

  void TakeOwnSlices() {
    std::stable_sort(own_.begin(), own_.end(), [](const OwnRange& a, const OwnRange& b) {
      return a.span.start < b.span.start;
    });
    SeeWhatReduceBlocks();
    LeaveOutWaitsOfReduce();
    for (const OwnRange& range : own_) {
      const auto rank = static_cast<int>(std::clamp<int64_t>(range.pid, -1, kMaxRanks));
      file_.samples.push_back({range.what, range.span.end - range.span.start, 0, rank});
    }
  }

  void SeeWhatReduceBlocks() {
    struct Ends {
      double reduce = -1, compute = -1;
    };
    std::map<int64_t, Ends> ranks;
    bool beside = false, after = false;
    for (const OwnRange& range : own_) {
      const bool reduce = range.what.op == Op::REDUCE;
      if (!reduce && LaneOf(range.what.op) != Lane::kCompute) continue;
      if (range.span.end - range.span.start < kDrawn) continue;
      Ends& ends = ranks[range.pid];
      beside = beside || range.span.start < (reduce ? ends.compute : ends.reduce) - kDrawn;
      after = after || (!reduce && range.what.op != Op::STEP && ends.reduce >= 0);
      double& end = reduce ? ends.reduce : ends.compute;
      end = std::max(end, range.span.end);
    }
    if (beside || after) file_.reduce_blocks = !beside;
  }

  /// A REDUCE begins when the last of its ranks has come; those before it waited.
  void LeaveOutWaitsOfReduce() {
    std::map<std::pair<int64_t, int>, int> seen;                     // by rank and stage
    std::map<std::pair<int, int>, std::vector<OwnRange*>> together;  // by stage and step
    for (OwnRange& range : own_) {
      if (range.what.op != Op::REDUCE) continue;
      const int stage = range.what.stage;
      together[{stage, seen[{range.pid, stage}]++}].push_back(&range);
    }
    for (const auto& [key, ranges] : together) {
      const double last = ranges.back()->span.start;  // they are in order of time
      const bool met = std::all_of(ranges.begin(), ranges.end(),
                                   [&](const OwnRange* range) { return range->span.end >= last; });
      for (OwnRange* range : ranges) {
        if (met) range->span.start = last;
      }
    }
  }

  /// How often a component is in the innermost range around it that is none itself.
  void CountLayers() {
    std::vector<const Range*> open;
    std::map<std::pair<const Range*, Op>, int> counts;
    for (const Range& range : ranges_) {
      while (!open.empty() && open.back()->span.end < range.span.end) open.pop_back();
      if (!range.what) {
        open.push_back(&range);
      } else if (IsComponent(range) && !open.empty()) {
        file_.layers = std::max(file_.layers, ++counts[{open.back(), range.what->op}]);
      }
    }
  }

  FileSamples& file_;
  std::vector<Range> ranges_, device_ranges_;
  std::vector<double> components_;  ///< their starts
  std::vector<double> boundaries_;  ///< where ranges with a meaning start and end
  std::vector<OnThread> receives_, host_ops_, posted_;
  std::vector<std::pair<double, int64_t>> launches_;
  std::unordered_map<int64_t, Interval> works_;  ///< by correlation
  std::vector<OwnRange> own_;
  int64_t without_work_ = 0;
  bool host_ = false;
};

}  // namespace

FileSamples ReadTraceSamples(std::string_view text, const std::string& place) {
  FileSamples file;
  file.place = place;
  TraceSamples trace(&file);
  trace.Finish(ReadTraceEvents(text, place, [&](const TraceEvent& event) { trace.Take(event); }));
  NumberSteps(&file);
  return file;
}

}  // namespace contraflow
