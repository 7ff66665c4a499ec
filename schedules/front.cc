// Steps for more or less memory, and for lower costs.

#include "schedules/front.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "compiler/plan/error.h"
#include "compiler/plan/layer_cost.h"
#include "compiler/plan/memory_limit.h"
#include "compiler/plan/recompute_cost.h"
#include "schedules/compile.h"
#include "schedules/published/rows.h"

namespace contraflow {
namespace {

constexpr const char* kLimits[] = {"0.25x", "0.375x", "0.5x", "0.75x", "1x", "1.25x", "1.5x", "2x"};
/// A search that has all of the memory there is needs no recompute.
constexpr const char* kMostRecomputed = "1x";
/// Searches of a front at most, which share the budget.
constexpr int kSearches = 18;
/// Between neighbours of which one takes at least this many times longer, and the other holds this
/// many times more, limits are looked at, but no more than these.
constexpr double kLonger = 1.03, kLarger = 1.01;
constexpr int kMostBetween = 8;
constexpr double kLess = 0.9, kMore = 1.1;

Time Times(double factor, Time time) {
  return static_cast<Time>(std::llround(static_cast<double>(time) * factor));
}

double MemoryOfRow(const CompareRow& row, const CompareRequest& request) {
  if (CountsBytes(request.spec.costs)) return static_cast<double>(row.total.value_or(0));
  return static_cast<double>(row.report->peak_activations()) * request.spec.ranks / row.stages;
}

class FrontSearch {
 public:
  FrontSearch(const CompareRequest& request, const std::function<void(std::string_view)>& started)
      : request_(request), started_(started) {
    request_.held_by_1f1b = HeldBy1F1B(request.spec, request.control.made);
    const CostModel& costs = request.spec.costs;
    const bool input = !costs.layers.empty() || InputBytes(costs).has_value();
    // Choices left open are made for each point.
    Recompute& recompute = request_.spec.recompute;
    Offload& offload = request_.spec.offload;
    if (recompute.choice == Recompute::Choice::kAuto) recompute = {};
    if (offload.choice == Offload::Choice::kAuto) offload = {};
    if (recompute != request.spec.recompute || offload != request.spec.offload) {
      asked_ = request;
      asked_->held_by_1f1b = request_.held_by_1f1b;
    }
    recomputes_ = CountsBytes(costs) && input && recompute == Recompute();
    offloads_ = recomputes_ && costs.host && offload == Offload();
  }

  void Published() {
    for (const Schedule* schedule : kPublishedSchedules) {
      if (!request_.includes(schedule->name)) continue;
      Offer(*schedule, request_);
      if (asked_) Offer(*schedule, *asked_);
      if (recomputes_) Offer(*schedule, Recomputed(Recompute::Choice::kFull));
    }
  }

  void Searched() {
    request_.spec.search.budget /= kSearches;
    if (asked_) asked_->spec.search.budget /= kSearches;
    Offer(kAuto, request_);
    if (asked_) Offer(kAuto, *asked_);
    const std::optional<int64_t> most = LimitOf(request_.memory_limit);
    for (const char* limit : kLimits) {
      if (request_.control.stopped()) return;
      const std::optional<int64_t> amount = RungOf(limit);
      if (!amount) continue;
      if (most && *amount >= *most) break;
      CompareRequest limited = *amount > *LimitOf(kMostRecomputed) ? request_ : Freest();
      limited.memory_limit = limit;
      Offer(kAuto, limited);
    }
    for (int i = 0; i < kMostBetween && !request_.control.stopped(); ++i) {
      const std::optional<int64_t> limit = Between();
      if (!limit) return;
      CompareRequest limited = Freest();
      if (CountsBytes(limited.spec.costs)) {
        limited.spec.device_memory = *limit;
      } else {
        limited.memory_limit = std::to_string(*limit);
      }
      Offer(kAuto, limited);
      asked_for_.push_back(*limit);
    }
  }

  std::vector<FrontPoint> Front() const {
    std::vector<FrontPoint> points = points_;
    std::stable_sort(points.begin(), points.end(), [](const auto& a, const auto& b) {
      return std::pair(a.memory, a.row.makespan()) < std::pair(b.memory, b.row.makespan());
    });
    std::vector<FrontPoint> front;
    for (FrontPoint& point : points) {
      if (!front.empty() && point.row.makespan() >= front.back().row.makespan()) continue;
      front.push_back(std::move(point));
    }
    return front;
  }

 private:
  CompareRequest Recomputed(Recompute::Choice choice) const {
    CompareRequest request = request_;
    request.spec.recompute.choice = choice;
    return request;
  }

