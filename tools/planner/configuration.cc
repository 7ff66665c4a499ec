#include "tools/planner/configuration.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

#include "compiler/files/json.h"
#include "compiler/plan/error.h"
#include "compiler/plan/units.h"

namespace contraflow {
namespace {

constexpr std::array<std::string_view, 10> kKeys = {"tp",  "cp", "ep",          "etp", "pp",
                                                    "vpp", "dp", "micro-batch", "mb",  "zero"};
/// Larger ones hold more and save little.
constexpr int kMostMicroBatch = 16;
constexpr int kMostZero = 3;
/// Fixed values are multiplied up to here.
constexpr int64_t kMostProduct = 1 << 20;
/// Fewest tokens of a sequence on a device; shorter parts compute less than they send.
constexpr int64_t kLeastPart = 4096;

std::vector<int> PowersOfTwo(int most) {
  std::vector<int> values;
  for (int64_t value = 1; value <= most; value *= 2) values.push_back(static_cast<int>(value));
  return values;
}

std::vector<int> DivisorsOf(int64_t number, int most) {
  std::vector<int> values;
  for (int value = 1; value <= most && value <= number; ++value) {
    if (number % value == 0) values.push_back(value);
  }
  return values;
}

/// The fixed value of a key alone, else all.
std::vector<int> Choices(const PlanRequest& request, std::string_view key, std::vector<int> all) {
  const auto fixed = request.fixed.find(key);
  return fixed == request.fixed.end() ? std::move(all) : std::vector<int>{fixed->second};
}

/// Devices that split each expert: one, or those that split all else.
std::vector<int> ExpertSplits(const PlanRequest& request, int tp) {
  const bool both = tp > 1 && request.model.has_experts();
  return Choices(request, "etp", both ? std::vector<int>{1, tp} : std::vector<int>{1});
}

/// Devices that split a sequence: only long ones are worth it.
std::vector<int> SequenceSplits(const PlanRequest& request) {
  const int64_t most = std::min<int64_t>(request.sequence / kLeastPart, request.gpus);
  return Choices(request, "cp", PowersOfTwo(static_cast<int>(std::max<int64_t>(1, most))));
}

int64_t ExpertsOf(const ModelShape& model) {
  int64_t experts = 1;
  for (const LayerShape& layer : model.layers) experts = std::max(experts, layer.moe.experts);
  return experts;
}

/// True if the costs of a setup exist: heads, widths and experts divide.
bool FitsShape(const PlanRequest& request, const Configuration& configuration) {
  try {
    CheckSetup(request.SetupOf(configuration), request.model);
    return true;
  } catch (const Error&) {
    return false;
  }
}

/// Sets ZeRO: as fixed, else 1 where anything has a copy to share with, since that takes no
/// longer and holds less in these costs. False if what is fixed has nothing to share.
bool SetZero(const PlanRequest& request, Configuration* configuration) {
  const Copies copies = CopiesOf(configuration->parallel(), configuration->replicas());
  const bool shares =
      request.model.has_experts() ? std::max(copies.experts, copies.rest) > 1 : copies.rest > 1;
  const auto fixed = request.fixed.find("zero");
  configuration->zero = fixed == request.fixed.end() ? (shares ? 1 : 0) : fixed->second;
  return shares || configuration->zero == 0;
}

/// Divides the batch; false where that leaves a remainder.
bool Divide(const PlanRequest& request, Configuration* configuration) {
  const int64_t rows = int64_t{configuration->dp} * configuration->micro_batch;
  if (request.global_batch % rows != 0) return false;
  configuration->microbatches = static_cast<int>(request.global_batch / rows);
  return true;
}

/// Throws Error if the model has no layers, or experts, for a fixed value.
void CheckFixed(const PlanRequest& request) {
  const int64_t layers = std::ssize(request.model.layers), experts = ExpertsOf(request.model);
  const auto refuse = [](std::string_view key, int value, const std::string& why) {
    throw Error("`fix`: " + std::string(key) + "=" + std::to_string(value) + " " + why);
  };
  if (const auto pp = request.fixed.find("pp"); pp != request.fixed.end() && pp->second > layers) {
    refuse("pp", pp->second, "is more than the " + std::to_string(layers) + " layers");
  }
  const auto ep = request.fixed.find("ep");
  if (ep == request.fixed.end() || ep->second == 1) return;
  if (!request.model.has_experts()) refuse("ep", ep->second, "is for experts; the model has none");
  if (experts % ep->second != 0) {
    refuse("ep", ep->second, "does not divide the " + std::to_string(experts) + " experts");
  }
}

/// GPUs of one replica, as far as values are fixed, at least.
int64_t FixedProduct(const FixedValues& fixed) {
  int64_t product = 1;
  for (const char* const key : {"tp", "cp", "pp"}) {
    const auto value = fixed.find(key);
    if (value != fixed.end() && product <= kMostProduct) product *= value->second;
  }
  return product;
}

std::string FixedText(const FixedValues& fixed) {
  std::string text;
  for (const auto& [key, value] : fixed) {
    text += (text.empty() ? "" : ",") + key + "=" + std::to_string(value);
  }
  return text;
}

}  // namespace

void ForEachPair(std::string_view text, std::span<const std::string_view> keys,
                 const std::function<void(const std::string& key, std::string_view value)>& take) {
  while (true) {
    const std::string_view pair = text.substr(0, text.find(','));
    const size_t at = pair.find('=');
    const std::string key(pair.substr(0, at));
    if (std::ranges::find(keys, key) == keys.end()) {
      std::string known;
      for (const std::string_view each : keys) {
        known += (known.empty() ? "" : ", ") + std::string(each);
      }
      throw Error("there is no \"" + key.substr(0, 64) + "\"; known are " + known);
    }
    take(key, at == std::string_view::npos ? "" : pair.substr(at + 1));
    if (pair.size() == text.size()) return;
    text.remove_prefix(pair.size() + 1);
  }
}

std::optional<int> WholeNumber(std::string_view text, int least) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least) {
    return std::nullopt;
  }
  return value;
}

