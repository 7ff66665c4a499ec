#pragma once

#include <cstdint>
#include <string>

#include "runtime/host/stage.h"
#include "runtime/model/model.h"

namespace contraflow {

/// What a model is trained on: the bytes of any file.
struct Dataset {
  std::string name;  ///< path, for messages
  std::string bytes;
};

/// Reads a text for this model; "" is the first licence text found that every Debian machine has.
/// Throws Error if it cannot be read, is too short for one sequence and the byte after it, or has
/// bytes beyond the model's vocabulary.
Dataset ReadDataset(const std::string& path, const Model& model);

/// The sequences of one micro-batch of one device, drawn from anywhere in the text by (seed, step,
/// device, micro-batch) alone. `device` counts replicas, and in them the members of an expert
/// group: replica * members + member. Allocates nothing where `micro` held one before.
void DrawMicroBatch(const Dataset& dataset, const Model& model, uint64_t seed, int step, int device,
                    int microbatch, MicroBatch* micro);
MicroBatch DrawMicroBatch(const Dataset& dataset, const Model& model, uint64_t seed, int step,
                          int device, int microbatch);

}  // namespace contraflow
