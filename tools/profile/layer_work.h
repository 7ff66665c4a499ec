#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "compiler/plan/value.h"
#include "tools/profile/setup.h"

namespace contraflow {

/// Work of one pass (forward, input gradient or weight gradient) of a part on one device. Whole
/// numbers, kept in doubles, which hold them without overflow.
struct PassWork {
  double flops = 0;
  double bytes = 0;  ///< read and written in HBM; of what a device sends, for communication
  double times = 0;  ///< collectives that send them
  double ring = 0;   ///< bytes sent to the next device of the sequence during the FLOPs
};

/// One matmul, attention or pass over memory of a layer, or one collective.
struct LayerPart {
  std::string name;
  WorkKind kind = WorkKind::kMemory;
  bool fp8 = false;  ///< where it has FLOPs
  bool mlp = false;  ///< belongs to the second half of a layer
  PassWork f, b, w;
  std::string formula;  ///< of its FLOPs or bytes, with numbers
};

/// Bytes that a layer keeps of a micro-batch on one device.
enum class KeptUntil : uint8_t {
  kB,         ///< from F to the end of B
  kW,         ///< from F to the end of W: an input of a weight gradient
  kFromBToW,  ///< made by B and kept to the end of W: a gradient that a weight gradient needs
};
struct Kept {
  std::string name;
  KeptUntil until = KeptUntil::kB;
  double bytes = 0;
  /// For bytes that are kept from F: the value that they are part of; nothing: no part of a layer
  /// makes it again.
  std::optional<Value> value = {};
};

/// An all-to-all: bytes that a device sends to other nodes and, in its own, over NVLink.
struct AllToAll {
  double network_bytes = 0, nvlink_bytes = 0;
  std::string formula;  ///< of the bytes on the slower of the two
};

/// All that one layer does for a micro-batch on one device.
struct WorkOfLayer {
  std::vector<LayerPart> parts;
  std::vector<Kept> kept;
  double parameters = 0, expert_parameters = 0;  ///< of these those of experts
  double matrix_parameters = 0;                  ///< of these those of matrices of a layer
  double orthogonal_flops = 0;                   ///< to make an update of these orthogonal
  bool halves = false;  ///< mixer, and MLP or experts; embedding, head and a half alone have none
  /// With experts on several devices: dispatch (also of the gradients of what combine put out), and
  /// combine (also of the gradients of what was dispatched).
  bool exchanges = false;
  AllToAll dispatch, combine;
  double output_bytes = 0;  ///< of the message to the next stage
};

// The layers of a model that CheckSetup takes. All bytes are of activations in bf16, and fp8 for
// what fp8 matmuls take.
WorkOfLayer EmbeddingWork(const ModelShape& model, const CostSetup& setup);
WorkOfLayer BlockWork(const ModelShape& model, const CostSetup& setup, const LayerShape& layer);
/// Prediction module `index`, from 0: norms and projection of the layer's state and the next
/// token's embedding, and a layer.
WorkOfLayer PredictionWork(const ModelShape& model, const CostSetup& setup, int64_t index);
/// Final norm, matmul with the vocabulary and loss, once for the model and once for each prediction
/// module.
WorkOfLayer HeadWork(const ModelShape& model, const CostSetup& setup);

}  // namespace contraflow
