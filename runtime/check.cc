#include "runtime/check.h"

#include <bit>
#include <charconv>
#include <span>

#include "compiler/error.h"

namespace contraflow {
namespace {

/// The shortest text that tells the value from all others, and its bits, which tell even NaNs.
std::string Text(float value) {
  char digits[32];
  char bits[16];
  const auto d = std::to_chars(std::begin(digits), std::end(digits), value);
  const auto b =
      std::to_chars(std::begin(bits), std::end(bits), std::bit_cast<uint32_t>(value), 16);
  return std::string(digits, d.ptr) + " (0x" + std::string(bits, b.ptr) + ")";
}

/// Index of the first element whose bits differ, or the size.
size_t FirstDifference(std::span<const float> a, std::span<const float> b) {
  CF_ASSERT(a.size() == b.size());
  size_t i = 0;
  while (i < a.size() && std::bit_cast<uint32_t>(a[i]) == std::bit_cast<uint32_t>(b[i])) ++i;
  return i;
}

std::string Describe(const std::string& what, float pipeline, float reference) {
  return what + " is " + Text(pipeline) + ", without a pipeline " + Text(reference);
}

/// Where index `i` of a stage's flat block lies.
std::string Place(const Stage& stage, size_t i) {
  for (const ParameterBlock& block : stage.blocks()) {
    if (i < block.offset || i >= block.offset + block.size) continue;
    return "block \"" + block.name + "\", index " + std::to_string(i - block.offset);
  }
  return "padding, index " + std::to_string(i);
}

}  // namespace

Comparison CompareStep(const Plan& plan, int step, const StepResult& result, ThreadedRun& run,
                       ReferenceRun& reference) {
  Comparison comparison;
  const std::string at = "step " + std::to_string(step) + ": ";
  const std::vector<float> losses = reference.Step(step);
  size_t i = FirstDifference(result.losses, losses);
  if (i < losses.size()) {
    const auto micros = static_cast<size_t>(plan.microbatches);
    comparison.difference = Describe(at + "loss of replica " + std::to_string(i / micros) +
                                         ", micro-batch " + std::to_string(i % micros),
                                     result.losses[i], losses[i]);
    return comparison;
  }
  comparison.values += static_cast<int64_t>(losses.size());

  const std::vector<std::vector<int>> holders = HoldersOfStage(plan);
  for (int s = 0; s < plan.stages; ++s) {
    Stage& expected = reference.StageAt(s);
    for (int d = 0; d < plan.data_parallel; ++d) {
      for (const int rank : holders[static_cast<size_t>(s)]) {
        Stage& copy = run.At(d, rank).StageAt(s);
        const auto equal = [&](const char* what, std::span<const float> a,
                               std::span<const float> b) {
          i = FirstDifference(a, b);
          comparison.values += static_cast<int64_t>(i);
          if (i == a.size()) return true;
          comparison.difference =
              Describe(at + what + " of stage " + std::to_string(s) + ", " + Place(copy, i) +
                           ", on replica " + std::to_string(d) + " rank " + std::to_string(rank),
                       a[i], b[i]);
          return false;
        };
        if (!equal("gradient", copy.gradients(), expected.gradients())) return comparison;
        if (!equal("updated weight", copy.parameters(), expected.parameters())) return comparison;
      }
    }
  }
  return comparison;
}

}  // namespace contraflow
