#include "schedules/search/exact_problem.h"

#include <algorithm>
#include <map>
#include <utility>

#include "compiler/plan/cost.h"

namespace contraflow {
namespace {

class Builder {
 public:
  Builder(const Plan& frame, const CostModel& costs, const std::vector<int>& recomputed,
          ExactProblem* problem)
      : frame_(frame), costs_(costs), recomputed_(recomputed), problem_(*problem) {}

  void Build() {
    bool pairs = false;
    for (int s = 0; s < frame_.stages; ++s) {
      const StageCost& cost = costs_.stage(s);
      pairs = pairs || cost.fb < cost.f + cost.bw;
    }
    problem_.latency = costs_.comm.latency;
    for (const Route& route : frame_.routes) {
      for (size_t k = 0; k < route.microbatches.size(); ++k) AddMicrobatch(route, k);
    }
    problem_.edges = edges_.size();
    if (pairs) AddPairs();
    AddTails(pairs);
    AddJobs();
  }

 private:
  ExactChunk& At(size_t c) { return problem_.chunks[c]; }

  void AddMicrobatch(const Route& route, size_t k) {
    const bool bytes = costs_.memory && costs_.memory->activation_bytes > 0;
    const int stages = frame_.stages, m = route.microbatches[k];
    const auto first = static_cast<int>(problem_.chunks.size());
    for (int s = 0; s < stages; ++s) {
      const auto duration = [&](Op op) { return costs_.Duration(CellOp(op, s, m)); };
      ExactChunk chunk;
      chunk.stage = s;
      chunk.microbatch = m;
      chunk.rank = route.ranks[static_cast<size_t>(s)];
      chunk.before = s > 0 ? first + s - 1 : -1;
      chunk.after = s + 1 < stages ? first + s + 1 : -1;
      if (k > 0 && costs_.microbatch_scale.empty()) chunk.twin = first + s - stages;
      const auto hop = [&](int other, Time* time, int* edge) {
        const int rank = route.ranks[static_cast<size_t>(other)];
        if (rank == chunk.rank) return;
        *time = costs_.comm.HopBetween(std::min(s, other));
        if (costs_.comm.exclusive()) *edge = EdgeOf(chunk.rank, rank);
      };
      if (s > 0) hop(s - 1, &chunk.hop_before, &chunk.edge_before);
      if (s + 1 < stages) hop(s + 1, &chunk.hop_after, &chunk.edge_after);
      chunk.f = duration(Op::F);
      chunk.b = duration(Op::B);
      chunk.w = duration(Op::W);
      chunk.bw = duration(Op::BW);
      chunk.rest = std::min(chunk.bw - chunk.b, chunk.w);
      chunk.recomputed = std::ranges::find(recomputed_, s) != recomputed_.end();
      if (chunk.recomputed) chunk.r = duration(Op::R);
      chunk.memory = bytes ? BytesOfCell(costs_, s, chunk.recomputed) : kOneActivation;
      problem_.chunks.push_back(chunk);
    }
  }

  int EdgeOf(int from, int to) {
    return edges_.emplace(std::pair(from, to), static_cast<int>(edges_.size())).first->second;
  }

  void AddPairs() {
    const size_t count = problem_.chunks.size();
    problem_.pair.assign(count, std::vector<Time>(count, 0));
    for (size_t f = 0; f < count; ++f) {
      for (size_t b = 0; b < count; ++b) {
        if (At(f).rank != At(b).rank) continue;
        problem_.pair[f][b] =
            costs_.Duration(Pair(At(f).stage, At(f).microbatch, At(b).stage, At(b).microbatch));
      }
    }
  }

  /// Chunks of a micro-batch are one after another, its stages ascend.
  void AddTails(bool pairs) {
    for (ExactChunk& chunk : problem_.chunks) {
      chunk.backward_tail = pairs ? 0 : chunk.rest;
      if (chunk.before < 0) continue;
      const ExactChunk& before = problem_.chunk(chunk.before);
      chunk.backward_tail =
          std::max(chunk.backward_tail, chunk.hop_before + before.b + before.backward_tail);
    }
    for (size_t c = problem_.chunks.size(); c-- > 0;) {
      ExactChunk& chunk = At(c);
      chunk.again_tail = chunk.b + chunk.backward_tail;
      chunk.forward_tail = chunk.r + chunk.again_tail;
      if (chunk.after < 0) continue;
      const ExactChunk& after = problem_.chunk(chunk.after);
      chunk.forward_tail =
          std::max(chunk.forward_tail, chunk.hop_after + after.f + after.forward_tail);
    }
  }

