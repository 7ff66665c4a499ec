#include "compiler/verify/verify.h"

#include <algorithm>
#include <string_view>
#include <tuple>
#include <utility>

#include "compiler/plan/error.h"
#include "compiler/verify/checks.h"

namespace contraflow {
namespace check {
namespace {

constexpr std::string_view kNames[] = {"shape",        "level",   "owner",    "complete", "order",
                                       "weight-order", "message", "producer", "consumer", "group",
                                       "reduce",       "step",    "deadlock", "lane",     "event",
                                       "slot",         "sharing"};
static_assert(std::size(kNames) == kCheckCount);

}  // namespace

void Findings::Add(Check check, int rank, int index, std::string message) {
  const auto at = static_cast<size_t>(check);
  ++total_;
  if (++count_[at] > kMaxListed) return;
  listed_[at].push_back({std::string(kNames[at]), rank, index, std::move(message)});
}

std::vector<Finding> Findings::Take() {
  std::vector<Finding> result;
  for (size_t at = 0; at < kCheckCount; ++at) {
    std::stable_sort(listed_[at].begin(), listed_[at].end(), [](const auto& a, const auto& b) {
      return std::tie(a.rank, a.index) < std::tie(b.rank, b.index);
    });
    std::move(listed_[at].begin(), listed_[at].end(), std::back_inserter(result));
    if (count_[at] > kMaxListed) {
      result.push_back({std::string(kNames[at]), -1, -1,
                        "and " + std::to_string(count_[at] - kMaxListed) +
                            " more of this check; fix these first"});
    }
  }
  return result;
}

}  // namespace check

namespace {

/// Runs all checks; how far the plan gets, if its tables could be made.
std::optional<Standstill> RunChecks(const Plan& plan, Semantics semantics, check::Findings* all) {
  using check::Check;
  check::Findings& findings = *all;
  check::CheckShape(plan, &findings);
  if (!findings.empty()) return std::nullopt;
  if (!check::CheckLevel(plan, &findings)) return std::nullopt;
  // A few bytes of JSON can claim 2^27 chunks. A plan with far fewer instructions than that takes
  // is incomplete; no table is made to say which are missing.
  const int64_t chunks = int64_t{plan.stages} * plan.microbatches;
  int64_t needed = plan.layers > 0 ? 0 : chunks;
  for (int s = 0; s < plan.stages && plan.layers > 0; ++s) {
    for (int layer = 0; layer < plan.LayersOf(s); ++layer) {
      for (int part = 0; part < check::kPartCount; ++part) {
        const Op op = static_cast<Op>(static_cast<int>(Op::ATTN_F) + part);
        if (check::HasPart(plan.KindOf(s, layer), op)) needed += plan.microbatches;
      }
    }
  }
  const int64_t instructions = InstructionCount(plan);
  if (needed > instructions + (int64_t{1} << 20)) {
    findings.Add(Check::kComplete, -1, -1,
                 "the programs have " + std::to_string(instructions) + " instructions, but " +
                     std::to_string(plan.stages) + " stages x " +
                     std::to_string(plan.microbatches) + " micro-batches" +
                     (plan.layers > 0 ? (plan.stage_layers.empty() ? " x " : " x up to ") +
                                            std::to_string(plan.layers) + " layers"
                                      : "") +
                     " need at least " + std::to_string(needed));
    return std::nullopt;
  }
  check::Tables tables(plan);
  if (plan.layers > 0) {
    check::CheckComponents(&tables, &findings);
  } else {
    check::CheckCompute(&tables, &findings);
  }
  check::CheckHostCopies(&tables, &findings);
  if (plan.level == Level::kCompute) {
    check::CheckMarks(tables, &findings);
    return check::CheckDataFlow(tables, &findings);
  }
  check::CheckComm(&tables, &findings);
  check::CheckMarks(tables, &findings);
  Standstill standstill = semantics == Semantics::kRank
                              ? check::CheckRendezvous(tables, &findings)
                              : check::CheckQueues(tables, semantics, &findings);
  if (plan.level > Level::kComm) check::CheckLanes(tables, &findings);
  // Which values there are, and how long each lives, follows from the programs.
  if (plan.level == Level::kBuffer && findings.empty()) check::CheckSlots(tables, &findings);
  return standstill;
}

}  // namespace

std::vector<Finding> Verify(const Plan& plan) { return Verify(plan, plan.semantics); }

std::vector<Finding> Verify(const Plan& plan, Semantics semantics) {
  check::Findings findings;
  RunChecks(plan, semantics, &findings);
  return findings.Take();
}

std::optional<Standstill> FindStandstill(const Plan& plan) {
  check::Findings findings;
  return RunChecks(plan, plan.semantics, &findings);
}

std::string ToString(const Finding& finding, const Plan& plan) {
  if (finding.rank < 0) return finding.message;
  std::string place = "rank " + std::to_string(finding.rank);
  if (finding.index >= 0) {
    place += ", instruction " + std::to_string(finding.index);
    // Most messages begin with the instruction; the others get it from here, unless it is so wrong
    // that it has no text.
    const Instruction& i = plan.program(finding.rank)[static_cast<size_t>(finding.index)];
    if (finding.check != "shape" && finding.message.rfind(ToString(i), 0) != 0) {
      place += " (" + ToString(i) + ")";
    }
  }
  return place + ": " + finding.message;
}

}  // namespace contraflow
