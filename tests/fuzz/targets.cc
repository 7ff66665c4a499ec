// One program of all targets, of which --target=NAME picks one, for libFuzzer and replay.cc alike:
// libFuzzer leaves flags with two dashes to others, and hands them on to its workers.

#include "tests/fuzz/targets.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>

namespace contraflow {
namespace {

struct Target {
  std::string_view name;
  void (*run)(std::string_view bytes);
};

constexpr Target kTargets[] = {
    {"costs", FuzzCosts},
    {"dataset", FuzzDataset},
    {"hf_config", FuzzHfConfig},
    {"instruction", FuzzInstruction},
    {"limits", FuzzLimits},
    {"manifest", FuzzManifest},
    {"message", FuzzMessage},
    {"model", FuzzModel},
    {"mutate", FuzzMutate},
    {"option", FuzzOption},
    {"plan", FuzzPlan},
    {"profile", FuzzProfile},
    {"rank_folder", FuzzRankFolder},
    {"run_trace", FuzzRunTrace},
    {"spec", FuzzSpec},
    {"torch_csv", FuzzTorchCsv},
    {"world", FuzzWorld},
};

const Target* chosen = nullptr;

}  // namespace
}  // namespace contraflow

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  using namespace contraflow;
  constexpr std::string_view kFlag = "--target=";
  for (const std::string_view word : std::span(*argv, static_cast<size_t>(*argc))) {
    if (!word.starts_with(kFlag)) continue;
    const auto* const found = std::ranges::find(kTargets, word.substr(kFlag.size()), &Target::name);
    if (found != std::end(kTargets)) chosen = found;
  }
  if (chosen != nullptr) return 0;
  std::fprintf(stderr, "fuzz: give one of these:\n");
  for (const Target& target : kTargets) {
    std::fprintf(stderr, "%s%s\n", kFlag.data(), target.name.data());
  }
  std::exit(2);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  contraflow::chosen->run({reinterpret_cast<const char*>(data), size});
  return 0;
}
