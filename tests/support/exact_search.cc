// Branch and bound in order of start times. A node is what has been started, and when; a child
// starts one more operation, on any rank, no earlier than the last one that was started. To start
// an operation although another rank could begin something first is the "not now" of schedules in
// which a forward at once would take memory that something else needs.
//
// Two nodes that have started the same operations: where all times of the one are at most those of
// the other, it can be finished by the same operations at the same times, so the other is dropped.
// Every schedule whose operations start as soon as its orders allow is among the descendants of the
// root, and one of those is optimal.

#include "tests/support/exact_search.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "compiler/plan/error.h"

namespace contraflow {
namespace {

/// Done of a chunk. One that is not recomputed is ready for its backward as soon as its forward is
/// done.
constexpr char kNothing = 0, kForward = 1, kReady = 2, kBackward = 3, kAll = 4;

struct Chunk {
  int route, stage, microbatch, rank;
  int before = -1, after = -1;  // the chunk upstream, the chunk downstream
  Time hop_before = 0, hop_after = 0;
  Time f, b, w, bw, least_backward, least_rest;
  bool recomputed = false;
  Time again = 0;                            // R
  int64_t input = 0;                         // held from F to R
  Time forward_tail = 0, backward_tail = 0;  // least time from its start to the end of the step
  bool like_previous = false;  // exchangeable with the micro-batch before it on its route
};

struct Choice {
  Op op;
  size_t chunk;     // of an FB the forward
  size_t back = 0;  // of an FB the backward
  Time start, duration;
  int rank;
};

class Search {
 public:
  Search(const Plan& plan, const CostModel& costs, std::optional<int64_t> limit, int64_t most,
         bool offloads)
      : costs_(costs),
        offloads_(offloads),
        ranks_(static_cast<size_t>(plan.ranks)),
        most_(most),
        limit_(limit.value_or(int64_t{1} << 60)) {
    const bool bytes = costs.memory && costs.memory->activation_bytes > 0;
    for (int s = 0; s < plan.stages; ++s) {
      activation_.push_back(bytes ? costs.memory->activation(s) : 1);
      stash_.push_back(bytes ? costs.memory->stash(s) : 1);
    }
    bytes_ = bytes;
    AddChunks(plan);
    FindTails();
    done_.assign(chunks_.size(), kNothing);
    forward_at_.assign(chunks_.size(), 0);
    backward_at_.assign(chunks_.size(), 0);
    free_.assign(ranks_, 0);
    held_.assign(ranks_, 0);
    edge_free_.assign(ranks_ * ranks_, 0);
  }

  ExactResult Run() {
    Visit();
    result_.finished = result_.states <= most_;
    return result_;
  }

 private:
  static int64_t Of(const std::vector<int64_t>& bytes, const Chunk& chunk) {
    return bytes[static_cast<size_t>(chunk.stage)];
  }

  void AddChunks(const Plan& plan) {
    for (size_t route = 0; route < plan.routes.size(); ++route) {
      const std::vector<int>& ranks = plan.routes[route].ranks;
      for (size_t k = 0; k < plan.routes[route].microbatches.size(); ++k) {
        const int m = plan.routes[route].microbatches[k];
        for (int s = 0; s < plan.stages; ++s) AddChunk(static_cast<int>(route), ranks, s, m, k);
      }
    }
    for (const Program& program : plan.programs) {
      for (const Instruction& i : program) {
        if (i.op != Op::R) continue;
        for (Chunk& chunk : chunks_) {
          if (chunk.stage != i.stage || chunk.microbatch != i.microbatch) continue;
          chunk.recomputed = true;
          chunk.again = costs_.Duration(i);
          if (bytes_) chunk.input = InputOf(i);
        }
      }
    }
    KeepAlike();
    for (int s = 0; s < plan.stages; ++s) {
      pairs_ = pairs_ || costs_.stage(s).fb < costs_.stage(s).f + costs_.stage(s).bw;
    }
  }

