#include "tests/support/two_lane.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <unordered_map>

namespace contraflow {
namespace {

constexpr Time kNever = std::numeric_limits<Time>::max();

int IndexOf(const std::vector<LaneJob>& jobs, Op op, int layer) {
  for (size_t i = 0; i < jobs.size(); ++i) {
    if (jobs[i].op == op && jobs[i].layer == layer) return static_cast<int>(i);
  }
  return -1;
}

bool IsWeight(Op op) { return op == Op::MLP_W || op == Op::ATTN_W; }

/// Every order of one lane that respects what its jobs wait for on the same lane.
std::vector<std::vector<int>> LaneOrders(const std::vector<LaneJob>& jobs, bool all_to_all) {
  std::vector<int> lane;
  for (size_t i = 0; i < jobs.size(); ++i) {
    if (jobs[i].all_to_all == all_to_all) lane.push_back(static_cast<int>(i));
  }
  // One after another through the other lane counts as well.
  const auto reaches = [&](int from, int to) {
    std::vector<int> open = {to};
    while (!open.empty()) {
      const int job = open.back();
      open.pop_back();
      if (job == from) return true;
      for (const int before : jobs[static_cast<size_t>(job)].after) open.push_back(before);
    }
    return false;
  };
  std::vector<std::pair<int, int>> pairs;
  for (const int a : lane) {
    for (const int b : lane) {
      if (a != b && reaches(a, b)) pairs.emplace_back(a, b);
    }
  }
  std::vector<std::vector<int>> orders;
  do {
    std::vector<size_t> place(jobs.size());
    for (size_t i = 0; i < lane.size(); ++i) place[static_cast<size_t>(lane[i])] = i;
    const bool fits = std::ranges::all_of(pairs, [&](const auto& pair) {
      return place[static_cast<size_t>(pair.first)] < place[static_cast<size_t>(pair.second)];
    });
    if (fits) orders.push_back(lane);
  } while (std::next_permutation(lane.begin(), lane.end()));
  return orders;
}

/// From event to event. Chains are walked by counting; the state packs into one number.
class Events {
 public:
  explicit Events(const std::vector<LaneJob>& jobs) {
    for (const LaneJob& job : jobs) {
      if (IsWeight(job.op)) {
        weights_.push_back(job);
        needs_.push_back(
            job.after.empty() ? 0 : job.after.front() - static_cast<int>(chains_[0].size()) + 1);
        continue;
      }
      const bool forward = job.op == Op::ATTN_F || job.op == Op::DISPATCH_F ||
                           job.op == Op::MLP_F || job.op == Op::COMBINE_F;
      chains_[forward ? 0 : 1].push_back(job);
    }
    best_ = 1;
    for (const LaneJob& job : jobs) best_ += job.duration;
  }

  Time Run() {
    Go({}, 0);
    return best_;
  }

 private:
  struct State {
    int done[2] = {0, 0};    // of each chain
    int runs[2] = {-1, -1};  // work of each lane: chain 0 or 1, 2 a weight part, -1 nothing
    Time left[2] = {0, 0};   // for how long
    unsigned weights = 0;    // begun
  };

  void Go(const State& s, Time now) {
    if (now + Rest(s) >= best_) return;
    if (static_cast<size_t>(s.done[0]) == chains_[0].size() &&
        static_cast<size_t>(s.done[1]) == chains_[1].size() &&
        s.weights + 1 == 1u << weights_.size() && s.runs[0] < 0 && s.runs[1] < 0) {
      best_ = now;
      return;
    }
    uint64_t key = s.weights;
    for (const int lane : {0, 1}) {
      key = key << 5 | static_cast<uint64_t>(s.done[lane]);
      key = key << 2 | static_cast<uint64_t>(s.runs[lane] + 1);
      key = key << 16 | static_cast<uint64_t>(s.left[lane]);
    }
    const auto [at, added] = seen_.try_emplace(key, now);
    if (!added) {
      if (at->second <= now) return;
      at->second = now;
    }
    Take(s, now, 0);
  }

