#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/model/model.h"

namespace contraflow {

/// The bytes one micro-batch trains on: batch * sequence each; target t is the byte after token t.
struct MicroBatch {
  std::vector<int32_t> tokens, targets;
};

/// Head of a file of tokens, little-endian as everything in it; `count` tokens of 2 or 4 bytes
/// follow, and nothing else.
struct TokenHeader {
  std::array<char, 8> magic = {'c', 'f', 't', 'o', 'k', 'e', 'n', 's'};
  uint32_t version = 1;
  uint32_t token_bytes = 2;
  uint64_t vocabulary = 0;  ///< every token is below it
  uint64_t count = 0;
};

/// Training data of a model: the bytes of any file, each a token, or a file of tokens, which is
/// read piece by piece and may be larger than memory.
struct Dataset {
  std::string name;  ///< path, for messages
  std::string bytes;
  struct TokenFile;
  std::shared_ptr<const TokenFile> file = nullptr;  ///< null: `bytes` is all
  uint64_t first = 0, count = 0;                    ///< of the file's tokens

  uint64_t size() const { return file ? count : bytes.size(); }
  /// Reads tokens.size() tokens from `place` on. Throws Error if the file has changed or cannot be
  /// read.
  void Read(uint64_t place, std::span<int32_t> tokens) const;
  /// Visits everything in order, for a digest that tells it from all others; throws Error where a
  /// token of a file is not in its vocabulary.
  void Visit(const std::function<void(std::span<const std::byte>)>& visit) const;
};

/// Reads a text, or opens a file of tokens, for this model; "" is a licence text that every Debian
/// machine has. Throws Error if it cannot be read, is damaged, is too short for one
/// sequence and the token after it, or has tokens beyond the model's vocabulary.
Dataset ReadDataset(const std::string& path, const Model& model);

/// Removes the last `fraction` of the tokens and returns it. Throws Error if either part is then
/// too short.
Dataset HoldOut(double fraction, const Model& model, Dataset* dataset);

/// The sequences of one micro-batch of one device, drawn from anywhere in the data by (seed, step,
/// device, micro-batch) alone. `device` counts replicas, and in them the members of an expert
/// group: replica * members + member. Allocates nothing where `micro` held one before.
void DrawMicroBatch(const Dataset& dataset, const Model& model, uint64_t seed, int step, int device,
                    int microbatch, MicroBatch* micro);
inline MicroBatch DrawMicroBatch(const Dataset& dataset, const Model& model, uint64_t seed,
                                 int step, int device, int microbatch) {
  MicroBatch micro;
  DrawMicroBatch(dataset, model, seed, step, device, microbatch, &micro);
  return micro;
}

}  // namespace contraflow