  /// The input of the stage, and all of the layers that do not run again.
  int64_t InputOf(const Instruction& r) const {
    const int64_t input = costs_.memory->input_bytes;
    if (r.layers == 0) return input;
    int64_t kept = 0, all = 0;
    for (int l = 0; l < costs_.LayersIn(r.stage); ++l) {
      const int64_t bytes = costs_.SharesOf(r.stage)[static_cast<size_t>(l)].activation_bytes;
      all += bytes;
      if (l >= r.layers) kept += bytes;
    }
    // Instances of layers give each its own bytes.
    CF_ASSERT(all == activation_[static_cast<size_t>(r.stage)]);
    return std::min(all, input + kept);
  }

  void AddChunk(int route, const std::vector<int>& ranks, int s, int m, size_t k) {
    const auto duration = [&](Op op) { return costs_.Duration(contraflow::CellOp(op, s, m)); };
    const auto at = static_cast<size_t>(s);
    Chunk chunk = {.route = route,
                   .stage = s,
                   .microbatch = m,
                   .rank = ranks[at],
                   .f = duration(Op::F),
                   .b = duration(Op::B),
                   .w = duration(Op::W),
                   .bw = duration(Op::BW),
                   .least_backward = 0,
                   .least_rest = 0};
    chunk.least_backward = std::min(chunk.bw, chunk.b + chunk.w);
    chunk.least_rest = chunk.least_backward - chunk.b;
    const int self = static_cast<int>(chunks_.size());
    if (s > 0) {
      chunk.before = self - 1;
      if (ranks[at - 1] != ranks[at]) chunk.hop_before = HopBetween(at - 1);
    }
    if (at + 1 < ranks.size()) {
      chunk.after = self + 1;
      if (ranks[at + 1] != ranks[at]) chunk.hop_after = HopBetween(at);
    }
    const auto& scale = costs_.microbatch_scale;
    chunk.like_previous = k > 0 && scale.empty();  // with factors of their own micro-batches differ
    stride_ = ranks.size();
    chunks_.push_back(chunk);
  }

  /// Micro-batches are exchangeable only if the same stages of them are recomputed.
  void KeepAlike() {
    for (size_t first = stride_; first < chunks_.size(); first += stride_) {
      bool alike = true;
      for (size_t c = first; c < first + stride_; ++c) {
        alike = alike && chunks_[c].recomputed == chunks_[c - stride_].recomputed;
      }
      for (size_t c = first; c < first + stride_ && !alike; ++c) chunks_[c].like_previous = false;
    }
  }

  /// Time that a message between this stage and the next fills its edge.
  Time Occupancy(size_t stage) const {
    return costs_.comm.sizes.empty() ? costs_.comm.occupancy : costs_.comm.sizes[stage].occupancy;
  }
  Time HopBetween(size_t stage) const { return costs_.comm.latency + Occupancy(stage); }

  void FindTails() {
    for (Chunk& chunk : chunks_) {  // stages ascend within a micro-batch
      const Time rest = pairs_ ? 0 : chunk.least_rest;
      Time after = rest;
      if (chunk.before >= 0) {
        const Chunk& before = chunks_[static_cast<size_t>(chunk.before)];
        after = std::max(after, chunk.hop_before + before.backward_tail);
      }
      chunk.backward_tail = chunk.b + after;
    }
    for (size_t c = chunks_.size(); c-- > 0;) {
      Chunk& chunk = chunks_[c];
      chunk.forward_tail =
          chunk.f + (chunk.after < 0 ? chunk.backward_tail
                                     : chunk.hop_after +
                                           chunks_[static_cast<size_t>(chunk.after)].forward_tail);
    }
  }

