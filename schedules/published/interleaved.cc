// Interleaved 1F1B (Narayanan et al., arXiv 2104.04473, section 2.2): every rank holds V stages, P
// apart, and micro-batches go round the ranks V times. A rank takes them in rounds of P: one round
// through its first stage, the same round through its second, and so on.
//
//   rank 0   F s0 m0, s0 m1, s2 m0, s2 m1, s0 m2 ...       P = 2, V = 2: stages 0 and 2
//   rank 1   F s1 m0, s1 m1, s3 m0, BW s3 m0 ...           stages 1 and 3
//
// The fill is that of 1F1B over P of the V*P stages, with V times the messages and more
// activations. If M is no multiple of P the rounds are those of PyTorch's ScheduleInterleaved1F1B:
// M/P of them, rounded down, of equal length.
//
// In rounds of P the first rank has done a lap just when its first micro-batch is back from the
// last rank, so it waits for that message, lap after lap; fewer and longer rounds have work for
// that time.
//
// Combined 1F1B is the same with each backward and the forward before it as one overlapped pair
// (Megatron-LM: --overlap-moe-expert-parallel-comm; Kimi K2, arXiv 2507.20534). A pair cannot hold
// a forward and its own backward, as they follow each other on the last rank, so every rank runs
// one more forward before its first backward.

#include <algorithm>

#include "compiler/plan/error.h"
#include "schedules/published/placement.h"
#include "schedules/published/rows.h"

namespace contraflow {
namespace {

int ChunksOf(const Spec& spec) { return spec.chunks == 0 ? 2 : spec.chunks; }

int Rounds(const Spec& spec) { return std::max(1, spec.microbatches / spec.ranks); }

int RoundLength(const Spec& spec) { return spec.microbatches / Rounds(spec); }

/// Forwards of a rank before its first backward: a round through all stages but the last, and two
/// for each rank after, one on the way there and one on the way back.
int64_t Warmup(const Spec& spec, int rank, int round) {
  const int64_t all = int64_t{spec.microbatches} * ChunksOf(spec);
  const int64_t ahead = int64_t{ChunksOf(spec) - 1} * round + 2 * (spec.ranks - 1 - rank);
  return std::min(all, ahead);
}

/// The micro-batches of a rank in rounds: of q + 1 the first M mod N of N rounds, of q the others.
struct Laps {
  int chunks, rounds, microbatches;

