#include "runtime/exec/gpu.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "compiler/plan/error.h"

namespace contraflow {
namespace {

// On 132 SMs a link takes 2 CTAs and an exchange among experts 16; with two links that leaves 112
// to compute, the shares that DeepSeek trained with. A sum takes 4 more; if nothing runs with it,
// as many as an exchange. Smaller partitions are divided in the same proportion. NCCL takes powers
// of two.
constexpr int kOf = 132, kLinkCtas = 2, kExpertCtas = 16, kSumCtas = 4, kLoneSumCtas = 16;

int Share(int sms, int ctas) { return std::clamp((sms * ctas + kOf / 2) / kOf, 1, ctas); }

std::string Count(int n, const std::string& noun) {
  return std::to_string(n) + " " + noun + (n == 1 ? "" : "s");
}

int SmsOfPartition(int sms, int devices, int wanted) {
  const int most_devices = sms / kPartitionSms;
  if (wanted == 0) {
    if (devices > most_devices) {
      throw Error("a GPU of " + Count(sms, "SM") + " can stand for at most " +
                  Count(std::max(most_devices, 1), "device") + " (partitions of at least " +
                  std::to_string(kPartitionSms) + " SMs), not for " + std::to_string(devices) +
                  "; compile the plan for fewer ranks, or run it on more GPUs");
    }
    return sms / devices / kPartitionSms * kPartitionSms;
  }
  const std::string asked = Count(devices, "partition") + " of " + Count(wanted, "SM");
  if (wanted < kPartitionSms || wanted % kPartitionSms != 0) {
    throw Error(asked + ": the SMs of a partition are a multiple of " +
                std::to_string(kPartitionSms) + ", and at least as many");
  }
  if (wanted > sms / devices) {
    const int most = sms / devices / kPartitionSms * kPartitionSms;
    throw Error(asked + " do not fit a GPU of " + Count(sms, "SM") + "; " +
                (most == 0 ? "at most " + Count(most_devices, "device") + " do, of " +
                                 std::to_string(kPartitionSms) + " each"
                           : Count(devices, "device") + " can have at most " +
                                 std::to_string(most) + " each"));
  }
  return wanted;
}

}  // namespace

SmUse UseOf(const Plan& plan) {
  SmUse use = {.experts = plan.expert_parallel > 1};
  const std::vector<std::vector<int>> holders = HoldersOfStage(plan);
  std::vector<int> stages_of(static_cast<size_t>(plan.ranks));
  for (const std::vector<int>& ranks : holders) {
    for (const int rank : ranks) ++stages_of[static_cast<size_t>(rank)];
  }
  for (const std::vector<int>& ranks : holders) {
    if (!NeedsReduce(plan, ranks.size())) continue;
    for (const int rank : ranks) use.sums |= stages_of[static_cast<size_t>(rank)] > 1;
  }
  for (const Program& program : plan.programs) {
    std::set<std::pair<int, bool>> edges;
    for (const Instruction& i : program) {
      if (IsMessage(i.op)) edges.emplace(i.peer, IsSend(i.op));
    }
    use.links = std::max(use.links, static_cast<int>(edges.size()));
  }
  return use;
}

SmBudget BudgetOf(int sms, int devices, SmUse use, int wanted) {
  if (devices < 1) {
    throw Error("a GPU stands for at least 1 device, not " + std::to_string(devices));
  }
  SmBudget budget;
  budget.partitions = devices;
  const bool whole = devices == 1 && (wanted == 0 || wanted == sms);
  if (!whole) budget.sms = SmsOfPartition(sms, devices, wanted);
  const int available = whole ? sms : budget.sms;
  budget.link_ctas = Share(available, kLinkCtas);
  budget.expert_ctas = use.experts ? Share(available, kExpertCtas) : 0;
  budget.sum_ctas = Share(available, use.sums ? kSumCtas : kLoneSumCtas);
  const int communication =
      use.links * budget.link_ctas + budget.expert_ctas + (use.sums ? budget.sum_ctas : 0);
  budget.compute = available - communication;
  if (budget.compute < 1) {
    throw Error("a GPU of " + Count(sms, "SM") + " has none left for compute: " +
                std::to_string(communication) + " are needed to communicate");
  }
  return budget;
}

}  // namespace contraflow