  /// Least end of any way to finish.
  Time Bound() const {
    std::vector<Time> first(ranks_, -1), work(ranks_, 0);
    std::vector<Time> forward_end(chunks_.size(), 0);
    Time bound = 0;
    for (size_t r = 0; r < ranks_; ++r) bound = std::max(bound, free_[r]);
    const auto add = [&](const Chunk& chunk, Time ready, Time duration, Time tail) {
      const auto r = static_cast<size_t>(chunk.rank);
      ready = std::max({ready, free_[r], now_});
      work[r] += duration;
      first[r] = first[r] < 0 ? ready : std::min(first[r], ready);
      bound = std::max(bound, ready + tail);
    };
    for (size_t c = 0; c < chunks_.size(); ++c) {
      const Chunk& chunk = chunks_[c];
      const Time saving = pairs_ ? std::max<Time>(0, chunk.f + chunk.bw - PairTime(c, c)) + 2 : 0;
      const Time backward = std::max<Time>(0, chunk.least_backward - saving);
      if (done_[c] == kNothing) {
        const Time ready = chunk.before < 0 ? 0 : Arrival(c, forward_end);
        forward_end[c] = std::max({ready, free_[static_cast<size_t>(chunk.rank)], now_}) + chunk.f;
        add(chunk, ready, chunk.f, chunk.forward_tail);
        work[static_cast<size_t>(chunk.rank)] += chunk.again + backward;
      } else if (done_[c] == kForward) {
        add(chunk, 0, chunk.again + backward, chunk.again + chunk.backward_tail);
      } else if (done_[c] == kReady) {
        const bool known = chunk.after < 0 || done_[static_cast<size_t>(chunk.after)] >= kBackward;
        add(chunk, known ? backward_at_[c] : 0, backward, chunk.backward_tail);
      } else if (done_[c] == kBackward) {
        add(chunk, backward_at_[c], chunk.w, chunk.w);
      }
    }
    for (size_t r = 0; r < ranks_; ++r) {
      if (first[r] >= 0) bound = std::max(bound, first[r] + work[r]);
    }
    return bound;
  }

  /// When a forward that is not done can begin at the earliest.
  Time Arrival(size_t c, const std::vector<Time>& forward_end) const {
    const auto before = static_cast<size_t>(chunks_[c].before);
    return done_[before] != kNothing ? forward_at_[c] : forward_end[before] + chunks_[c].hop_before;
  }

  Time PairTime(size_t forward, size_t backward) const {
    return costs_.Duration(Pair(chunks_[forward].stage, chunks_[forward].microbatch,
                                chunks_[backward].stage, chunks_[backward].microbatch));
  }

  /// Whether it holds nothing between its F and its B.
  bool Away(const Chunk& chunk) const { return offloads_ && !chunk.recomputed; }

  bool ForwardReady(size_t c) const {
    const Chunk& chunk = chunks_[c];
    if (done_[c] != kNothing ||
        held_[static_cast<size_t>(chunk.rank)] + Of(activation_, chunk) > limit_) {
      return false;
    }
    if (chunk.before >= 0 && done_[static_cast<size_t>(chunk.before)] == kNothing) return false;
    return !chunk.like_previous || done_[c - stride_] != kNothing;
  }

  bool AgainReady(size_t c) const {
    const Chunk& chunk = chunks_[c];
    const int64_t more = Of(activation_, chunk) - chunk.input;
    if (done_[c] != kForward || held_[static_cast<size_t>(chunk.rank)] + more > limit_) {
      return false;
    }
    return !chunk.like_previous || done_[c - stride_] >= kReady;
  }

  bool BackwardReady(size_t c) const {
    const Chunk& chunk = chunks_[c];
    if (done_[c] != kReady) return false;
    if (Away(chunk) && held_[static_cast<size_t>(chunk.rank)] + Of(activation_, chunk) > limit_) {
      return false;
    }
    if (chunk.after >= 0 && done_[static_cast<size_t>(chunk.after)] < kBackward) return false;
    return !chunk.like_previous || done_[c - stride_] >= kBackward;
  }

  bool WeightReady(size_t c) const {
    if (done_[c] != kBackward) return false;
    // The first stands for exchangeable ones.
    for (size_t k = c; chunks_[k].like_previous;) {
      k -= stride_;
      if (done_[k] == kBackward) return false;
    }
    return true;
  }

