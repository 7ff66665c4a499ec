#include "compiler/memory.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "compiler/error.h"

namespace contraflow {
namespace {

using Arenas = std::array<int64_t, kArenaCount>;

int64_t Sum(const Arenas& arenas) {
  return std::accumulate(arenas.begin(), arenas.end(), int64_t{0});
}

/// The stages that each rank holds a copy of.
std::vector<std::vector<int>> StagesOfRank(const Plan& plan) {
  std::vector<std::vector<int>> stages(plan.programs.size());
  const std::vector<std::vector<int>> holders = HoldersOfStage(plan);
  for (int s = 0; s < plan.stages; ++s) {
    for (const int rank : holders[static_cast<size_t>(s)]) {
      stages[static_cast<size_t>(rank)].push_back(s);
    }
  }
  return stages;
}

/// Throws Error if a list of bytes is not for a plan with so many stages.
void CheckStages(const char* key, const std::vector<int64_t>& bytes, int stages) {
  if (bytes.size() <= 1 || bytes.size() == static_cast<size_t>(stages)) return;
  throw Error("the costs give \"" + std::string(key) + "\" for " + std::to_string(bytes.size()) +
              " stages, this plan has " + std::to_string(stages) +
              "; give one number (every stage alike) or one for each stage");
}

std::optional<int64_t> SumOf(const std::vector<int64_t>& bytes, const std::vector<int>& stages) {
  if (bytes.empty()) return std::nullopt;
  int64_t sum = 0;
  for (const int s : stages) sum += bytes.size() == 1 ? bytes[0] : bytes[static_cast<size_t>(s)];
  return sum;
}

/// What the activations of one rank come to, instruction by instruction. Whatever begins or ends
/// the life of one runs on the compute lane, so program order is the order in time.
class Walk {
 public:
  Walk(const Plan& plan, const MemoryCost& memory) : plan_(plan), memory_(memory) {
    if (plan.layers == 0) return;
    weights_left_.assign(static_cast<size_t>(plan.stages) * static_cast<size_t>(plan.microbatches),
                         0);
  }

  void Run(const Program& program, MemoryFigures* figures) {
    held_ = {};
    for (size_t index = 0; index < program.size(); ++index) {
      const Instruction& i = program[index];
      const bool whole = OperandsOf(i.op) != Operands::kLayer;
      if (whole ? HasForward(i.op) : i.op == Op::ATTN_F && i.layer == 0) Begin(i);
      if (Sum(held_) > figures->peak) {
        figures->arenas = held_;
        figures->peak = Sum(held_);
        figures->peak_index = static_cast<int>(index);
      }
      if (whole ? HasBackward(i.op) : i.op == Op::ATTN_B && i.layer == 0) {
        At(Arena::kActivation) -= memory_.activation_bytes - memory_.w_stash_bytes;
      }
      if (whole ? HasWeight(i.op) : EndsWeights(i)) At(Arena::kStash) -= memory_.w_stash_bytes;
    }
  }

 private:
  int64_t& At(Arena arena) { return held_[static_cast<size_t>(arena)]; }

  int& WeightsLeft(const Instruction& i) {
    return weights_left_[static_cast<size_t>(i.stage) * static_cast<size_t>(plan_.microbatches) +
                         static_cast<size_t>(i.microbatch)];
  }

  void Begin(const Instruction& i) {
    At(Arena::kActivation) += memory_.activation_bytes - memory_.w_stash_bytes;
    At(Arena::kStash) += memory_.w_stash_bytes;
    if (plan_.layers > 0) WeightsLeft(i) = 2 * plan_.layers;
  }

  /// True for the last weight part of a chunk.
  bool EndsWeights(const Instruction& i) {
    return (i.op == Op::MLP_W || i.op == Op::ATTN_W) && --WeightsLeft(i) == 0;
  }

  const Plan& plan_;
  const MemoryCost& memory_;
  Arenas held_{};
  std::vector<int> weights_left_;  // by stage and micro-batch
};

/// The arenas, and the instruction at which most bytes of them are in use.
void Place(const std::vector<Slot>& slots, size_t instructions, MemoryFigures* figures) {
  figures->arenas = ArenaBytes(slots);
  figures->peak = Sum(figures->arenas);
  std::vector<int64_t> change(instructions + 1, 0);
  for (const Slot& slot : slots) {
    change[static_cast<size_t>(slot.first)] += slot.bytes;
    change[static_cast<size_t>(slot.last) + 1] -= slot.bytes;
  }
  int64_t live = 0, most = 0;
  for (size_t i = 0; i < instructions; ++i) {
    live += change[i];
    if (live <= most) continue;
    most = live;
    figures->peak_index = static_cast<int>(i);
  }
}

std::string Grouped(int64_t count) {
  std::string text = std::to_string(count);
  for (size_t at = text.size(); at > 3;) text.insert(at -= 3, ",");
  return text;
}

}  // namespace

std::vector<MemoryFigures> MemoryOf(const Plan& plan, const CostModel& costs) {
  const MemoryCost memory = costs.memory.value_or(MemoryCost{});
  CheckStages("parameter_bytes", memory.parameter_bytes, plan.stages);
  CheckStages("gradient_bytes", memory.gradient_bytes, plan.stages);
  CheckStages("optimizer_bytes", memory.optimizer_bytes, plan.stages);
  const std::vector<std::vector<int>> stages = StagesOfRank(plan);
  std::vector<MemoryFigures> ranks(plan.programs.size());
  Walk walk(plan, memory);
  for (size_t r = 0; r < ranks.size(); ++r) {
    ranks[r].parameters = SumOf(memory.parameter_bytes, stages[r]);
    ranks[r].gradients = SumOf(memory.gradient_bytes, stages[r]);
    ranks[r].optimizer = SumOf(memory.optimizer_bytes, stages[r]);
    if (plan.slots.empty()) {
      walk.Run(plan.programs[r], &ranks[r]);
    } else {
      Place(plan.slots[r], plan.programs[r].size(), &ranks[r]);
    }
  }
  return ranks;
}

std::string Breakdown(const MemoryFigures& figures) {
  constexpr const char* kNames[] = {"activations", "stashes", "gradients in flight",
                                    "exchange buffers"};
  static_assert(std::size(kNames) == kArenaCount);
  std::string text;
  const auto add = [&text](const char* name, int64_t bytes) {
    text += (text.empty() ? "" : ", ") + std::string(name) + " " + Grouped(bytes);
  };
  for (size_t a = 0; a < kArenaCount; ++a) {
    // Below level buffer the last two are not accounted.
    if (a < 2 || figures.arenas[a] > 0) add(kNames[a], figures.arenas[a]);
  }
  const std::pair<const char*, std::optional<int64_t>> beside[] = {
      {"parameters", figures.parameters},
      {"gradients", figures.gradients},
      {"optimizer state", figures.optimizer}};
  const char* separator = "; beside them ";
  for (const auto& [name, bytes] : beside) {
    if (!bytes) continue;
    text += separator + std::string(name) + " " + Grouped(*bytes);
    separator = ", ";
  }
  return text;
}

}  // namespace contraflow
