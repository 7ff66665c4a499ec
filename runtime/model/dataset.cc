#include "runtime/model/dataset.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "compiler/files/file.h"
#include "compiler/plan/error.h"
#include "kernels/host/random.h"

namespace contraflow {
namespace {

constexpr int64_t kMaxTextBytes = int64_t{1} << 30;

constexpr const char* kDefaultTexts[] = {
    "/usr/share/common-licenses/GPL-3", "/usr/share/common-licenses/GPL-2",
    "/usr/share/common-licenses/LGPL-2.1", "/usr/share/common-licenses/Artistic",
    "/usr/share/common-licenses/Apache-2.0"};

std::string DefaultText() {
  std::string tried;
  for (const char* path : kDefaultTexts) {
    std::error_code error;
    if (std::filesystem::is_regular_file(path, error)) return path;
    tried += (tried.empty() ? "" : ", ") + std::string(path);
  }
  throw Error("no default text on this machine (looked for " + tried + "); give one with `data`");
}

}  // namespace

Dataset ReadDataset(const std::string& path, const Model& model) {
  Dataset dataset;
  dataset.name = path.empty() ? DefaultText() : path;
  dataset.bytes = ReadFile(dataset.name, kMaxTextBytes);
  const size_t needed = static_cast<size_t>(model.sequence) + 1;
  if (dataset.bytes.size() < needed) {
    throw Error(dataset.name + ": has " + std::to_string(dataset.bytes.size()) +
                " bytes, but one sequence of " + std::to_string(model.sequence) +
                " and the byte after it need " + std::to_string(needed) +
                "; use a longer text or a model with a shorter sequence");
  }
  const auto outside = std::find_if(dataset.bytes.begin(), dataset.bytes.end(), [&](char c) {
    return static_cast<unsigned char>(c) >= model.vocabulary;
  });
  if (outside != dataset.bytes.end()) {
    throw Error(dataset.name + ": byte " + std::to_string(static_cast<unsigned char>(*outside)) +
                " at offset " + std::to_string(outside - dataset.bytes.begin()) +
                " is beyond the model's vocabulary of " + std::to_string(model.vocabulary) +
                "; use a vocabulary of 256");
  }
  return dataset;
}

void DrawMicroBatch(const Dataset& dataset, const Model& model, uint64_t seed, int step, int device,
                    int microbatch, MicroBatch* micro) {
  uint64_t key = DeriveKey(seed, static_cast<uint64_t>(step));
  key = DeriveKey(key, static_cast<uint64_t>(device));
  key = DeriveKey(key, static_cast<uint64_t>(microbatch));
  const auto length = static_cast<size_t>(model.sequence);
  const uint64_t places = dataset.bytes.size() - length;
  micro->tokens.clear();
  micro->targets.clear();
  micro->tokens.reserve(static_cast<size_t>(model.tokens()));
  micro->targets.reserve(static_cast<size_t>(model.tokens()));
  for (int b = 0; b < model.batch; ++b) {
    const uint64_t place = DeriveKey(key, static_cast<uint64_t>(b)) % places;
    for (size_t i = 0; i < length; ++i) {
      micro->tokens.push_back(static_cast<unsigned char>(dataset.bytes[place + i]));
      micro->targets.push_back(static_cast<unsigned char>(dataset.bytes[place + i + 1]));
    }
  }
}

MicroBatch DrawMicroBatch(const Dataset& dataset, const Model& model, uint64_t seed, int step,
                          int device, int microbatch) {
  MicroBatch micro;
  DrawMicroBatch(dataset, model, seed, step, device, microbatch, &micro);
  return micro;
}

}  // namespace contraflow
