#include "runtime/gpu/gpu.h"

#include <algorithm>
#include <string>

#include "compiler/plan/error.h"

namespace contraflow {
namespace {

// Of 132 SMs a link takes 4 CTAs and an exchange among experts 16, which leaves 112 to compute: the
// shares that DeepSeek trained with. Smaller partitions are divided in the same proportion.
constexpr int kOf = 132, kLinkCtas = 4, kExpertCtas = 16;

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

SmBudget BudgetOf(int sms, int devices, bool expert_parallel, int wanted) {
  if (devices < 1) {
    throw Error("a GPU stands for at least 1 device, not " + std::to_string(devices));
  }
  SmBudget budget;
  budget.partitions = devices;
  const bool whole = devices == 1 && (wanted == 0 || wanted == sms);
  if (!whole) budget.sms = SmsOfPartition(sms, devices, wanted);
  const int available = whole ? sms : budget.sms;
  budget.link_ctas = Share(available, kLinkCtas);
  budget.expert_ctas = expert_parallel ? Share(available, kExpertCtas) : 0;
  budget.compute = available - budget.link_ctas - budget.expert_ctas;
  if (budget.compute < 1) {
    throw Error("a GPU of " + Count(sms, "SM") + " has none left for compute: " +
                std::to_string(budget.link_ctas + budget.expert_ctas) +
                " are needed to communicate");
  }
  return budget;
}

}  // namespace contraflow
