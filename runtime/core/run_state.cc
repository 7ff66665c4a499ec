#include "runtime/core/run_state.h"

#include <algorithm>
#include <span>

#include "compiler/plan/error.h"
#include "runtime/host/stage.h"

namespace contraflow {
namespace {

/// Calls take(s, device, first) for every stage and device of this process that has a copy of it;
/// `first` tells whether it is the stage's first holder.
template <typename Take>
void EachCopy(const Plan& plan, Run& run, const Take& take) {
  const std::vector<std::vector<int>> holders = HoldersOfStage(plan);
  for (int s = 0; s < plan.stages; ++s) {
    const std::vector<int>& ranks = holders[static_cast<size_t>(s)];
    for (const Device& device : run.devices()) {
      if (std::find(ranks.begin(), ranks.end(), device.rank) == ranks.end()) continue;
      take(s, device, device.rank == ranks.front());
    }
  }
}

}  // namespace

std::vector<StateBlock> SavedState(const Plan& plan, Run& run) {
  std::vector<StateBlock> saved;
  EachCopy(plan, run, [&](int s, Device device, bool first) {
    if (!first || device.replica != 0) return;
    Stage& stage = run.StageAt(device, s);
    const float* const experts = stage.parameters().data() + stage.dense_gradients().size();
    for (StateBlock& block : StateOf(stage)) {
      const bool expert = block.parameters.data() >= experts;
      if (expert || device.member == 0) saved.push_back(std::move(block));
    }
  });
  return saved;
}

std::vector<StateBlock> WholeState(const Plan& plan, Run& run) {
  std::vector<StateBlock> all;
  EachCopy(plan, run, [&](int s, Device device, bool) {
    std::vector<StateBlock> blocks = StateOf(run.StageAt(device, s));
    all.insert(all.end(), std::make_move_iterator(blocks.begin()),
               std::make_move_iterator(blocks.end()));
  });
  return all;
}

void PutState(const Plan& plan, Run& run) {
  EachCopy(plan, run, [&](int s, Device device, bool) { run.Put(device, s); });
}

std::map<std::string, Digest> ParameterDigests(const std::vector<StateBlock>& blocks) {
  std::map<std::string, Digest> digests;
  for (const StateBlock& block : blocks) {
    digests[block.name] = Sha256(std::as_bytes(block.parameters));
  }
  return digests;
}

std::string WriteDigests(const std::map<std::string, Digest>& digests) {
  std::string bytes;
  for (const auto& [name, digest] : digests) {
    bytes += name;
    bytes += '\0';
    bytes.append(reinterpret_cast<const char*>(digest.data()), digest.size());
  }
  return bytes;
}

std::map<std::string, Digest> ReadDigests(std::string_view bytes) {
  std::map<std::string, Digest> digests;
  while (!bytes.empty()) {
    const size_t end = bytes.find('\0');
    Digest digest;
    if (end == std::string_view::npos || bytes.size() - end - 1 < digest.size()) {
      throw Error("the digests of a process are cut off");
    }
    std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(end) + 1, digest.size(),
                reinterpret_cast<char*>(digest.data()));
    digests[std::string(bytes.substr(0, end))] = digest;
    bytes.remove_prefix(end + 1 + digest.size());
  }
  return digests;
}

}  // namespace contraflow