  /// The saving of a pair is taken off the rest of its backward, and then off B.
  void AddJobs() {
    problem_.jobs.resize(problem_.ranks);
    for (size_t c = 0; c < problem_.chunks.size(); ++c) {
      const ExactChunk& chunk = At(c);
      Time saving = 0;
      for (size_t f = 0; f < problem_.pair.size(); ++f) {
        if (At(f).rank != chunk.rank) continue;
        saving = std::max(saving, At(f).f + chunk.b + chunk.rest - problem_.pair[f][c]);
      }
      const Time off_rest = std::min(saving, chunk.rest);
      const Time off_b = std::min(saving - off_rest, chunk.b);
      std::vector<ExactJob>& jobs = problem_.jobs[static_cast<size_t>(chunk.rank)];
      const auto add = [&](ChunkState until, Time duration, Time tail) {
        jobs.push_back({until, static_cast<int>(c), duration, tail});
      };
      add(ChunkState::kNothing, chunk.f, chunk.forward_tail);
      if (chunk.recomputed) add(ChunkState::kForward, chunk.r, chunk.again_tail);
      add(ChunkState::kReady, chunk.b - off_b, chunk.backward_tail);
      add(ChunkState::kBackward, chunk.rest - off_rest, 0);
    }
    for (std::vector<ExactJob>& jobs : problem_.jobs) {
      std::ranges::stable_sort(jobs, std::greater<>(), &ExactJob::tail);
    }
  }

