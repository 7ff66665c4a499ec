#pragma once

#include <cstdint>
#include <string>

#include "runtime/model.h"
#include "runtime/stage.h"

namespace contraflow {

/// What a model is trained on: the bytes of any file.
struct Text {
  std::string name;  ///< path, for messages
  std::string bytes;
};

/// Reads a text for this model; "" is the first licence text found that every Debian machine has.
/// Throws Error if it cannot be read, is too short for one sequence and the byte after it, or has
/// bytes beyond the model's vocabulary.
Text ReadText(const std::string& path, const Model& model);

/// The sequences of one micro-batch, drawn from anywhere in the text by (seed, step, replica,
/// micro-batch) alone.
MicroBatch DrawMicroBatch(const Text& text, const Model& model, uint64_t seed, int step,
                          int replica, int microbatch);

}  // namespace contraflow