  std::vector<Choice> Choices() const {
    std::vector<Choice> choices;
    const auto add = [&](Op op, size_t c, size_t back, Time ready, Time duration) {
      const int rank = chunks_[c].rank;
      const Time start = std::max({ready, free_[static_cast<size_t>(rank)], now_});
      choices.push_back({op, c, back, start, duration, rank});
    };
    for (size_t c = 0; c < chunks_.size(); ++c) {
      const Chunk& chunk = chunks_[c];
      if (BackwardReady(c)) {
        add(Op::B, c, 0, backward_at_[c], chunk.b);
        // One go of the same length as both parts does nothing that they do not.
        if (chunk.bw < chunk.b + chunk.w) add(Op::BW, c, 0, backward_at_[c], chunk.bw);
      }
      if (WeightReady(c)) add(Op::W, c, 0, backward_at_[c], chunk.w);
      if (AgainReady(c)) add(Op::R, c, 0, 0, chunk.again);
      if (!ForwardReady(c)) continue;
      add(Op::F, c, 0, forward_at_[c], chunk.f);
      for (size_t back = 0; pairs_ && back < chunks_.size(); ++back) {
        if (chunks_[back].rank != chunk.rank || !BackwardReady(back)) continue;
        const int64_t both =
            Of(activation_, chunk) + (Away(chunks_[back]) ? Of(activation_, chunks_[back]) : 0);
        if (held_[static_cast<size_t>(chunk.rank)] + both > limit_) continue;
        add(Op::FB, c, back, std::max(forward_at_[c], backward_at_[back]), PairTime(c, back));
      }
    }
    std::ranges::sort(choices, [](const Choice& a, const Choice& b) {
      const auto eager = [](Op op) { return op == Op::W ? 2 : op == Op::F || op == Op::R ? 1 : 0; };
      return std::pair(a.start, eager(a.op)) < std::pair(b.start, eager(b.op));
    });
    return choices;
  }

  /// A weight gradient that ends before this could begin would delay nothing and free memory.
  bool Wasteful(const Choice& choice, const std::vector<Choice>& choices) const {
    return std::ranges::any_of(choices, [&](const Choice& other) {
      return other.op == Op::W && other.rank == choice.rank &&
             other.start + other.duration <= choice.start && other.start < choice.start;
    });
  }

  /// Whether a node that is at least as good has been visited; else remembers this one.
  bool Dominated() {
    std::vector<Time> times = {now_};
    for (const Time free : free_) times.push_back(std::max(free, now_));
    for (size_t c = 0; c < chunks_.size(); ++c) {
      if (done_[c] == kNothing) times.push_back(std::max(forward_at_[c], now_));
      if (done_[c] == kForward) times.push_back(std::max(backward_at_[c], now_));
      if (done_[c] == kReady) times.push_back(std::max(backward_at_[c], now_));
      if (done_[c] == kBackward) times.push_back(std::max(backward_at_[c], now_));
    }
    if (costs_.comm.exclusive()) {
      for (const Time free : edge_free_) times.push_back(std::max(free, now_));
    }
    Time end = 0;
    for (const Time free : free_) end = std::max(end, free);
    times.push_back(end);
    std::vector<std::vector<Time>>& seen = seen_[done_];
    const auto at_most = [](const std::vector<Time>& a, const std::vector<Time>& b) {
      return std::equal(a.begin(), a.end(), b.begin(), [](Time x, Time y) { return x <= y; });
    };
    for (const auto& other : seen) {
      if (at_most(other, times)) return true;
    }
    std::erase_if(seen, [&](const auto& other) { return at_most(times, other); });
    seen.push_back(std::move(times));
    return false;
  }

  /// A message from one rank to another, or none on the same rank.
  Time Deliver(int from, int to, size_t stage, Time ready) {
    if (from == to) return ready;
    Time& edge = edge_free_[static_cast<size_t>(from) * ranks_ + static_cast<size_t>(to)];
    const Time start = costs_.comm.exclusive() ? std::max(ready, edge) : ready;
    edge = start + Occupancy(stage);
    return edge + costs_.comm.latency;
  }

