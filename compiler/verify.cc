#include "compiler/verify.h"

#include <algorithm>
#include <string_view>
#include <tuple>
#include <utility>

#include "compiler/error.h"
#include "compiler/verify_checks.h"

namespace contraflow {
namespace check {
namespace {

constexpr std::string_view kNames[] = {"shape",        "level",   "owner",    "complete", "order",
                                       "weight-order", "message", "producer", "consumer", "group",
                                       "reduce",       "step",    "deadlock"};
static_assert(std::size(kNames) == kCheckCount);

// The verifier looks at every operation of plans with millions: a table here, not a call elsewhere.
constexpr Operands kOperands[] = {
#define CF_OPERANDS(name, operands, work) Operands::operands,
    CF_OPS(CF_OPERANDS)
#undef CF_OPERANDS
};
constexpr Work kWork[] = {
#define CF_WORK(name, operands, work) Work::work,
    CF_OPS(CF_WORK)
#undef CF_WORK
};

std::string Range(int size) { return "0.." + std::to_string(size - 1); }

bool CheckSize(const char* name, int value, int limit, Findings* findings) {
  if (value >= 1 && value <= limit) return true;
  findings->Add(
      Check::kShape, -1, -1,
      std::string(name) + " is " + std::to_string(value) + ", must be 1.." + std::to_string(limit));
  return false;
}

bool CheckSizes(const Plan& plan, Findings* findings) {
  bool right = CheckSize("ranks", plan.ranks, kMaxRanks, findings);
  right &= CheckSize("stages", plan.stages, kMaxStages, findings);
  right &= CheckSize("microbatches", plan.microbatches, kMaxMicrobatches, findings);
  right &= CheckSize("data_parallel", plan.data_parallel, kMaxDataParallel, findings);
  if (!right) return false;
  if (int64_t{plan.stages} * plan.microbatches > kMaxChunks) {
    findings->Add(Check::kShape, -1, -1,
                  "stages x microbatches is " +
                      std::to_string(int64_t{plan.stages} * plan.microbatches) +
                      ", must be at most " + std::to_string(kMaxChunks));
    right = false;
  }
  if (plan.programs.size() != static_cast<size_t>(plan.ranks)) {
    findings->Add(Check::kShape, -1, -1,
                  "there are " + std::to_string(plan.programs.size()) + " programs; each of the " +
                      std::to_string(plan.ranks) + " ranks must have one");
    right = false;
  }
  return right;
}

void CheckRoute(const Plan& plan, size_t number, std::vector<int>* route_of, Findings* findings) {
  const Route& route = plan.routes[number];
  const auto add = [&](const std::string& what) {
    findings->Add(Check::kShape, -1, -1, "route " + std::to_string(number) + " " + what);
  };
  if (route.ranks.size() != static_cast<size_t>(plan.stages)) {
    add("has " + std::to_string(route.ranks.size()) + " ranks, must have one for each of the " +
        std::to_string(plan.stages) + " stages");
  }
  for (size_t s = 0; s < route.ranks.size(); ++s) {
    if (route.ranks[s] >= 0 && route.ranks[s] < plan.ranks) continue;
    add("has stage " + std::to_string(s) + " on rank " + std::to_string(route.ranks[s]) +
        "; ranks are " + Range(plan.ranks));
  }
  if (route.microbatches.empty()) add("has no micro-batches; drop it");
  int last = -1;
  for (const int m : route.microbatches) {
    const auto add_one = [&](const std::string& what) {
      add("has micro-batch " + std::to_string(m) + what);
    };
    if (m < 0 || m >= plan.microbatches) {
      add_one("; micro-batches are " + Range(plan.microbatches));
      continue;
    }
    int& taken = (*route_of)[static_cast<size_t>(m)];
    if (taken >= 0) {
      add_one(", which route " + std::to_string(taken) +
              " has already; each belongs to exactly one route");
    } else if (m < last) {
      add_one(" behind " + std::to_string(last) + "; they must ascend");
    }
    taken = static_cast<int>(number);
    last = std::max(last, m);
  }
}

void CheckRoutes(const Plan& plan, Findings* findings) {
  std::vector<int> route_of(static_cast<size_t>(plan.microbatches), -1);
  for (size_t r = 0; r < plan.routes.size(); ++r) CheckRoute(plan, r, &route_of, findings);
  for (size_t m = 0; m < route_of.size(); ++m) {
    if (route_of[m] >= 0) continue;
    findings->Add(Check::kShape, -1, -1,
                  "micro-batch " + std::to_string(m) + " is in no route; each belongs to one");
  }
}

/// A field that is there must be below its size, one that is not must be -1.
bool Fits(int value, bool there, int size) {
  return there ? static_cast<unsigned>(value) < static_cast<unsigned>(size) : value == -1;
}

class InstructionShape {
 public:
  InstructionShape(const Plan& plan, const Instruction& i) : plan_(plan), i_(i) {
    const Operands operands = kOperands[static_cast<size_t>(i.op)];
    chunk_ = operands != Operands::kStage;
    pair_ = operands == Operands::kPair;
    message_ = operands == Operands::kMessage;
    layer_ = operands == Operands::kLayer;
  }

