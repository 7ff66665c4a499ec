#include "runtime/host/check.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <map>
#include <span>
#include <string_view>
#include <utility>

#include "compiler/plan/error.h"

namespace contraflow {
namespace {

uint32_t BitsOf(float value) { return std::bit_cast<uint32_t>(value); }

/// The shortest text that tells the value from all others, and its bits, which tell even NaNs.
std::string Text(float value) {
  char digits[32], bits[16];
  const auto d = std::to_chars(std::begin(digits), std::end(digits), value);
  const auto b = std::to_chars(std::begin(bits), std::end(bits), BitsOf(value), 16);
  return std::string(digits, d.ptr) + " (0x" + std::string(bits, b.ptr) + ")";
}

std::string MemberName(const Plan& plan, int replica, int member) {
  std::string name = "replica " + std::to_string(replica);
  if (plan.expert_parallel > 1) name += " member " + std::to_string(member);
  return name;
}

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
  Comparison found;
  const std::string at = "step " + std::to_string(step) + ": ";
  const auto same = [&](std::span<const float> here, std::span<const float> wanted,
                        const auto& name) {
    CF_ASSERT(here.size() == wanted.size());
    const auto [a, b] = std::ranges::mismatch(here, wanted, {}, BitsOf, BitsOf);
    const auto i = static_cast<size_t>(a - here.begin());
    found.values += static_cast<int64_t>(i);
    if (i == here.size()) return true;
    found.difference = at + name(i) + " is " + Text(*a) + ", without a pipeline " + Text(*b);
    return false;
  };
  if (!result.losses.empty()) {
    const auto name = [&](size_t i) { return NameOfLoss(plan, i); };
    if (!same(result.losses, expected.losses, name)) return found;
    if (result.dropped != expected.dropped) {
      found.difference = at + std::to_string(result.dropped) +
                         " (token, expert) pairs were dropped, without a pipeline " +
                         std::to_string(expected.dropped);
      return found;
    }
  }
  std::map<std::string_view, std::pair<Stage*, const ParameterBlock*>> whole;
  for (Stage* const stage : expected.stages) {
    for (const ParameterBlock& block : stage->blocks()) whole[block.name] = {stage, &block};
  }
  for (const StageCopy& copy : CopiesOf(plan, run)) {
    for (const bool gradients : {true, false}) {
      const auto values = [&](Stage& stage, const ParameterBlock& block) {
        return (gradients ? stage.gradients() : stage.parameters())
            .subspan(block.offset, block.size);
      };
      for (const ParameterBlock& block : copy.held->blocks()) {
        const auto name = [&](size_t i) {
          return std::string(gradients ? "gradient" : "updated weight") + " of stage " +
                 std::to_string(copy.stage) + ", block \"" + block.name + "\", index " +
                 std::to_string(i) + ", on " +
                 MemberName(plan, copy.device.replica, copy.device.member) + " rank " +
                 std::to_string(copy.device.rank);
        };
        const auto& [stage, there] = whole.at(block.name);
        if (!same(values(*copy.held, block), values(*stage, *there), name)) return found;
      }
    }
  }
  return found;
}

Comparison CompareStep(const Plan& plan, int step, const StepResult& result, Run& run,
                       ReferenceRun& reference) {
  const std::vector<float> losses = reference.Step(step);
  return CompareStep(plan, step, result, run, {losses, reference.dropped(), {&reference.stage()}});
}

}  // namespace contraflow