FixedValues ParseFixed(std::string_view text) try {
  FixedValues fixed;
  ForEachPair(text, kKeys, [&](const std::string& key, std::string_view number) {
    const int least = key == "zero" ? 0 : 1;
    const std::optional<int> value = WholeNumber(number, least);
    if (!value) {
      throw Error(key + " must be a whole number of at least " + std::to_string(least) +
                  ", as in " + key + "=1");
    }
    if (key == "zero" && *value > kMostZero) throw Error("zero must be 0, 1, 2 or 3");
    // The table heads that column "mb".
    if (!fixed.emplace(key == "mb" ? "micro-batch" : key, *value).second)
      throw Error("has " + key + " twice");
  });
  return fixed;
} catch (const Error& error) {
  throw Error("`fix`: " + std::string(error.what()));
}

CostSetup PlanRequest::SetupOf(const Configuration& configuration) const {
  CostSetup setup;
  setup.gpu = &gpu;
  setup.tensor_parallel = configuration.tp;
  setup.context_parallel = configuration.cp;
  setup.expert_parallel = configuration.ep;
  setup.expert_tensor = configuration.etp;
  setup.sequence = sequence;
  setup.micro_batch = configuration.micro_batch;
  setup.fp8 = fp8;
  setup.tp_overlap = tp_overlap;
  setup.components = !waits();
  setup.optimizer = optimizer;
  setup.activations = activations;
  setup.workspace = workspace;
  setup.efficiency = EfficienciesOf(gpu, fp8);
  for (double& share : setup.efficiency) share = std::min(1.0, share * scale);
  if (!scaled_by.empty()) {
    setup.efficiency_note =
        FormatReal(std::round(scale * 1000) / 1000) + " times those of the GPU: " + scaled_by;
  }
  setup.gpus = gpus;
  setup.stage_gpus = gpus / configuration.pp;
  return setup;
}

