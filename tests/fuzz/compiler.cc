// Targets of plans, costs and specs.

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "compiler/files/cost_io.h"
#include "compiler/files/plan_io.h"
#include "compiler/files/trace.h"
#include "compiler/simulate/simulate.h"
#include "compiler/verify/verify.h"
#include "schedules/compile.h"
#include "schedules/registry.h"
#include "tests/fuzz/targets.h"
#include "tests/support/mutants.h"
#include "tests/support/naive.h"
#include "tests/support/support.h"

namespace contraflow {
namespace {

void CheckPlan(const Plan& plan) {
  const std::string text = WritePlan(plan);
  CF_ASSERT(ReadPlan(text, "text") == plan);
  CF_ASSERT(ReadPlan(WritePlanBinary(plan), "binary") == plan);
  // A few bytes can claim a large plan; its head is checked above, the rest would only be slow.
  if (int64_t{plan.stages} * plan.microbatches > 1 << 12 || plan.ranks > 1 << 8) return;
  if (!Verify(plan).empty()) return;
  const CostModel costs = plan.costs ? *plan.costs : UniformCosts(2, 2, 1, 1);
  const Simulation simulation = Simulate(plan, costs);
  CF_ASSERT(simulation.makespan == Makespan(simulation.timeline));
  CF_ASSERT(!WriteTrace(plan, simulation.timeline).empty());
}

/// Numbers first, zeros after their end, and words up to a newline.
class Bytes {
 public:
  explicit Bytes(std::string_view bytes) : rest_(bytes) {}
  template <typename T>
  T Number() {
    T number{};
    const size_t size = std::min(sizeof number, rest_.size());
    if (size > 0) std::memcpy(&number, rest_.data(), size);
    rest_.remove_prefix(size);
    return number;
  }
  std::string Word() {
    const size_t end = std::min(rest_.find('\n'), rest_.size());
    std::string word(rest_.substr(0, end));
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    return word;
  }
  bool empty() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

/// Small, or whatever the four bytes say.
int Size(Bytes* bytes) {
  const auto small = bytes->Number<uint8_t>();
  return small < 255 ? small % 32 : bytes->Number<int32_t>();
}

CostModel Costs(Bytes* bytes) {
  const auto time = [&] { return Time{bytes->Number<uint8_t>()}; };
  const Time f = time(), b = time(), w = time(), comm = time();
  CostModel costs = UniformCosts(f, b, w, comm);
  if (bytes->Number<uint8_t>() % 2 == 0) return costs;
  costs.memory.emplace();
  costs.memory->activation_bytes = {bytes->Number<uint8_t>()};
  return costs;
}

void CheckSpecOf(Bytes bytes) {
  const auto schedules = Schedules();
  Spec spec;
  spec.schedule = schedules[bytes.Number<uint8_t>() % schedules.size()]->name;
  spec.ranks = Size(&bytes);
  spec.microbatches = Size(&bytes);
  spec.chunks = Size(&bytes);
  spec.data_parallel = Size(&bytes);
  spec.costs = Costs(&bytes);
  spec.search.budget = 1'000'000;
  const auto level = static_cast<Level>(bytes.Number<uint8_t>() % 4);
  const std::string limit = bytes.Word(), recompute = bytes.Word(), offload = bytes.Word(),
                    partition = bytes.Word(), placement = bytes.Word();
  if (!recompute.empty()) spec.recompute = ParseRecompute(recompute);
  if (!offload.empty()) spec.offload = ParseOffload(offload);
  if (!partition.empty()) spec.partition = ParsePartition(partition);
  if (!placement.empty()) spec.search.placement = ParsePlacement(placement);
  if (!limit.empty()) spec.memory_limit = MemoryLimitOf(spec, limit);
  CheckSpec(spec);
  // A large plan takes long, and is no more likely to be wrong.
  if (int64_t{spec.ranks} * std::max(1, spec.chunks) * spec.microbatches > 1 << 11) return;
  CF_ASSERT(Verify(Compile(spec, {.level = level})).empty());
}

}  // namespace

void FuzzCosts(std::string_view bytes) {
  const auto costs = Accepted([&] { return ReadCosts(bytes, "input"); });
  if (!costs) return;
  const std::string text = WriteCosts(*costs);
  const CostModel again = ReadCosts(text, "again");
  CF_ASSERT(again == *costs);
  CF_ASSERT(WriteCosts(again) == text);
}

void FuzzInstruction(std::string_view bytes) {
  const auto instruction = Accepted([&] { return ParseInstruction(bytes); });
  if (!instruction) return;
  const std::string text = ToString(*instruction);
  CF_ASSERT(ParseInstruction(text) == *instruction);
  // Keys may come in any order but nothing may be lost or added.
  CF_ASSERT(text.size() == bytes.size());
}

void FuzzMutate(std::string_view input) {
  Bytes bytes(input);
  const Schedule& schedule =
      *Schedules()[static_cast<size_t>(bytes.Number<uint8_t>()) % Schedules().size()];
  const int ranks = 1 + bytes.Number<uint8_t>() % 5,
            microbatches = 1 + bytes.Number<uint8_t>() % 12;
  Spec spec = MakeSpec(schedule.name, ranks, microbatches,
                       UniformCosts(3, 4, 2, bytes.Number<uint8_t>() % 3));
  spec.data_parallel = 1 + bytes.Number<uint8_t>() % 2;
  if (!schedule.reject(spec).empty()) return;
  Plan plan = Compile(spec);
  for (int edit = 0; edit < 12 && !bytes.empty(); ++edit) {
    const auto operation = static_cast<size_t>(bytes.Number<uint8_t>());
    const auto seed = static_cast<uint64_t>(bytes.Number<uint8_t>());
    if (const auto mutant = MakeMutant(plan, operation, seed)) plan = mutant->plan;
  }
  for (const Finding& finding : Verify(plan)) CF_ASSERT(!ToString(finding, plan).empty());
  if (!Verify(plan).empty()) return;
  CF_ASSERT(RunSymbolically(plan).empty());
  CF_ASSERT(Simulate(plan, spec.costs).timeline == FixpointTimes(plan, spec.costs));
}

void FuzzPlan(std::string_view bytes) {
  if (const auto plan = Accepted([&] { return ReadPlan(bytes, "input"); })) {
    CheckPlan(*plan);
  } else if (const auto part = Accepted([&] { return ReadRankPlan(bytes, "input"); })) {
    CF_ASSERT(ReadRankPlan(WriteRankPlan(part->plan, part->rank), "part") == *part);
  }
}

void FuzzRankFolder(std::string_view bytes) {
  namespace fs = std::filesystem;
  static const fs::path folder =
      fs::temp_directory_path() / ("contraflow-fuzz-folder-" + std::to_string(getpid()));
  fs::create_directory(folder);
  constexpr std::string_view kBetween = "\n--\n";
  size_t begin = 0;
  for (int file = -1; file < 4 && begin <= bytes.size(); ++file) {
    const size_t end = std::min(bytes.find(kBetween, begin), bytes.size());
    std::ofstream(folder / (file < 0 ? "plan.cbor" : RankFileName(file)), std::ios::binary)
        << bytes.substr(begin, end - begin);
    begin = end + kBetween.size();
  }
  try {
    const RankPlan part = ReadRankFile(folder.string(), 0);
    const Plan plan = ReadRankFiles(folder.string());
    CF_ASSERT(plan.programs[0] == part.plan.programs[0]);
    CF_ASSERT(ReadPlan(WritePlan(plan), "again") == plan);
  } catch (const Error&) {
  }
  fs::remove_all(folder);
}

void FuzzSpec(std::string_view bytes) {
  try {
    CheckSpecOf(Bytes(bytes));
  } catch (const Error&) {
  }
}

}  // namespace contraflow