  /// All that the costs know how to choose is.
  CompareRequest Freest() const {
    CompareRequest request = request_;
    if (recomputes_) request.spec.recompute.choice = Recompute::Choice::kAuto;
    if (offloads_) request.spec.offload.choice = Offload::Choice::kAuto;
    return request;
  }

  /// A limit in the middle of where the front drops most; nothing where it drops little.
  std::optional<int64_t> Between() const {
    // Step of the shortest that holds no more than this; where that was looked for, and there is no
    // point, it is the point before.
    std::map<double, Time> steps;
    for (const FrontPoint& point : Front()) steps[point.memory] = point.row.makespan();
    for (const int64_t limit : asked_for_) {
      const auto after = steps.upper_bound(static_cast<double>(limit));
      if (after != steps.begin()) steps.emplace(limit, std::prev(after)->second);
    }
    std::optional<int64_t> best;
    double most = 0;
    for (auto at = steps.begin(); at != steps.end() && std::next(at) != steps.end(); ++at) {
      const auto& [less, longer] = *at;
      const auto& [more, shorter] = *std::next(at);
      const double times = static_cast<double>(longer) / static_cast<double>(shorter);
      const double drop = std::log(times) * std::log(more / less);
      const auto middle = static_cast<int64_t>((less + more) / 2);
      if (times < kLonger || more < kLarger * less || static_cast<double>(middle) <= less ||
          drop <= most) {
        continue;
      }
      most = drop;
      best = middle;
    }
    return best;
  }

  std::optional<int64_t> LimitOf(const std::string& text) const {
    if (text.empty()) return std::nullopt;
    Spec spec = request_.spec;
    spec.schedule = kOneFOneB.name;
    if (!spec.partition) spec.partition = PartitionChoice();
    return MemoryLimitOf(spec, text, request_.held_by_1f1b);
  }

  /// No rung where so little is less than one activation.
  std::optional<int64_t> RungOf(const char* limit) const {
    try {
      return LimitOf(limit);
    } catch (const Error&) {
      return std::nullopt;
    }
  }

  void Offer(const Schedule& schedule, const CompareRequest& request) {
    if (started_) {
      started_(std::string(schedule.name) +
               (request.memory_limit.empty() ? "" : " at " + request.memory_limit));
    }
    CompareRow row = CompareSchedule(schedule, request);
    if (!row.report || !row.fits) return;
    const double memory = MemoryOfRow(row, request);
    const bool searched = &schedule == &kAuto;
    points_.push_back({std::move(row), memory, searched ? request.memory_limit : "",
                       searched ? request.spec.device_memory : std::nullopt});
  }

