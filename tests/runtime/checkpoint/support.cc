#include "tests/runtime/checkpoint/support.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <csignal>
#include <cstdio>
#include <cstring>
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

std::string CheckpointFolder::File(int step, int shard) const {
  const std::string name = shard < 0 ? std::string(kManifestName) : ShardName(shard);
  return path() + "/" + StepName(step) + "/" + name;
}

std::string CheckpointFolder::Names() const {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(path())) names.insert(entry.path().filename());
  names.erase(".lock");
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : " ") + name;
  return all;
}

std::string CheckpointFolder::Newest() const {
  const auto checkpoint = Checkpoint::Open(path(), std::nullopt);
  if (!checkpoint) return "none";
  CutModel cut(CheckpointModel(), 1, 1);
  checkpoint->Load(cut.All());
  return std::to_string(checkpoint->head().step) + cut.Wrong(checkpoint->head().step);
}

Model CheckpointModel() {
  return {.name = "small",
          .layers = 8,
          .width = 4,
          .heads = 2,
          .experts = 4,
          .expert_width = 3,
          .sequence = 4,
          .batch = 1};
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
      const uint64_t key = KeyOf(block.name, step, array++);
      for (size_t i = 0; i < values.size(); ++i) {
        const float expected = ValueAt(key, i);
        if (std::memcmp(&values[i], &expected, sizeof expected) == 0) continue;
        return "value " + std::to_string(i) + " of array " + std::to_string(array - 1) + " of " +
               block.name;
      }
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
  std::vector<std::string> notes;
  for (size_t device = 0; device < devices(); ++device) {
    notes.push_back(WriteShardOf(directory, step, static_cast<int>(device), Saved(device)));
  }
  CommitCheckpoint(directory, Head(step), notes, keep);
}

std::string WriteShardOf(const std::string& directory, int step, int shard,
                         const std::vector<StateBlock>& blocks) {
  Snapshot snapshot;
  snapshot.Take(step, shard, blocks);
  return WriteShard(AsideOf(directory, step), step, snapshot);
}

PipePeers::PipePeers(int processes)
    : processes_(processes), ends_(static_cast<size_t>(processes * processes * 2)) {
  for (size_t i = 0; i < ends_.size(); i += 2) {
    if (pipe(&ends_[i]) != 0) throw std::runtime_error("pipe");
  }
}

PipePeers::~PipePeers() { Become(-1); }

void PipePeers::Become(int process) {
  self_ = process;
  if (process >= 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (int from = 0; from < processes_; ++from) {
    for (int to = 0; to < processes_; ++to) {
      for (const int end : {0, 1}) {
        int& fd = End(from, to, end);
        if (fd < 0 || (end == 0 ? to : from) == process) continue;
        close(fd);
        fd = -1;
      }
    }
  }
}

void PipePeers::Send(int to, std::string_view bytes) {
  const size_t size = bytes.size();
  std::string frame(reinterpret_cast<const char*>(&size), sizeof size);
  frame += bytes;
  // It must fit into the pipe where both ends write first.
  if (write(End(self_, to, 1), frame.data(), frame.size()) != std::ssize(frame)) _exit(3);
}

std::string PipePeers::Receive(int from) {
  const auto fill = [&](char* to, size_t size) {
    while (size > 0) {
      const ssize_t got = read(End(from, self_, 0), to, size);
      if (got <= 0) _exit(3);
      to += got;
      size -= static_cast<size_t>(got);
    }
  };
  size_t size = 0;
  fill(reinterpret_cast<char*>(&size), sizeof size);
  std::string bytes(size, ' ');
  fill(bytes.data(), size);
  return bytes;
}

std::vector<std::string> PipePeers::Gather(std::string_view bytes) {
  if (self_ != 0) return Send(0, bytes), std::vector<std::string>();
  std::vector<std::string> all = {std::string(bytes)};
  for (int from = 1; from < processes_; ++from) all.push_back(Receive(from));
  return all;
}

std::string PipePeers::Broadcast(std::string_view bytes) {
  if (self_ != 0) return Receive(0);
  for (int to = 1; to < processes_; ++to) Send(to, bytes);
  return std::string(bytes);
}

std::vector<std::string> InProcesses(int processes,
                                     const std::function<std::string(Peers& peers)>& act) {
  std::fflush(nullptr);  // Else each child would print what is buffered again.
  PipePeers peers(processes);
  std::vector<std::pair<pid_t, int>> children;
  for (int process = 0; process < processes; ++process) {
    int ends[2];
    if (pipe(ends) != 0) throw std::runtime_error("pipe");
    const pid_t child = fork();
    children.push_back({child, ends[0]});
    if (child != 0) {
      close(ends[1]);
      continue;
    }
    peers.Become(process);
    std::string result;
    try {
      result = act(peers);
    } catch (const std::exception& error) {
      result = std::string("!") + error.what();
    }
    _exit(write(ends[1], result.data(), result.size()) < 0);
  }
  peers.Become(-1);
  std::vector<std::string> results;
  for (const auto& [child, end] : children) {
    std::string result;
    char bytes[4096];
    for (ssize_t got = 0; (got = read(end, bytes, sizeof bytes)) > 0;) {
      result.append(bytes, static_cast<size_t>(got));
    }
    close(end);
    waitpid(child, nullptr, 0);
    results.push_back(result.empty() ? "no result" : result);
  }
  return results;
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
