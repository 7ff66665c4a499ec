#include "tools/profile/costs_file.h"

namespace contraflow {

std::string CostsTemplate() {
  return R"(// A cost file by layer, to fill in: every figure below is made up. Times and
// bytes are those of one device and one micro-batch; comments like this one are
// not read. For the figures of a model, estimated:
// contraflow costs init --hf CONFIG.json --gpu NAME
{
// Unit of all times: ns, us, ms, s, or unit for relative costs.
"unit": "ms",
// In words: where the figures are from.
"source": "template: replace every figure",
// Optional: how the devices of a rank split the model, the GPU, whose memory is
// the default of --device-memory, and the tokens of a micro-batch.
//   "parallel": {"tp": 1, "cp": 1, "ep": 8, "etp": 1},
//   "gpu": {"name": "h100", "memory_bytes": "80GB"}, "tokens": 4096,
// In the order that a token passes them.
"layers": [
{
  // For messages; each layer has another.
  "name": "embedding",
  // Forward, backward for the input gradient only, backward for the weight
  // gradient only.
  "f": 0.1, "b": 0, "w": 0.2,
  // For as long as the training runs: parameters, their gradients, what the
  // optimizer keeps.
  "parameter_bytes": 262144000, "gradient_bytes": 524288000,
  "optimizer_bytes": 1572864000,
  // Bytes that the forward keeps for the backward, and the part of them that
  // is kept until the weight gradient.
  "activation_bytes": 16384, "w_stash_bytes": 16384,
  // The message to the next layer, if that is on another rank.
  "output_bytes": 33554432
  // With "tied": "head" it needs the parameters of that layer, too, which
  // counts them; a stage without that layer holds a copy.
},
{
  "name": "dense",
  // Number of alike layers in a row.
  "repeat": 4,
  "f": 2.5, "b": 2.7, "w": 2.3,
  // Optional, each in place of what follows from the others:
  //   "bw": 5       full backward (b + w)
  //   "fb": 7.5     a forward overlapped with a full backward (f + bw)
  //   "r": 2.5      the forward again, where its activations are not kept (f)
  //   "reduce": 1   sum of the gradients over copies of the layer (0)
  //   "step": 1     optimizer step (0)
  "parameter_bytes": 436207616, "gradient_bytes": 872415232,
  "optimizer_bytes": 2617245696,
  "activation_bytes": 557842432, "w_stash_bytes": 264241152,
  "output_bytes": 33554432
},
{
  "name": "moe",
  "repeat": 4,
  // In place of f, b and w: a layer whose experts are spread over devices.
  // Attention, all-to-all to the experts, MLP and all-to-all back; combine_b is
  // the gradient's way to the experts, dispatch_b its way back.
  "moe": {"attn_f": 1.2, "dispatch_f": 0.8, "mlp_f": 1.6, "combine_f": 1.1,
          "combine_b": 0.8, "mlp_b": 1.6, "dispatch_b": 1.1, "attn_b": 1.6,
          "mlp_w": 1.5, "attn_w": 0.9},
  // Or {"experts": 352321536, "rest": 83886080}, which --zero shares apart.
  "parameter_bytes": 436207616, "gradient_bytes": 872415232,
  "optimizer_bytes": 2617245696,
  "activation_bytes": 746586112, "w_stash_bytes": 352321536,
  "output_bytes": 33554432,
  // Optional, of each layer with "moe" or of none: the parts of its activation,
  // for --recompute attention, experts and all-but-attention. Attention makes
  // attention and scores; dispatch rows; the MLP gate and hidden; combine the
  // input of the next layer.
  "values": {"input": 33554432, "attention": 100663296, "scores": 209715200,
             "rows": 67108864, "gate": 268435456, "hidden": 67108864}
},
{
  "name": "head",
  "f": 2.2, "b": 2.1, "w": 2,
  "parameter_bytes": 262144000, "gradient_bytes": 524288000,
  "optimizer_bytes": 1572864000,
  "activation_bytes": 591396864, "w_stash_bytes": 33554432,
  "output_bytes": 0
}
],
// A message between ranks takes latency + bytes / bandwidth (bytes in a unit of
// time), and each link carries one at a time; "time" in place of the three is a
// message that takes this long and waits for none.
"comm": {"latency": 0.03, "bytes": 33554432, "bandwidth": 37500000}
}
)";
}

}  // namespace contraflow