  CompareRequest request_;
  std::optional<CompareRequest> asked_;  // where that leaves recompute or offload to choose
  const std::function<void(std::string_view)>& started_;
  bool recomputes_ = false, offloads_ = false;
  std::vector<int64_t> asked_for_;  // limits between points
  std::vector<FrontPoint> points_;
};

/// A part gets shorter, and with it what it is a part of, which stays no shorter than any.
void Lower(Time StageCost::*part, StageCost* cost) {
  const Time less = cost->*part - Times(kLess, cost->*part);
  cost->*part -= less;
  if (part != &StageCost::f) cost->bw = std::max({cost->bw - less, cost->b, cost->w});
  cost->fb = std::max({cost->fb - less, cost->f, cost->b, cost->w});
}

struct Varied {
  const char* name;
  Time StageCost::*part;  ///< null for what is not of stages
  std::vector<Op> components;
};

const std::vector<Varied>& Costs() {
  static const std::vector<Varied> kCosts = {
      {"f", &StageCost::f, {Op::ATTN_F, Op::MLP_F}},
      {"b", &StageCost::b, {Op::ATTN_B, Op::MLP_B}},
      {"w", &StageCost::w, {Op::ATTN_W, Op::MLP_W}},
      {"all-to-all", nullptr, {Op::DISPATCH_F, Op::COMBINE_F, Op::COMBINE_B, Op::DISPATCH_B}}};
  return kCosts;
}

void Lower(const Varied& varied, MoeCost* moe) {
  for (const ComponentCost& component : kComponentCosts) {
    if (std::ranges::count(varied.components, component.op) == 0) continue;
    for (Time& time : moe->*component.times) time = Times(kLess, time);
  }
}

/// False where there is nothing of it.
bool LowerCost(const Varied& varied, CostModel* costs) {
  bool any = false;
  if (costs->moe) {
    Lower(varied, &*costs->moe);
    any = true;
    // Chunk costs that followed from the components follow again.
    if (costs->derived) costs->stages.clear();
  }
  for (LayerCost& layer : costs->layers) {
    if (layer.moe) {
      Lower(varied, &*layer.moe);
    } else if (varied.part != nullptr) {
      Lower(varied.part, &layer.cost);
    }
    any = any || layer.moe || varied.part != nullptr;
  }
  if (varied.part == nullptr) return any;
  for (StageCost& stage : costs->stages) Lower(varied.part, &stage);
  return any || !costs->stages.empty();
}

bool LowerComm(CommCost* comm) {
  if (comm->latency == 0 && comm->occupancy == 0) return false;
  comm->latency = Times(kLess, comm->latency);
  comm->occupancy = Times(kLess, comm->occupancy);
  for (MessageSize& size : comm->sizes) size.occupancy = Times(kLess, size.occupancy);
  comm->bandwidth /= kLess;
  return true;
}

bool RaiseMemory(CompareRequest* request) {
  std::string& limit = request->memory_limit;
  if (request->spec.device_memory) {
    request->spec.device_memory = Times(kMore, *request->spec.device_memory);
  }
  for (RankCost& rank : request->spec.costs.ranks) {
    if (!rank.memory_bytes) continue;
    rank.memory_bytes = Times(kMore, *rank.memory_bytes);
  }
  if (limit.empty() || request->assumed_limit) return !DevicesOf(request->spec).empty();
  if (limit.back() == 'x') {
    char buffer[64];
    const auto end = std::to_chars(buffer, buffer + sizeof buffer, ParseMultiple(limit) * kMore,
                                   std::chars_format::fixed, 6);
    limit = std::string(buffer, end.ptr) + "x";
  } else {
    limit = std::to_string(Times(kMore, ParseBytes(limit, "`memory_limit`")));
  }
  return true;
}

/// The request with this changed; nothing where it has none of it.
std::optional<CompareRequest> With(const std::string& name, const CompareRequest& request) {
  CompareRequest changed = request;
  if (name == "comm")
    return LowerComm(&changed.spec.costs.comm) ? std::optional(changed) : std::nullopt;
  if (name == "memory") return RaiseMemory(&changed) ? std::optional(changed) : std::nullopt;
  const auto cost = std::ranges::find_if(Costs(), [&](const Varied& v) { return v.name == name; });
  CF_ASSERT(cost != Costs().end());
  return LowerCost(*cost, &changed.spec.costs) ? std::optional(changed) : std::nullopt;
}

}  // namespace

std::vector<FrontPoint> ParetoFront(const CompareRequest& request,
                                    const std::function<void(std::string_view)>& started) {
  FrontSearch search(request, started);
  search.Published();
  if (request.includes(kAuto.name)) search.Searched();
  return search.Front();
}

std::vector<std::string> VariedNames() {
  std::vector<std::string> names;
  for (const Varied& cost : Costs()) names.emplace_back(cost.name);
  names.insert(names.end(), {"comm", "memory"});
  return names;
}

const CompareRow* Shortest(std::span<const CompareRow> rows) {
  const CompareRow* shortest = nullptr;
  for (const CompareRow& row : rows) {
    if (!row.report || !row.fits) continue;
    if (shortest == nullptr || row.makespan() < shortest->makespan()) shortest = &row;
  }
  return shortest;
}

std::vector<Variation> Vary(const CompareRequest& request, const CompareRow& now,
                            const std::vector<std::string>& names,
                            const std::function<void(std::string_view)>& started) {
  const std::vector<std::string> known = VariedNames();
  std::vector<std::pair<std::string, CompareRequest>> changed;
  for (const std::string& name : names.empty() ? known : names) {
    CF_ASSERT(std::ranges::count(known, name) == 1);
    std::optional<CompareRequest> with = With(name, request);
    if (!with && !names.empty()) {
      throw Error("`vary` " + name + ": " +
                  (name != "memory"        ? "the costs have none"
                   : request.assumed_limit ? "the limit of 1x is an assumption; give `memory_limit`"
                                           : "no memory limit is given"));
    }
    if (with) changed.emplace_back(name, std::move(*with));
  }
  std::vector<Variation> variations;
  for (auto& [name, with] : changed) {
    if (started) started(name);
    with.keep_plans = false;
    with.held_by_1f1b = 0;
    const std::vector<CompareRow> rows = Compare(with);
    // A plan that fits now fits then.
    const CompareRow* const best = Shortest(rows);
    const CompareRow& row = best != nullptr && best->makespan() < now.makespan() ? *best : now;
    const auto before = static_cast<double>(now.makespan());
    const double gain = before > 0 ? (before - static_cast<double>(row.makespan())) / before : 0;
    variations.push_back({name, row, gain});
    if (request.control.stopped()) break;
  }
  std::stable_sort(variations.begin(), variations.end(),
                   [](const auto& a, const auto& b) { return a.gain > b.gain; });
  return variations;
}

}  // namespace contraflow