  /// Gives an idle lane each job it could begin now, or none; then the next lane, then time passes.
  void Take(const State& s, Time now, int lane) {
    if (lane == 2) return Pass(s, now);
    if (s.runs[lane] < 0) {
      for (const int chain : {0, 1}) {
        if (s.runs[0] == chain || s.runs[1] == chain) continue;
        const auto next = static_cast<size_t>(s.done[chain]);
        if (next == chains_[chain].size()) continue;
        const LaneJob& job = chains_[chain][next];
        if (job.all_to_all != (lane == 1)) continue;
        State with = s;
        with.runs[lane] = chain;
        with.left[lane] = job.duration;
        Take(with, now, lane + 1);
      }
      for (size_t k = 0; lane == 0 && k < weights_.size(); ++k) {
        if ((s.weights >> k & 1) != 0 || needs_[k] > s.done[1]) continue;
        State with = s;
        with.runs[0] = 2;
        with.left[0] = weights_[k].duration;
        with.weights |= 1u << k;
        Take(with, now, 1);
      }
    }
    Take(s, now, lane + 1);
  }

  void Pass(State s, Time now) {
    if (s.runs[0] < 0 && s.runs[1] < 0) return;
    Time step = kNever;
    for (const int lane : {0, 1}) {
      if (s.runs[lane] >= 0) step = std::min(step, s.left[lane]);
    }
    for (const int lane : {0, 1}) {
      if (s.runs[lane] < 0) continue;
      s.left[lane] -= step;
      if (s.left[lane] > 0) continue;
      if (s.runs[lane] < 2) ++s.done[s.runs[lane]];
      s.runs[lane] = -1;
    }
    Go(s, now + step);
  }

  /// At least this long from here on: each lane's work, each chain's work.
  Time Rest(const State& s) const {
    Time lanes[2] = {s.left[0], s.left[1]};
    Time longest = 0;
    for (const int chain : {0, 1}) {
      Time sum = 0;
      for (auto i = static_cast<size_t>(s.done[chain]); i < chains_[chain].size(); ++i) {
        const LaneJob& job = chains_[chain][i];
        const int lane = job.all_to_all ? 1 : 0;
        const bool running = s.runs[lane] == chain && i == static_cast<size_t>(s.done[chain]);
        if (!running) lanes[lane] += job.duration;
        sum += running ? s.left[lane] : job.duration;
      }
      longest = std::max(longest, sum);
    }
    for (size_t k = 0; k < weights_.size(); ++k) {
      if ((s.weights >> k & 1) == 0) lanes[0] += weights_[k].duration;
    }
    return std::max({longest, lanes[0], lanes[1]});
  }

