#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace contraflow {

/// The one list of values that a rank holds while a step runs, one each for a (stage, layer,
/// micro-batch): X(name, arena). T tokens of one device and micro-batch, d width, k experts a token
/// visits, R rows that the experts of one device get, i inner width of an expert. Gradients begin
/// with d, as in dinput, the gradient of input.
///
///     input         [T x d]  of the layer; made by RECV_F, the embedding or COMBINE_F before it
///     output        [T x d]  of the last layer of a stage, where it is sent, or feeds the head
///     attention     what ATTN_F keeps for ATTN_W: normed inputs, attention output, residual
///     scores        what ATTN_F keeps for ATTN_B: q, k, v, probabilities; router choice and maps
///     dispatched    [T k x d] rows on their way to the experts
///     rows          [R x d]  rows the experts got, and how many from whom
///     gate          [R x 2 i] before SwiGLU, kept for MLP_B
///     hidden        [R x i]  after SwiGLU, kept for MLP_W
///     expert_out    [R x d]  on its way back
///     combined      [T k x d] what came back, kept for the gradient of the router's weights
///     head          of the last stage: final norm, logits
///     doutput       [T x d]  gradient of a layer's output
///     dcombined     [T k x d] its rows on their way to the experts
///     dweight       [T x k]  gradient of the router's weights
///     drows         [R x d]  gradient of expert_out
///     dgate         [R x 2 i]
///     dsorted       [R x d]  gradient of rows, on its way back
///     ddispatched   [T k x d] what came back
///     dexpert       [T x d]  gradient of the experts' normed input
///     dattention    what ATTN_B keeps for ATTN_W: gradients of the projections and norms
///     attention_work  scratch of ATTN_B
///     dinput        [T x d]  gradient of a stage's input, where it is sent, or of the embedding
///     activation, stash   of an opaque stage: from F to B, and from F to W
#define CF_VALUES(X)           \
  X(input, kActivation)        \
  X(output, kExchange)         \
  X(attention, kStash)         \
  X(scores, kActivation)       \
  X(dispatched, kExchange)     \
  X(rows, kStash)              \
  X(gate, kActivation)         \
  X(hidden, kStash)            \
  X(expert_out, kExchange)     \
  X(combined, kActivation)     \
  X(head, kStash)              \
  X(doutput, kGradient)        \
  X(dcombined, kExchange)      \
  X(dweight, kGradient)        \
  X(drows, kStash)             \
  X(dgate, kStash)             \
  X(dsorted, kExchange)        \
  X(ddispatched, kExchange)    \
  X(dexpert, kStash)           \
  X(dattention, kStash)        \
  X(attention_work, kGradient) \
  X(dinput, kExchange)         \
  X(activation, kActivation)   \
  X(stash, kStash)

enum class Value : uint8_t {
#define CF_VALUE(name, arena) name,
  CF_VALUES(CF_VALUE)
#undef CF_VALUE
};
#define CF_ONE(name, arena) +1
inline constexpr size_t kValueCount = 0 CF_VALUES(CF_ONE);
#undef CF_ONE

/// One allocation of a rank, for values that live alike: from F to B; to W; inside the backward;
/// and what is sent or received.
enum class Arena : uint8_t { kActivation, kStash, kGradient, kExchange };
inline constexpr size_t kArenaCount = 4;
/// Every offset is a multiple of this many bytes.
inline constexpr int64_t kSlotAlignment = 64;

std::string_view Name(Value value);
std::string_view Name(Arena arena);  ///< "activation" "stash" "gradient" "exchange"
Arena ArenaOf(Value value);

/// The values of a layer that its forward makes and its backward needs: its activation. Values of
/// the arena kStash are held until its weight gradient.
inline constexpr std::array kActivationOfLayer = {Value::input,   Value::attention, Value::scores,
                                                  Value::rows,    Value::gate,      Value::hidden,
                                                  Value::combined};

/// Bytes of each value, by Value.
using ValueBytes = std::array<int64_t, kValueCount>;

/// Place of one value of one rank, from its first to its last use (indices into the program).
struct Slot {
  Value value = Value::input;
  Arena arena = Arena::kActivation;
  int16_t layer = -1;  ///< -1: of an opaque stage
  int32_t stage = 0;
  int32_t microbatch = 0;
  int32_t first = 0, last = 0;
  int64_t offset = 0, bytes = 0;

  bool operator==(const Slot&) const = default;
};

/// `gate s3 l0 m7 arena=activation offset=128 bytes=4096 first=3 last=17`; without l0 for an opaque
/// stage.
std::string ToString(const Slot& slot);
/// Inverse of ToString: accepts exactly the text it writes. Throws Error that says what is wrong.
Slot ParseSlot(std::string_view text);

/// Bytes that each arena of a rank needs: its highest offset + bytes.
std::array<int64_t, kArenaCount> ArenaBytes(const std::vector<Slot>& slots);

}  // namespace contraflow