  const Plan& frame_;
  const CostModel& costs_;
  const std::vector<int>& recomputed_;
  ExactProblem& problem_;
  std::map<std::pair<int, int>, int> edges_;
};

/// When a message is there that is made at `ready`; it takes its place on the edge.
Time Deliver(const ExactProblem& problem, int edge, Time hop, Time ready, ExactState* state) {
  if (edge < 0) return ready + hop;
  Time& free = state->edge_free[static_cast<size_t>(edge)];
  free = std::max(ready, free) + hop - problem.latency;
  return free + problem.latency;
}

void EndForward(const ExactProblem& problem, int c, Time end, ExactState* state) {
  const ExactChunk& chunk = problem.chunk(c);
  const auto at = static_cast<size_t>(c);
  state->done[at] = chunk.recomputed ? ChunkState::kForward : ChunkState::kReady;
  state->next_at[at] = end;
  if (chunk.after < 0) return;
  state->forward_at[static_cast<size_t>(chunk.after)] =
      Deliver(problem, chunk.edge_after, chunk.hop_after, end, state);
}

void EndBackward(const ExactProblem& problem, int c, Time end, bool weights, ExactState* state) {
  const ExactChunk& chunk = problem.chunk(c);
  const auto at = static_cast<size_t>(c);
  state->done[at] = weights ? ChunkState::kAll : ChunkState::kBackward;
  state->next_at[at] = end;
  if (chunk.before < 0) return;
  state->next_at[static_cast<size_t>(chunk.before)] =
      Deliver(problem, chunk.edge_before, chunk.hop_before, end, state);
}

}  // namespace

std::optional<ExactProblem> ExactProblem::Of(const Plan& frame, const CostModel& costs,
                                             const std::vector<int64_t>& rooms,
                                             const std::vector<int>& recomputed) {
  const int64_t chunks = int64_t{frame.stages} * frame.microbatches;
  if (chunks > int64_t{kMostChunks} || frame.ranks > static_cast<int>(kMostRanks)) {
    return std::nullopt;
  }
  ExactProblem problem;
  problem.ranks = static_cast<size_t>(frame.ranks);
  problem.rooms = rooms;
  Builder(frame, costs, recomputed, &problem).Build();
  if (problem.edges > kMostEdges) return std::nullopt;
  return problem;
}

void FindChoices(const ExactProblem& problem, const ExactState& state,
                 std::vector<ExactChoice>* choices) {
  choices->clear();
  const auto count = static_cast<int>(problem.chunks.size());
  const auto add = [&](Op op, int c, int back, Time ready, Time duration) {
    const int rank = problem.chunk(c).rank;
    const Time start = std::max({ready, state.free[static_cast<size_t>(rank)], state.now});
    choices->push_back({op, c, back, rank, start, duration});
  };
  const auto backward_ready = [&](int c) {
    const ExactChunk& chunk = problem.chunk(c);
    return state.of(c) == ChunkState::kReady &&
           (chunk.after < 0 || state.of(chunk.after) >= ChunkState::kBackward) &&
           (chunk.twin < 0 || state.of(chunk.twin) >= ChunkState::kBackward);
  };
  for (int c = 0; c < count; ++c) {
    const ExactChunk& chunk = problem.chunk(c);
    const auto at = static_cast<size_t>(c);
    const auto rank = static_cast<size_t>(chunk.rank);
    const int64_t most = problem.rooms.empty() ? INT64_MAX : problem.rooms[rank];
    const int64_t room = most - state.held[rank];
    const ChunkState done = state.of(c);
    const bool follows = chunk.twin < 0 || state.of(chunk.twin) > done;
    if (done == ChunkState::kAll || !follows) continue;
    if (done == ChunkState::kBackward) {
      // The first stands for those that cannot be told apart.
      const bool first = chunk.twin < 0 || state.of(chunk.twin) == ChunkState::kAll;
      if (first) add(Op::W, c, c, state.next_at[at], chunk.w);
    } else if (done == ChunkState::kReady) {
      if (!backward_ready(c)) continue;
      add(Op::B, c, c, state.next_at[at], chunk.b);
      if (chunk.bw < chunk.b + chunk.w) add(Op::BW, c, c, state.next_at[at], chunk.bw);
    } else if (done == ChunkState::kForward) {
      if (Taken(Op::R, chunk.memory) <= room) add(Op::R, c, c, 0, chunk.r);
    } else {
      if (chunk.before >= 0 && state.of(chunk.before) == ChunkState::kNothing) continue;
      if (Taken(Op::F, chunk.memory) > room) continue;
      add(Op::F, c, c, state.forward_at[at], chunk.f);
      for (int back = 0; !problem.pair.empty() && back < count; ++back) {
        if (problem.chunk(back).rank != chunk.rank || !backward_ready(back)) continue;
        const auto b = static_cast<size_t>(back);
        add(Op::FB, c, back, std::max(state.forward_at[at], state.next_at[b]), problem.pair[at][b]);
      }
    }
  }
}

void Start(const ExactProblem& problem, const ExactChoice& choice, ExactState* state) {
  const Time end = choice.start + choice.duration;
  state->now = choice.start;
  state->end = std::max(state->end, end);
  state->free[static_cast<size_t>(choice.rank)] = end;
  const ExactChunk& chunk = problem.chunk(choice.chunk);
  state->held[static_cast<size_t>(choice.rank)] +=
      Taken(choice.op, chunk.memory) -
      Given(choice.op, chunk.memory, problem.chunk(choice.back).memory, chunk.recomputed);
  if (HasForward(choice.op)) EndForward(problem, choice.chunk, end, state);
  if (HasBackward(choice.op)) EndBackward(problem, choice.back, end, HasWeight(choice.op), state);
  if (choice.op == Op::R) state->done[static_cast<size_t>(choice.chunk)] = ChunkState::kReady;
  if (choice.op == Op::W) state->done[static_cast<size_t>(choice.chunk)] = ChunkState::kAll;
}

Time LeastEnd(const ExactProblem& problem, const ExactState& state, Time enough) {
  const size_t count = problem.chunks.size();
  // When each part of a chunk can start; of W after a pair's B it is that of the B.
  std::array<std::array<Time, 4>, ExactProblem::kMostChunks> heads;
  const auto from = [&](const ExactChunk& chunk, Time ready) {
    return std::max({ready, state.free[static_cast<size_t>(chunk.rank)], state.now});
  };
  Time least = state.end;
  for (size_t c = 0; c < count; ++c) {
    const ExactChunk& chunk = problem.chunks[c];
    if (state.done[c] != ChunkState::kNothing) continue;
    Time ready = state.forward_at[c];
    if (chunk.before >= 0 && state.of(chunk.before) == ChunkState::kNothing) {
      ready = heads[static_cast<size_t>(chunk.before)][0] + problem.chunk(chunk.before).f +
              chunk.hop_before;
    }
    heads[c][0] = from(chunk, ready);
  }
  for (size_t c = count; c-- > 0;) {
    const ExactChunk& chunk = problem.chunks[c];
    const ChunkState done = state.done[c];
    if (done == ChunkState::kAll) continue;
    if (done == ChunkState::kBackward) {
      heads[c][3] = from(chunk, state.next_at[c]);
      least = std::max(least, heads[c][3] + chunk.w);
      continue;
    }
    Time ready = done == ChunkState::kNothing ? heads[c][0] + chunk.f : 0;
    heads[c][1] = from(chunk, ready);
    if (done <= ChunkState::kForward) ready = heads[c][1] + chunk.r;
    if (chunk.after >= 0 && state.of(chunk.after) < ChunkState::kBackward) {
      ready = std::max(ready, heads[static_cast<size_t>(chunk.after)][2] +
                                  problem.chunk(chunk.after).b + chunk.hop_after);
    } else if (done != ChunkState::kNothing) {
      ready = std::max(ready, state.next_at[c]);
    }
    heads[c][2] = from(chunk, ready);
    heads[c][3] = heads[c][2] + (problem.pair.empty() ? chunk.b : 0);
    // All that comes before B leads to it, so this is the longest path through its micro-batch.
    least = std::max(least, heads[c][2] + chunk.b + chunk.backward_tail);
  }
  if (least >= enough) return least;
  for (const std::vector<ExactJob>& jobs : problem.jobs) {
    Time head = INT64_MAX, work = 0;
    for (const ExactJob& job : jobs) {
      if (state.of(job.chunk) > job.until) continue;
      head = std::min(head, heads[static_cast<size_t>(job.chunk)][static_cast<size_t>(job.until)]);
      work += job.duration;
      least = std::max(least, head + work + job.tail);
      if (least >= enough) return least;
    }
  }
  return least;
}

}  // namespace contraflow