  int Length(int round) const {
    return microbatches / rounds + (round < microbatches % rounds ? 1 : 0);
  }
};

/// A forward (or backward) of a rank: which of its stages, counted along the way, and for whom.
struct Visit {
  int chunk, microbatch;
};

std::vector<Visit> VisitsOf(const Laps& laps) {
  std::vector<Visit> visits;
  visits.reserve(static_cast<size_t>(laps.microbatches) * static_cast<size_t>(laps.chunks));
  int first = 0;
  for (int round = 0; round < laps.rounds; ++round) {
    const int length = laps.Length(round);
    for (int chunk = 0; chunk < laps.chunks; ++chunk) {
      for (int i = 0; i < length; ++i) visits.push_back({chunk, first + i});
    }
    first += length;
  }
  return visits;
}

std::string RejectInterleaved(const Spec& spec) {
  const int rounds = Rounds(spec);
  if (spec.microbatches % rounds == 0) return "";
  const int length = RoundLength(spec);
  return "takes M / P = " + std::to_string(rounds) + " rounds of equally many micro-batches, " +
         std::to_string(spec.microbatches) + " do not divide; use " +
         std::to_string(rounds * length) + " or " + std::to_string((rounds + 1) * spec.ranks);
}

/// Forwards of a rank before its first backward or, with pairs, before its first pair.
int64_t Ahead(const Spec& spec, int rank, int round, bool pairs) {
  const int64_t all = int64_t{spec.microbatches} * ChunksOf(spec);
  return std::min(all, Warmup(spec, rank, round) + (pairs ? 1 : 0));
}

Plan InterleavedPlan(const Spec& spec) {
  std::vector<int> owners;
  for (int s = 0; s < spec.ranks * ChunksOf(spec); ++s) owners.push_back(s % spec.ranks);
  return SingleRoutePlan(spec, std::move(owners));
}

Plan InRounds(const Spec& spec, int rounds, bool pairs) {
  CF_ASSERT(rounds >= 1 && rounds <= Rounds(spec));
  const int chunks = ChunksOf(spec);
  Plan plan = InterleavedPlan(spec);
  const Laps laps = {chunks, rounds, spec.microbatches};
  const std::vector<Visit> visits = VisitsOf(laps);
  for (int rank = 0; rank < spec.ranks; ++rank) {
    Program& program = plan.program(rank);
    const auto forward_of = [&](const Visit& visit) {
      return CellOp(Op::F, visit.chunk * spec.ranks + rank, visit.microbatch);
    };
    size_t forward = 0;
    const auto ahead = static_cast<size_t>(Ahead(spec, rank, laps.Length(0), pairs));
    for (; forward < ahead; ++forward) program.push_back(forward_of(visits[forward]));
    for (const Visit& backward : visits) {
      // Backwards visit the stages from the last to the first.
      const int stage = (chunks - 1 - backward.chunk) * spec.ranks + rank;
      const bool both = forward < visits.size();
      if (both && pairs) {
        const Instruction f = forward_of(visits[forward++]);
        program.push_back(Pair(f.stage, f.microbatch, stage, backward.microbatch));
        continue;
      }
      if (both) program.push_back(forward_of(visits[forward++]));
      program.push_back(CellOp(Op::BW, stage, backward.microbatch));
    }
  }
  return plan;
}

Plan GenerateInterleaved(const Spec& spec) { return InRounds(spec, Rounds(spec), false); }

Plan GenerateCombined(const Spec& spec) { return InRounds(spec, Rounds(spec), true); }

// With fewer micro-batches than ranks a round is too short to keep them busy until it is back.
std::vector<Time> InterleavedBubbles(const Spec& spec) {
  if (!HasClosedForm(spec) || spec.microbatches < spec.ranks) return {};
  return OnEachRank(spec, FillTime(spec));
}

int PeakOf(const Spec& spec, int rank, bool pairs) {
  const int64_t all = int64_t{spec.microbatches} * ChunksOf(spec);
  return static_cast<int>(std::min(all, Ahead(spec, rank, RoundLength(spec), pairs) + 1));
}

int InterleavedPeak(const Spec& spec, int rank) { return PeakOf(spec, rank, false); }
int CombinedPeak(const Spec& spec, int rank) { return PeakOf(spec, rank, true); }

int StagesOf(const Spec& spec) { return spec.ranks * ChunksOf(spec); }

// The paper's (PP-1)(F+B)/V counts F and B of all V stages of a rank; costs here are of one stage.
constexpr Formula kInterleavedFormula = {"(PP-1)(F+B)", FillTime, InterleavedBubbles};

}  // namespace

Plan InterleavedInRounds(const Spec& spec, int rounds) { return InRounds(spec, rounds, false); }

const Schedule kInterleaved = {
    .name = "interleaved-1f1b",
    .summary = "1F1B with several stages per rank: a shorter fill, more messages",
    .limits = "any P, M <= P or divisible by floor(M/P), any `chunks` V (default 2)",
    .memory =
        "R(V-1)+2(P-1-r)+1 activations of 1/V of a rank each on rank r, in rounds of "
        "R = M/floor(M/P) micro-batches",
    .stages = StagesOf,
    .reject = RejectInterleaved,
    .frame = InterleavedPlan,
    .generate = GenerateInterleaved,
    .peak_activations = InterleavedPeak,
    .formula = &kInterleavedFormula,
    .takes_chunks = true,
};

const Schedule kCombined = {
    .name = "combined-1f1b",
    .summary = "interleaved 1F1B in overlapped pairs of a forward and a backward",
    .limits = "any P, M <= P or divisible by floor(M/P), any `chunks` V (default 2)",
    .memory =
        "R(V-1)+2(P-1-r)+2 activations of 1/V of a rank each on rank r, in rounds of "
        "R = M/floor(M/P) micro-batches",
    .stages = StagesOf,
    .reject = RejectInterleaved,
    .frame = InterleavedPlan,
    .generate = GenerateCombined,
    .peak_activations = CombinedPeak,
    .formula = nullptr,
    .takes_chunks = true,
};

}  // namespace contraflow
