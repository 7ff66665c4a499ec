// Interleaved 1F1B (Narayanan et al., arXiv 2104.04473, section 2.2): every rank holds V stages,
// P apart, and micro-batches go round the ranks V times. A rank takes them in rounds of P: one
// round through its first stage, the same round through its second, and so on.
//
//   rank 0   F s0 m0, s0 m1, s2 m0, s2 m1, s0 m2 ...       P = 2, V = 2: stages 0 and 2
//   rank 1   F s1 m0, s1 m1, s3 m0, BW s3 m0 ...           stages 1 and 3
//
// The fill is that of 1F1B over P of the V*P stages, with V times the messages and more
// activations. Where M is no multiple of P the rounds are those of PyTorch's
// ScheduleInterleaved1F1B: M/P of them, rounded down, of equal length.

#include <algorithm>

#include "schedules/placement.h"
#include "schedules/rows.h"

namespace contraflow {
namespace {

int ChunksOf(const Spec& spec) { return spec.chunks == 0 ? 2 : spec.chunks; }

int Rounds(const Spec& spec) { return std::max(1, spec.microbatches / spec.ranks); }

int RoundLength(const Spec& spec) { return spec.microbatches / Rounds(spec); }

/// Forwards of a rank before its first backward: a round through all stages but the last, and two
/// for each rank behind, one on the way there and one on the way back.
int64_t Warmup(const Spec& spec, int rank) {
  const int64_t all = int64_t{spec.microbatches} * ChunksOf(spec);
  const int64_t ahead =
      int64_t{ChunksOf(spec) - 1} * RoundLength(spec) + 2 * (spec.ranks - 1 - rank);
  return std::min(all, ahead);
}

std::string Reject(const Spec& spec) {
  const int rounds = Rounds(spec);
  if (spec.microbatches % rounds == 0) return "";
  const int length = RoundLength(spec);
  return "takes M / P = " + std::to_string(rounds) + " rounds of equally many micro-batches, " +
         std::to_string(spec.microbatches) + " do not divide; use " +
         std::to_string(rounds * length) + " or " + std::to_string((rounds + 1) * spec.ranks);
}

Plan Generate(const Spec& spec) {
  const int chunks = ChunksOf(spec), length = RoundLength(spec);
  std::vector<int> owners;
  for (int s = 0; s < spec.ranks * chunks; ++s) owners.push_back(s % spec.ranks);
  Plan plan = SingleRoutePlan(spec, std::move(owners));
  const int64_t all = int64_t{spec.microbatches} * chunks;
  for (int rank = 0; rank < spec.ranks; ++rank) {
    Program& program = plan.programs[static_cast<size_t>(rank)];
    // The k-th forward or backward; backwards visit the stages from the last to the first.
    const auto add = [&](Op op, int64_t k) {
      const auto lap = static_cast<int>(k / length);
      const int visit = lap % chunks;
      const int stage = (op == Op::F ? visit : chunks - 1 - visit) * spec.ranks + rank;
      program.push_back(Chunk(op, stage, lap / chunks * length + static_cast<int>(k % length)));
    };
    int64_t forward = 0;
    for (; forward < Warmup(spec, rank); ++forward) add(Op::F, forward);
    for (int64_t backward = 0; backward < all; ++backward) {
      if (forward < all) add(Op::F, forward++);
      add(Op::BW, backward);
    }
  }
  return plan;
}

Time Published(const Spec& spec) {
  const FormulaCosts c = LettersOf(spec);
  return (spec.ranks - 1) * (c.f + c.full_b);
}

// With fewer micro-batches than ranks a round is too short to keep them busy until it is back.
std::vector<Time> Exact(const Spec& spec) {
  if (!HasClosedForm(spec) || spec.microbatches < spec.ranks) return {};
  return std::vector<Time>(static_cast<size_t>(spec.ranks), Published(spec));
}

int PeakActivations(const Spec& spec, int rank) {
  const int64_t all = int64_t{spec.microbatches} * ChunksOf(spec);
  return static_cast<int>(std::min(all, Warmup(spec, rank) + 1));
}

// The paper's (PP-1)(F+B)/V counts F and B of all V stages of a rank; costs here are of one stage.
constexpr Formula kFormula = {"(PP-1)(F+B)", Published, Exact};

}  // namespace

const Schedule kInterleaved = {
    .name = "interleaved-1f1b",
    .summary = "1F1B with several stages a rank: a shorter fill for more messages",
    .limits = "any P, M a multiple of P or of M/P rounded down, any --chunks (default 2)",
    .memory = "R(V-1)+2(P-1-r)+1 activations of 1/V of a rank on rank r, V chunks, rounds of R",
    .stages = [](const Spec& spec) { return spec.ranks * ChunksOf(spec); },
    .reject = Reject,
    .generate = Generate,
    .peak_activations = PeakActivations,
    .formula = &kFormula,
};

}  // namespace contraflow
