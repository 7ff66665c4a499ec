#include "tests/runtime/checkpoint/support.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <stdexcept>

#include "kernels/host/random.h"
#include "runtime/checkpoint/folder.h"

namespace contraflow {
namespace {

namespace fs = std::filesystem;

/// In memory where the system has a folder there, unless TMPDIR says otherwise: hundreds of flushes
/// to a disk that others use take long.
fs::path TemporaryRoot() {
  const bool memory = std::getenv("TMPDIR") == nullptr && access("/dev/shm", W_OK | X_OK) == 0;
  return memory ? fs::path("/dev/shm") : fs::temp_directory_path();
}

uint64_t KeyOf(const std::string& name, int step, int array) {
  uint64_t key = static_cast<uint64_t>(step) * 3 + static_cast<uint64_t>(array);
  for (const char c : name) key = DeriveKey(key, static_cast<unsigned char>(c));
  return key;
}

/// Any bits but those of an infinity or NaN, negative and tiny ones too.
float ValueAt(uint64_t key, size_t index) {
  const auto bits = static_cast<uint32_t>(DeriveKey(key, index));
  return std::bit_cast<float>(bits & 0xBFFFFFFF);
}

}  // namespace

float ValueOf(const std::string& name, int step, int array, size_t index) {
  return ValueAt(KeyOf(name, step, array), index);
}

CheckpointFolder::CheckpointFolder() {
  std::string name = (TemporaryRoot() / "checkpoint_test-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make " + name);
  root = name;
}

CheckpointFolder::~CheckpointFolder() {
  std::error_code ignored;
  fs::remove_all(root, ignored);
}

std::string CheckpointFolder::File(int step, int shard) const {
  const std::string name = shard < 0 ? std::string(kManifestName) : ShardName(shard);
  return path() + "/" + StepName(step) + "/" + name;
}

std::string CheckpointFolder::Names() const {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(path())) names.insert(entry.path().filename());
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : " ") + name;
  return all;
}

Model CheckpointModel() {
  Model model;
  model.name = "small";
  model.layers = 8;
  model.width = 4;
  model.heads = 2;
  model.experts = 4;
  model.expert_width = 3;
  model.sequence = 4;
  model.batch = 1;
  return model;
}

CutModel::CutModel(const Model& model, int stages, int members)
    : model_(model), stages_(stages), members_(members) {
  const LayerShape shape(model, members, model.experts / members);
  for (int stage = 0; stage < stages; ++stage) {
    for (int member = 0; member < members; ++member) {
      devices_.push_back(std::make_unique<Stage>(model, shape, member, stage, stages, 1));
    }
  }
}

std::vector<StateBlock> CutModel::All() {
  std::vector<StateBlock> all;
  for (size_t device = 0; device < devices(); ++device) {
    for (StateBlock& block : All(device)) all.push_back(std::move(block));
  }
  return all;
}

void CutModel::Set(int step) {
  for (const StateBlock& block : All()) {
    int array = 0;
    for (const std::span<float> values : {block.parameters, block.m, block.v}) {
      const uint64_t key = KeyOf(block.name, step, array++);
      for (size_t i = 0; i < values.size(); ++i) values[i] = ValueAt(key, i);
    }
  }
}

std::string CutModel::Wrong(int step) {
  for (const StateBlock& block : All()) {
    int array = 0;
    for (const std::span<float> values : {block.parameters, block.m, block.v}) {
      const uint64_t key = KeyOf(block.name, step, array);
      for (size_t i = 0; i < values.size(); ++i) {
        if (std::bit_cast<uint32_t>(values[i]) == std::bit_cast<uint32_t>(ValueAt(key, i)))
          continue;
        return "value " + std::to_string(i) + " of array " + std::to_string(array) + " of " +
               block.name;
      }
      ++array;
    }
  }
  return "";
}

std::vector<StateBlock> CutModel::Saved(size_t device) {
  Stage& stage = *devices_[device];
  std::vector<StateBlock> blocks = StateOf(stage);
  if (device % static_cast<size_t>(members_) == 0) return blocks;
  const float* experts = stage.parameters().data() + stage.dense_gradients().size();
  const auto dense = [experts](const StateBlock& block) {
    return block.parameters.data() < experts;
  };
  blocks.erase(std::remove_if(blocks.begin(), blocks.end(), dense), blocks.end());
  return blocks;
}

CheckpointHead CutModel::Head(int step) const {
  return {.step = step,
          .seed = 7,
          .model = model_,
          .text = std::string(64, 'a'),
          .schedule = "1f1b",
          .ranks = stages_,
          .stages = stages_,
          .microbatches = 2 * stages_,
          .data_parallel = 1,
          .expert_parallel = members_};
}

void CutModel::Save(const std::string& directory, int step, int keep) {
  BeginCheckpoint(directory, step);
  std::vector<std::string> notes;
  for (size_t device = 0; device < devices(); ++device) {
    notes.push_back(WriteShard(directory, step, static_cast<int>(device), Saved(device)));
  }
  CommitCheckpoint(directory, Head(step), notes, keep);
}

std::string ReadBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void WriteBytes(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << bytes;
  if (!file.flush()) throw std::runtime_error("cannot write " + path);
}

}  // namespace contraflow