Launch PlanRequest::LaunchOf(const Configuration& configuration) const {
  return {.framework = framework,
          .micro_batch = configuration.micro_batch,
          .sequence = sequence,
          .zero = configuration.zero,
          .fp8 = fp8,
          .tp_overlap = tp_overlap,
          .experts = model.has_experts(),
          .optimizer = std::string(optimizer->name)};
}

std::vector<Configuration> ConfigurationsOf(const PlanRequest& request, Rejected* rejected) {
  CheckFixed(request);
  const int node = static_cast<int>(std::min<int64_t>(request.gpu.node, request.gpus));
  const auto layers = static_cast<int>(request.model.layers.size());
  const std::vector<int> tps = Choices(request, "tp", PowersOfTwo(node));
  const std::vector<int> cps = SequenceSplits(request);
  const std::vector<int> eps =
      Choices(request, "ep", DivisorsOf(ExpertsOf(request.model), request.gpus));
  const std::vector<int> pps = Choices(request, "pp", DivisorsOf(request.gpus, layers));
  const std::vector<int> sizes = Choices(request, "micro-batch", PowersOfTwo(kMostMicroBatch));
  const auto dp = request.fixed.find("dp");
  std::vector<Configuration> found;
  int batches = 0;  // configurations that only the batch does not divide
  const auto add = [&](Configuration each) {
    const int64_t split = int64_t{each.tp} * each.cp * each.pp;
    if (request.gpus % split != 0 || !FlawOf(each.parallel()).empty()) {
      ++rejected->shape;
      return;
    }
    each.dp = static_cast<int>(request.gpus / split);
    if ((dp != request.fixed.end() && dp->second != each.dp) ||
        each.dp % each.parallel().batches() != 0 || each.pp > layers || !FitsShape(request, each) ||
        !SetZero(request, &each)) {
      ++rejected->shape;
      return;
    }
    if (!Divide(request, &each)) {
      ++rejected->shape;
      ++batches;
      return;
    }
    found.push_back(each);
  };
  const auto add_all = [&](int tp, int cp, int ep, int etp) {
    for (const int pp : pps) {
      for (const int size : sizes) {
        add({.tp = tp, .cp = cp, .ep = ep, .etp = etp, .pp = pp, .micro_batch = size});
      }
    }
  };
  for (const int tp : tps) {
    for (const int cp : cps) {
      for (const int ep : eps) {
        for (const int etp : ExpertSplits(request, tp)) add_all(tp, cp, ep, etp);
      }
    }
  }
  if (!found.empty()) return found;
  const std::string fixed = FixedText(request.fixed);
  if (batches > 0) {
    throw Error("`global_batch`: " + std::to_string(request.global_batch) +
                " sequences do not divide into whole micro-batches of any configuration; give a "
                "multiple of the replicas, such as " +
                std::to_string(request.gpus) +
                (fixed.empty() ? "" : ", or `fix` less than " + fixed));
  }
  const int64_t product = FixedProduct(request.fixed);
  if (request.gpus % product != 0) {
    throw Error("`fix`: " + fixed + " are " + std::to_string(product) +
                " GPUs or more, which must divide the " + std::to_string(request.gpus) +
                " of `gpus`; fix less");
  }
  throw Error("`gpus`: the model cannot be split over " + std::to_string(request.gpus) + " GPUs" +
              (fixed.empty() ? "; give a multiple of 8"
                             : " with `fix` " + fixed +
                                   ": tp x cp x pp x dp must be all of them, and ep x etp must "
                                   "divide tp x cp x dp, as dp counts the replicas that share "
                                   "experts too; fix less"));
}

}  // namespace contraflow