  bool Right() const {
    return Fits(i_.stage, true, plan_.stages) && Fits(i_.microbatch, chunk_, plan_.microbatches) &&
           Fits(i_.back_stage, pair_, plan_.stages) &&
           Fits(i_.back_microbatch, pair_, plan_.microbatches) &&
           Fits(i_.peer, message_, plan_.ranks) && Fits(i_.layer, layer_, INT16_MAX) &&
           i_.slot >= -1 && i_.group >= -1 && i_.lane <= Lane::kRecv && i_.after_count <= kMaxAfter;
  }

  void Explain(int rank, int index, Findings* findings) const {
    const auto demand = [&](const char* field, int value, bool there, int size) {
      if (Fits(value, there, size)) return;
      findings->Add(Check::kShape, rank, index,
                    std::string(Name(i_.op)) + ": " + field + " is " + std::to_string(value) +
                        ", must be " + (there ? Range(size) : "-1, the operation has none"));
    };
    demand("stage", i_.stage, true, plan_.stages);
    demand("microbatch", i_.microbatch, chunk_, plan_.microbatches);
    demand("back_stage", i_.back_stage, pair_, plan_.stages);
    demand("back_microbatch", i_.back_microbatch, pair_, plan_.microbatches);
    demand("peer", i_.peer, message_, plan_.ranks);
    demand("layer", i_.layer, layer_, INT16_MAX);
    if (i_.slot < -1) demand("slot", i_.slot, true, INT32_MAX);
    if (i_.group < -1) demand("group", i_.group, true, INT32_MAX);
    if (i_.lane > Lane::kRecv) {
      demand("lane", static_cast<int>(i_.lane), true, static_cast<int>(Lane::kRecv) + 1);
    }
    if (i_.after_count > kMaxAfter) demand("after_count", i_.after_count, true, kMaxAfter + 1);
  }

 private:
  const Plan& plan_;
  const Instruction& i_;
  bool chunk_, pair_, message_, layer_;
};

bool BelongsAt(Level level, Op op) {
  const Work work = kWork[static_cast<size_t>(op)];
  if (work == Work::kCompute) return true;
  return level == Level::kComm && work != Work::kComponent && work != Work::kAllToAll;
}

void CheckKeys(const Plan& plan, int rank, int index, const Instruction& i, Findings* findings) {
  const auto key = [&](const char* name, const std::string& why) {
    findings->Add(Check::kLevel, rank, index,
                  ToString(i) + " has the key \"" + name + "\", " + why + "; drop it");
  };
  const std::string later = "which level " + std::string(Name(plan.level)) + " does not have";
  if (i.group >= 0 && plan.level == Level::kCompute) {
    key("group", later);
  } else if (i.group >= 0 && !IsMessage(i.op)) {
    key("group", "which only SEND and RECV have");
  }
  if (i.slot >= 0) key("slot", later);
  if (i.lane != Lane::kNone) key("lane", later);
  if (i.after_count > 0) key("after", later);
}

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
                            " more of this check; mend these first"});
    }
  }
  return result;
}

