#include "tools/interop/stage_layers.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <utility>

#include "compiler/plan/error.h"
#include "compiler/plan/spec.h"

namespace contraflow {
namespace {

constexpr int kMostLayers = 1 << 20;

LayerLayout OfCounts(const Partition& counts) {
  LayerLayout layout;
  for (const int count : counts) layout.emplace_back(static_cast<size_t>(count), 't');
  layout.front().insert(0, 1, 'E');
  layout.back() += 'L';
  return layout;
}

/// The same of this many layers in all.
Partition SpreadLayers(int layers, int stages) {
  Partition counts(static_cast<size_t>(stages), layers / stages);
  for (size_t i = 1; i <= static_cast<size_t>(layers % stages); ++i) ++counts[i];
  return counts;
}

bool StagesAreAlike(const Plan& plan) {
  if (!plan.costs) return true;
  // Stages that were cut from equal ones may differ by rounding.
  const auto close = [](Time a, Time b) { return std::abs(a - b) <= 2 + std::max(a, b) / 1000; };
  const std::vector<StageCost>& stages = plan.costs->stages;
  return std::ranges::all_of(stages, [&](const StageCost& stage) {
    const StageCost& first = stages.front();
    return close(stage.f, first.f) && close(stage.b, first.b) && close(stage.w, first.w);
  });
}

/// Layout of the costs; empty where they have none.
LayerLayout OfCosts(const Plan& plan) {
  LayerLayout layout = LayoutOf(plan);
  if (!layout.empty() || !plan.costs || !plan.costs->moe) return layout;
  return OfCounts(Partition(static_cast<size_t>(plan.stages), plan.costs->moe->layers_per_stage));
}

/// True for numbers with a comma or an x between them.
bool IsList(const std::string& text) {
  bool digit = false;
  for (const char c : text) {
    const bool is = c >= '0' && c <= '9';
    if (!is && (!digit || (c != ',' && c != 'x'))) return false;
    digit = is;
  }
  return digit;
}

/// A layout or a list.
LayerLayout ReadLayers(const Plan& plan, const std::string& text) {
  LayerLayout layout;
  if (IsLayerLayout(text)) {
    layout = ParseLayerLayout(text);
  } else {
    if (!IsList(text)) {
      throw Error(
          "`layers`: must be how many layers there are or each stage has, as in 24 or 6,5x6,4, or "
          "a "
          "layout such as Et*6|(t*6|)*6t*4L, is \"" +
          text.substr(0, 64) + "\"");
    }
    const PartitionChoice choice = ParsePartition(text);
    layout = OfCounts(choice.layers);
  }
  if (std::cmp_not_equal(layout.size(), plan.stages)) {
    throw Error("`partition`: is of " + std::to_string(layout.size()) +
                " stages, and the plan has " + std::to_string(plan.stages));
  }
  return layout;
}

/// An error about `layers` in place of one about a partition.
template <typename Body>
auto AboutLayers(const Body& body) {
  try {
    return body();
  } catch (const Error& error) {
    std::string what = error.what();
    constexpr std::string_view kField = "`partition`";
    if (what.starts_with(kField)) what.replace(0, kField.size(), "`layers`");
    throw Error(what);
  }
}

std::optional<int> NumberOfLayers(const std::string& text) {
  int number = 0;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, number);
  if (at != end || error == std::errc::invalid_argument) return std::nullopt;
  return error == std::errc() ? number : kMostLayers + 1;
}

}  // namespace

LayerLayout LayersOfStages(const Plan& plan, const std::optional<std::string>& layers,
                           UnknownLayers unknown) {
  const LayerLayout known = OfCosts(plan);
  if (!layers && !known.empty()) return known;
  if (!layers && plan.costs && !plan.costs->partition.empty()) {
    throw Error("the stages of this plan are of " + FormatPartition(plan.costs->partition) +
                " layers of its costs, and it does not say which of these are transformer layers; "
                "compile it again, or give `layers` as a layout such as Et*6|(t*6|)*6t*4L");
  }
  const std::optional<int> number = layers ? NumberOfLayers(*layers) : plan.stages;
  if (number) {
    if (*number < plan.stages || *number > kMostLayers) {
      throw Error("`layers`: must be in " + std::to_string(plan.stages) + ".." +
                  std::to_string(kMostLayers) + ", at least one for each stage, is " + *layers);
    }
    if (known.empty() && !StagesAreAlike(plan)) {
      throw Error(
          "the stages of this plan differ, and its costs do not say how many layers each has; give "
          "`layers` as a list such as 6,5x6,4, or a layout such as Et*6|(t*6|)*6t*4L");
    }
  }
  if (!layers && unknown == UnknownLayers::kRefuse) {
    throw Error(
        "the costs of this plan do not say how many layers the model has; give `layers`, the "
        "number of transformer layers such as 32, a list of the stages such as 6,5x6,4, or a "
        "layout such as Et*6|(t*6|)*6t*4L");
  }
  LayerLayout layout = AboutLayers([&] {
    return number ? OfCounts(SpreadLayers(*number, plan.stages)) : ReadLayers(plan, *layers);
  });
  if (known.empty()) return layout;
  int64_t given = 0, has = 0;
  for (const std::string& stage : layout) given += std::count(stage.begin(), stage.end(), 't');
  for (const std::string& stage : known) has += std::count(stage.begin(), stage.end(), 't');
  if (number && given == has) return known;
  if (layout == known) return known;
  throw Error("`layers`: the costs of the plan have the layers " + FormatLayerLayout(known) +
              "; leave it out");
}

}  // namespace contraflow