  std::vector<LaneJob> chains_[2], weights_;
  std::vector<int> needs_;  // of each weight part: backward components that must be done
  Time best_;
  std::unordered_map<uint64_t, Time> seen_;
};

}  // namespace

std::vector<LaneJob> JobsOf(const MoeCost& forward, const MoeCost& backward, Chains chains) {
  std::vector<LaneJob> jobs;
  const auto add = [&](Op op, int layer, const std::vector<Time>& times, bool all_to_all,
                       int before) {
    const Time time = times.size() == 1 ? times[0] : times[static_cast<size_t>(layer)];
    jobs.push_back({op, layer, time, all_to_all, {}});
    if (before >= 0) jobs.back().after.push_back(before);
    return static_cast<int>(jobs.size()) - 1;
  };
  int last = -1;
  for (int l = 0; chains.forward && l < forward.layers_per_stage; ++l) {
    last = add(Op::ATTN_F, l, forward.attn_f, false, last);
    last = add(Op::DISPATCH_F, l, forward.dispatch_f, true, last);
    last = add(Op::MLP_F, l, forward.mlp_f, false, last);
    last = add(Op::COMBINE_F, l, forward.combine_f, true, last);
  }
  last = -1;
  for (int l = backward.layers_per_stage; chains.backward && l-- > 0;) {
    last = add(Op::COMBINE_B, l, backward.combine_b, true, last);
    last = add(Op::MLP_B, l, backward.mlp_b, false, last);
    last = add(Op::DISPATCH_B, l, backward.dispatch_b, true, last);
    last = add(Op::ATTN_B, l, backward.attn_b, false, last);
  }
  for (int l = 0; chains.weights && l < backward.layers_per_stage; ++l) {
    add(Op::MLP_W, l, backward.mlp_w, false, IndexOf(jobs, Op::MLP_B, l));
    add(Op::ATTN_W, l, backward.attn_w, false, IndexOf(jobs, Op::ATTN_B, l));
  }
  return jobs;
}

Time MakespanOf(const std::vector<LaneJob>& jobs, const std::vector<int>& compute,
                const std::vector<int>& all_to_all) {
  std::vector<Time> end(jobs.size(), -1);
  const std::vector<int>* const lanes[] = {&compute, &all_to_all};
  size_t at[] = {0, 0};
  Time free[] = {0, 0};
  for (bool moved = true; moved;) {
    moved = false;
    for (const int lane : {0, 1}) {
      if (at[lane] == lanes[lane]->size()) continue;
      const auto index = static_cast<size_t>((*lanes[lane])[at[lane]]);
      Time start = free[lane];
      bool ready = true;
      for (const int before : jobs[index].after) {
        ready = ready && end[static_cast<size_t>(before)] >= 0;
        start = std::max(start, end[static_cast<size_t>(before)]);
      }
      if (!ready) continue;
      end[index] = free[lane] = start + jobs[index].duration;
      ++at[lane];
      moved = true;
    }
  }
  if (at[0] < compute.size() || at[1] < all_to_all.size()) return -1;
  return std::max(free[0], free[1]);
}

Time ExhaustiveMakespan(const std::vector<LaneJob>& jobs) {
  const std::vector<std::vector<int>> compute = LaneOrders(jobs, false);
  const std::vector<std::vector<int>> all_to_all = LaneOrders(jobs, true);
  Time least = kNever;
  for (const std::vector<int>& c : compute) {
    for (const std::vector<int>& x : all_to_all) {
      const Time makespan = MakespanOf(jobs, c, x);
      if (makespan >= 0) least = std::min(least, makespan);
    }
  }
  return least;
}

Time EventMakespan(const std::vector<LaneJob>& jobs) { return Events(jobs).Run(); }

Time DeepSeekMakespan(const std::vector<LaneJob>& jobs, int layers) {
  std::vector<int> compute, all_to_all;
  for (int j = 0; j < layers; ++j) {
    const int back = layers - 1 - j;
    for (const auto& [op, layer] :
         {std::pair(Op::ATTN_F, j), std::pair(Op::MLP_B, back), std::pair(Op::MLP_W, back),
          std::pair(Op::MLP_F, j), std::pair(Op::ATTN_B, back), std::pair(Op::ATTN_W, back)}) {
      compute.push_back(IndexOf(jobs, op, layer));
    }
    for (const auto& [op, layer] : {std::pair(Op::COMBINE_B, back), std::pair(Op::DISPATCH_F, j),
                                    std::pair(Op::DISPATCH_B, back), std::pair(Op::COMBINE_F, j)}) {
      all_to_all.push_back(IndexOf(jobs, op, layer));
    }
  }
  return MakespanOf(jobs, compute, all_to_all);
}

std::string FlawOfRun(const std::vector<LaneJob>& jobs, const Interleaving& run) {
  if (run.order.size() != jobs.size() || run.spans.size() != jobs.size()) return "not all jobs";
  std::vector<Time> end(jobs.size(), -1);
  Time free[] = {0, 0};
  Time last = 0;
  for (size_t i = 0; i < run.order.size(); ++i) {
    const Instruction& component = run.order[i];
    const std::string name = ToString(component);
    const int index = IndexOf(jobs, component.op, component.layer);
    if (index < 0) return name + " is no job";
    const auto job = static_cast<size_t>(index);
    if (end[job] >= 0) return name + " runs twice";
    const Span& span = run.spans[i];
    if (span.end - span.start != jobs[job].duration) return name + " has a different length";
    Time& lane = free[jobs[job].all_to_all ? 1 : 0];
    Time start = lane;
    for (const int before : jobs[job].after) {
      if (end[static_cast<size_t>(before)] < 0) return name + " before what it waits for";
      start = std::max(start, end[static_cast<size_t>(before)]);
    }
    if (span.start != start) return name + " does not start as early as it can";
    lane = end[job] = span.end;
    last = std::max(last, span.end);
  }
  return last == run.makespan ? "" : "the makespan is not the last end";
}

}  // namespace contraflow