void CheckShape(const Plan& plan, Findings* findings) {
  if (!CheckSizes(plan, findings)) return;
  CheckRoutes(plan, findings);
  for (int r = 0; r < plan.ranks; ++r) {
    const Program& program = plan.programs[static_cast<size_t>(r)];
    for (size_t index = 0; index < program.size(); ++index) {
      const Instruction& i = program[index];
      if (static_cast<size_t>(i.op) >= std::size(kOperands)) {
        findings->Add(Check::kShape, r, static_cast<int>(index),
                      "operation " + std::to_string(static_cast<int>(i.op)) + " does not exist");
        continue;
      }
      const InstructionShape shape(plan, i);
      if (!shape.Right()) shape.Explain(r, static_cast<int>(index), findings);
    }
  }
}

void CheckLevel(const Plan& plan, Findings* findings) {
  if (plan.level > Level::kComm) {
    findings->Add(Check::kLevel, -1, -1,
                  "plans of this level cannot be verified in this version, which knows compute and "
                  "comm");
    return;
  }
  for (int r = 0; r < plan.ranks; ++r) {
    const Program& program = plan.programs[static_cast<size_t>(r)];
    for (size_t at = 0; at < program.size(); ++at) {
      const Instruction& i = program[at];
      const int index = static_cast<int>(at);
      if (!BelongsAt(plan.level, i.op)) {
        findings->Add(
            Check::kLevel, r, index,
            ToString(i) + " does not belong at level " + std::string(Name(plan.level)) +
                (plan.level == Level::kCompute ? ", which has F B W BW FB only; drop it"
                                               : ", which has no components of a stage; drop it"));
      }
      if (i.group >= 0 || i.slot >= 0 || i.lane != Lane::kNone || i.after_count > 0) {
        CheckKeys(plan, r, index, i, findings);
      }
    }
  }
}

}  // namespace check

std::vector<Finding> Verify(const Plan& plan) {
  using check::Check;
  check::Findings findings;
  check::CheckShape(plan, &findings);
  if (!findings.empty()) return findings.Take();
  check::CheckLevel(plan, &findings);
  if (plan.level > Level::kComm) return findings.Take();
  // A few bytes of JSON can claim 2^27 chunks. What has far fewer instructions than chunks is
  // incomplete; no table is made to say which are missing.
  const int64_t chunks = int64_t{plan.stages} * plan.microbatches;
  const int64_t instructions = InstructionCount(plan);
  if (chunks > instructions + (int64_t{1} << 20)) {
    findings.Add(Check::kComplete, -1, -1,
                 "the programs have " + std::to_string(instructions) + " instructions, but " +
                     std::to_string(plan.stages) + " stages x " +
                     std::to_string(plan.microbatches) + " micro-batches need at least " +
                     std::to_string(chunks));
    return findings.Take();
  }
  check::Tables tables(plan);
  check::CheckCompute(&tables, &findings);
  if (plan.level == Level::kCompute) {
    check::CheckDataFlow(tables, &findings);
  } else {
    check::CheckComm(&tables, &findings);
    check::CheckRendezvous(tables, &findings);
  }
  return findings.Take();
}

std::string ToString(const Finding& finding, const Plan& plan) {
  if (finding.rank < 0) return finding.message;
  std::string place = "rank " + std::to_string(finding.rank);
  if (finding.index >= 0) {
    place += ", instruction " + std::to_string(finding.index);
    // Most messages begin with the instruction; the others get it from here, unless it is so wrong
    // that it has no text.
    const Instruction& i =
        plan.programs[static_cast<size_t>(finding.rank)][static_cast<size_t>(finding.index)];
    if (finding.check != "shape" && finding.message.rfind(ToString(i), 0) != 0) {
      place += " (" + ToString(i) + ")";
    }
  }
  return place + ": " + finding.message;
}

}  // namespace contraflow
