#include "runtime/core/check.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <span>
#include <utility>
#include <vector>

#include "compiler/plan/error.h"

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

/// The part of a whole stage's flat block that a device's block has.
std::span<const float> PartOf(Stage& whole, std::span<const float> values,
                              const ParameterBlock& block) {
  const auto blocks = whole.blocks();
  const auto same = std::find_if(blocks.begin(), blocks.end(), [&](const ParameterBlock& other) {
    return other.name == block.name && other.size == block.size;
  });
  CF_ASSERT(same != blocks.end());
  return values.subspan(same->offset, same->size);
}

std::string MemberName(const Plan& plan, int replica, int member) {
  std::string name = "replica " + std::to_string(replica);
  if (plan.expert_parallel > 1) name += " member " + std::to_string(member);
  return name;
}

/// Compares one step, and remembers the first difference.
class Comparer {
 public:
  Comparer(const Plan& plan, int step) : plan_(plan), at_("step " + std::to_string(step) + ": ") {}

  bool SameLosses(std::span<const float> run, std::span<const float> reference) {
    const size_t i = FirstDifference(run, reference);
    comparison_.values += static_cast<int64_t>(i);
    if (i == run.size()) return true;
    comparison_.difference = Describe(at_ + NameOfLoss(plan_, i), run[i], reference[i]);
    return false;
  }

  bool SameDropped(int64_t run, int64_t reference) {
    if (run == reference) return true;
    comparison_.difference = at_ + std::to_string(run) +
                             " (token, expert) pairs were dropped, without a pipeline " +
                             std::to_string(reference);
    return false;
  }

  bool SameStage(int s, Device device, Stage& copy, Stage& reference) {
    return SameValues("gradient", s, device, copy, copy.gradients(), reference,
                      reference.gradients()) &&
           SameValues("updated weight", s, device, copy, copy.parameters(), reference,
                      reference.parameters());
  }

  Comparison Take() { return std::move(comparison_); }

 private:
  bool SameValues(const char* what, int s, Device device, Stage& copy,
                  std::span<const float> values, Stage& whole, std::span<const float> expected) {
    for (const ParameterBlock& block : copy.blocks()) {
      const std::span<const float> part = values.subspan(block.offset, block.size);
      const std::span<const float> wanted = PartOf(whole, expected, block);
      const size_t i = FirstDifference(part, wanted);
      comparison_.values += static_cast<int64_t>(i);
      if (i == part.size()) continue;
      comparison_.difference = Describe(
          at_ + what + " of stage " + std::to_string(s) + ", block \"" + block.name + "\", index " +
              std::to_string(i) + ", on " + MemberName(plan_, device.replica, device.member) +
              " rank " + std::to_string(device.rank),
          part[i], wanted[i]);
      return false;
    }
    return true;
  }

  const Plan& plan_;
  const std::string at_;
  Comparison comparison_;
};

}  // namespace

std::string NameOfLoss(const Plan& plan, size_t place) {
  const auto micros = static_cast<size_t>(plan.microbatches);
  const auto device = static_cast<int>(place / micros);
  return "loss of " +
         MemberName(plan, device / plan.expert_parallel, device % plan.expert_parallel) +
         ", micro-batch " + std::to_string(place % micros);
}

Comparison CompareStep(const Plan& plan, int step, const StepResult& result, Run& run,
                       const ExpectedStep& expected) {
  Comparer comparer(plan, step);
  if (!result.losses.empty()) {
    if (!comparer.SameLosses(result.losses, expected.losses)) return comparer.Take();
    if (!comparer.SameDropped(result.dropped, expected.dropped)) return comparer.Take();
  }
  const std::vector<std::vector<int>> holders = HoldersOfStage(plan);
  for (int s = 0; s < plan.stages; ++s) {
    const std::vector<int>& ranks = holders[static_cast<size_t>(s)];
    Stage& whole = expected.stage_at(s);
    for (const Device& device : run.devices()) {
      if (std::find(ranks.begin(), ranks.end(), device.rank) == ranks.end()) continue;
      if (!comparer.SameStage(s, device, run.At(device).StageAt(s), whole)) return comparer.Take();
    }
  }
  return comparer.Take();
}

Comparison CompareStep(const Plan& plan, int step, const StepResult& result, Run& run,
                       ReferenceRun& reference) {
  const std::vector<float> losses = reference.Step(step);
  return CompareStep(plan, step, result, run, {losses, reference.dropped(), [&](int s) -> Stage& {
                                                 return reference.StageAt(s);
                                               }});
}

}  // namespace contraflow