  void FinishForward(size_t c, Time end) {
    const Chunk& chunk = chunks_[c];
    done_[c] = chunk.recomputed ? kForward : kReady;
    const int64_t kept = Away(chunk) ? 0 : Of(activation_, chunk);
    held_[static_cast<size_t>(chunk.rank)] += chunk.recomputed ? chunk.input : kept;
    if (chunk.after < 0) {
      backward_at_[c] = end;
      return;
    }
    const auto after = static_cast<size_t>(chunk.after);
    forward_at_[after] = Deliver(chunk.rank, chunks_[after].rank, c % stride_, end);
    backward_at_[c] = end;
  }

  void FinishBackward(size_t c, Time end) {
    const Chunk& chunk = chunks_[c];
    done_[c] = kBackward;
    const int64_t back = Away(chunk) ? 0 : Of(activation_, chunk);
    held_[static_cast<size_t>(chunk.rank)] += Of(stash_, chunk) - back;
    backward_at_[c] = end;  // from when on its weight gradient can run
    if (chunk.before < 0) return;
    const auto before = static_cast<size_t>(chunk.before);
    backward_at_[before] = Deliver(chunk.rank, chunks_[before].rank, before % stride_, end);
  }

  void FinishWeights(size_t c) {
    done_[c] = kAll;
    held_[static_cast<size_t>(chunks_[c].rank)] -= Of(stash_, chunks_[c]);
  }

  void Start(const Choice& choice) {
    const Time end = choice.start + choice.duration;
    now_ = choice.start;
    free_[static_cast<size_t>(choice.rank)] = end;
    const bool forward = HasForward(choice.op);
    const size_t back = choice.op == Op::FB ? choice.back : choice.chunk;
    if (forward) FinishForward(choice.chunk, end);
    if (choice.op == Op::R) {
      done_[choice.chunk] = kReady;
      held_[static_cast<size_t>(choice.rank)] +=
          Of(activation_, chunks_[choice.chunk]) - chunks_[choice.chunk].input;
    }
    if (HasBackward(choice.op)) FinishBackward(back, end);
    if (HasWeight(choice.op)) FinishWeights(back);
  }

  void Visit() {
    if (++result_.states > most_) return;
    if (std::ranges::all_of(done_, [](char d) { return d == kAll; })) {
      const Time end = *std::ranges::max_element(free_);
      if (!result_.makespan || end < *result_.makespan) result_.makespan = end;
      return;
    }
    if (result_.makespan && Bound() >= *result_.makespan) return;
    if (Dominated()) return;
    const std::vector<Choice> choices = Choices();
    for (const Choice& choice : choices) {
      if (Wasteful(choice, choices)) continue;
      const auto saved =
          std::tuple(now_, done_, forward_at_, backward_at_, free_, held_, edge_free_);
      Start(choice);
      Visit();
      std::tie(now_, done_, forward_at_, backward_at_, free_, held_, edge_free_) = saved;
      if (result_.states > most_) return;
    }
  }

  const CostModel& costs_;
  const bool offloads_;
  const size_t ranks_;
  const int64_t most_;
  const int64_t limit_;
  std::vector<int64_t> activation_, stash_;  // by stage
  bool bytes_ = false;                       // else activations are counted
  size_t stride_ = 1;  // stages: from a chunk to the one of the next micro-batch
  bool pairs_ = false;
  std::vector<Chunk> chunks_;
  Time now_ = 0;                                // nothing starts before it any more
  std::string done_;                            // by chunk
  std::vector<Time> forward_at_, backward_at_;  // when its next operation can begin, by chunk
  std::vector<Time> free_;
  std::vector<int64_t> held_;
  std::vector<Time> edge_free_;
  std::unordered_map<std::string, std::vector<std::vector<Time>>> seen_;
  ExactResult result_;
};

}  // namespace

ExactResult ExactMakespan(const Plan& plan, const CostModel& costs,
                          std::optional<int64_t> memory_limit, int64_t most_states) {
  return Search(plan, costs, memory_limit, most_states, false).Run();
}

ExactResult ExactOffloaded(const Plan& plan, const CostModel& costs,
                           std::optional<int64_t> memory_limit, int64_t most_states) {
  return Search(plan, costs, memory_limit, most_states, true).Run();
}

}  // namespace contraflow
