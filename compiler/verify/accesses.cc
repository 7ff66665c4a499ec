// Values that each instruction reads and makes, once more: from the instruction set alone (DESIGN,
// sections 2 and 3) and the meaning of the values (CF_VALUES), for the passes have a table of their
// own and would believe a wrong entry. A test compares both.

#include <algorithm>
#include <bit>
#include <initializer_list>

#include "compiler/plan/error.h"
#include "compiler/verify/checks.h"

namespace contraflow::check {
namespace {

/// A set of operations or of values.
template <typename T>
struct SetOf {
  uint32_t bits = 0;

  constexpr SetOf(std::initializer_list<T> list) {
    for (const T one : list) bits |= uint32_t{1} << static_cast<uint32_t>(one);
  }
  constexpr bool Has(T one) const { return (bits >> static_cast<uint32_t>(one) & 1) != 0; }
};
static_assert(kOpCount <= 32 && kValueCount <= 32);

/// Position of the instruction in the model. A whole stage is its own first and last layer.
enum class When : uint8_t {
  kAlways,
  kModelBegins,     ///< first layer of the first stage: the embedding is here
  kBehindTheBegin,  ///< anywhere else
  kModelEnds,       ///< last layer of the last stage: the head is here
  kBeforeTheEnd,    ///< anywhere else
  kLayerBehind,     ///< the stage has a layer after it
  kLayerAgain,      ///< and that runs again as well
  kLayerBefore,     ///< the stage has a layer before it
  kStageBehind,     ///< last layer; the next stage is on the same rank
  kSendBehind,      ///< last layer; the next stage is on another rank
  kStageBefore,     ///< first layer; the stage before is on the same rank
  kSendBefore,      ///< first layer; the stage before is on another rank
};

/// Layer and stage of the values.
enum class Where : uint8_t {
  kHere,
  kFirstLayer,
  kLastLayer,
  kNextLayer,
  kLayerBefore,
  kNextStage,    ///< its first layer
  kStageBefore,  ///< its last layer
  kEachLayer,    ///< of a stage with layers
  kStage,        ///< an opaque one
};

struct Row {
  SetOf<Op> ops;
  When when;
  Where where;
  SetOf<Value> reads, makes;
};

using enum Op;
using V = Value;

constexpr Row kRows[] = {
    {{SEND_F}, When::kAlways, Where::kLastLayer, {V::output}, {}},
    {{RECV_F}, When::kAlways, Where::kFirstLayer, {}, {V::input}},
    {{SEND_B}, When::kAlways, Where::kFirstLayer, {V::dinput}, {}},
    {{RECV_B}, When::kAlways, Where::kLastLayer, {}, {V::doutput}},

    // Opaque stages. For FB the forward; its backward is the B and W of another micro-batch.
    {{F, FB, R}, When::kBehindTheBegin, Where::kHere, {V::input}, {}},
    {{F, FB, R}, When::kAlways, Where::kHere, {}, {V::activation, V::stash}},
    {{F, FB}, When::kStageBehind, Where::kNextStage, {}, {V::input}},
    {{F, FB}, When::kSendBehind, Where::kHere, {}, {V::output}},

    // Forward: ATTN, DISPATCH, MLP, COMBINE. The input of a stage is kept when it runs again, that
    // of the first layer that does not run again is, too, and what goes to the next stage went
    // there the first time.
    {{ATTN_F}, When::kModelBegins, Where::kHere, {}, {V::input}},
    {{ATTN_F}, When::kBehindTheBegin, Where::kHere, {V::input}, {}},
    {{ATTN_R}, When::kAlways, Where::kHere, {V::input}, {}},
    {{ATTN_F, ATTN_R}, When::kAlways, Where::kHere, {}, {V::attention, V::scores, V::dispatched}},
    {{DISPATCH_F, DISPATCH_R}, When::kAlways, Where::kHere, {V::dispatched, V::scores}, {V::rows}},
    {{MLP_F, MLP_R}, When::kAlways, Where::kHere, {V::rows}, {V::gate, V::hidden, V::expert_out}},
    {{COMBINE_F, COMBINE_R},
     When::kAlways,
     Where::kHere,
     {V::expert_out, V::rows, V::scores, V::attention},
     {V::combined}},
    {{COMBINE_F}, When::kLayerBehind, Where::kNextLayer, {}, {V::input}},
    {{COMBINE_R}, When::kLayerAgain, Where::kNextLayer, {}, {V::input}},
    {{COMBINE_F, COMBINE_R}, When::kModelEnds, Where::kHere, {}, {V::output, V::head}},
    {{COMBINE_F}, When::kStageBehind, Where::kNextStage, {}, {V::input}},
    {{COMBINE_F}, When::kSendBehind, Where::kHere, {}, {V::output}},

    // Backward: COMBINE, MLP, DISPATCH, ATTN, with the weights of MLP and ATTN after each.
    {{COMBINE_B}, When::kBeforeTheEnd, Where::kHere, {V::doutput}, {}},
    {{COMBINE_B}, When::kModelEnds, Where::kHere, {V::output, V::head}, {V::doutput}},
    {{COMBINE_B},
     When::kAlways,
     Where::kHere,
     {V::combined, V::scores, V::rows},
     {V::dcombined, V::dweight, V::drows}},
    {{MLP_B}, When::kAlways, Where::kHere, {V::drows, V::rows, V::gate}, {V::dgate, V::dsorted}},
    {{MLP_W}, When::kAlways, Where::kHere, {V::rows, V::hidden, V::drows, V::dgate}, {}},
    {{MLP_W}, When::kModelEnds, Where::kHere, {V::output, V::head}, {}},
    {{DISPATCH_B},
     When::kAlways,
     Where::kHere,
     {V::dsorted, V::rows, V::scores},
     {V::ddispatched, V::dexpert}},
    {{ATTN_B},
     When::kAlways,
     Where::kHere,
     {V::doutput, V::dexpert, V::dweight, V::scores, V::attention, V::input},
     {V::attention_work, V::dattention}},
    {{ATTN_B}, When::kLayerBefore, Where::kLayerBefore, {}, {V::doutput}},
    {{ATTN_B}, When::kModelBegins, Where::kHere, {}, {V::dinput}},
    {{ATTN_W},
     When::kAlways,
     Where::kHere,
     {V::input, V::attention, V::dexpert, V::dattention},
     {}},
    {{ATTN_W}, When::kModelBegins, Where::kHere, {V::dinput}, {}},
    // The gradient of a stage's input goes to the stage before.
    {{ATTN_B, B, BW}, When::kStageBefore, Where::kStageBefore, {}, {V::doutput}},
    {{ATTN_B, B, BW}, When::kSendBefore, Where::kHere, {}, {V::dinput}},

    {{B, BW}, When::kAlways, Where::kHere, {V::activation, V::stash}, {}},
    {{B, BW}, When::kBeforeTheEnd, Where::kHere, {V::doutput}, {}},
    {{W}, When::kAlways, Where::kHere, {V::stash}, {}},

    // To the host goes what the backward needs of what the forward made, of every layer of the
    // stage; it comes back as something new.
    {{OFFLOAD},
     When::kAlways,
     Where::kEachLayer,
     {V::input, V::attention, V::scores, V::rows, V::gate, V::hidden, V::combined},
     {}},
    {{OFFLOAD}, When::kModelEnds, Where::kEachLayer, {V::output, V::head}, {}},
    {{OFFLOAD}, When::kAlways, Where::kStage, {V::activation, V::stash}, {}},
    {{RELOAD},
     When::kAlways,
     Where::kEachLayer,
     {},
     {V::input, V::attention, V::scores, V::rows, V::gate, V::hidden, V::combined}},
    {{RELOAD}, When::kModelEnds, Where::kEachLayer, {}, {V::output, V::head}},
    {{RELOAD}, When::kAlways, Where::kStage, {}, {V::activation, V::stash}},
};

}  // namespace

Touches::Touches(const Tables& tables)
    : tables_(tables), layered_(tables.plan.layers > 0), stages_(tables.plan.stages) {
  for (size_t op = 0; op < rows_.size(); ++op) {
    for (size_t row = 0; row < std::size(kRows); ++row) {
      if (kRows[row].ops.Has(static_cast<Op>(op))) rows_[op].push_back(row);
    }
  }
}

void Touches::Of(const Instruction& i, std::vector<Touch>* touches) const {
  touches->clear();
  if (IsHostCopy(i.op)) {
    for (int layer = 0; layer < std::max(tables_.plan.LayersOf(i.stage), 1); ++layer) {
      Add(i.op, i.stage, layered_ ? layer : -1, i.microbatch, touches);
    }
    return;
  }
  Add(i.op, i.stage, i.layer, i.microbatch, touches);
  if (i.op == Op::FB) Add(Op::BW, i.back_stage, i.layer, i.back_microbatch, touches);
}

void Touches::Add(Op op, int stage, int layer, int microbatch, std::vector<Touch>* touches) const {
  // -1 where stages are opaque
  const int first = layered_ ? 0 : -1, last = tables_.plan.LayersOf(stage) - 1;
  const bool begins = layer == first && stage == 0;
  const bool ends = layer == last && stage + 1 == stages_;
  const auto holds = [&](When when) {
    const auto same_rank = [&](int other) {
      return tables_.Owner(stage, microbatch) == tables_.Owner(other, microbatch);
    };
    switch (when) {
      case When::kAlways:
        return true;
      case When::kModelBegins:
        return begins;
      case When::kBehindTheBegin:
        return !begins;
      case When::kModelEnds:
        return ends;
      case When::kBeforeTheEnd:
        return !ends;
      case When::kLayerBehind:
        return layer < last;
      case When::kLayerAgain:
        return layer < last && tables_.RecomputedLayer(stage, layer + 1, microbatch);
      case When::kLayerBefore:
        return layer > first;
      case When::kStageBehind:
        return layer == last && !ends && same_rank(stage + 1);
      case When::kSendBehind:
        return layer == last && !ends && !same_rank(stage + 1);
      case When::kStageBefore:
        return layer == first && !begins && same_rank(stage - 1);
      case When::kSendBefore:
        return layer == first && !begins && !same_rank(stage - 1);
    }
    return false;
  };
  for (const size_t number : rows_[static_cast<size_t>(op)]) {
    const Row& row = kRows[number];
    if (!holds(row.when)) continue;
    if (row.where == (layered_ ? Where::kStage : Where::kEachLayer)) continue;
    int of_layer = layer, of_stage = stage;
    if (row.where == Where::kNextLayer) ++of_layer;
    if (row.where == Where::kLayerBefore) --of_layer;
    if (row.where == Where::kFirstLayer || row.where == Where::kNextStage) of_layer = first;
    if (row.where == Where::kNextStage) ++of_stage;
    if (row.where == Where::kStageBefore) --of_stage;
    if (row.where == Where::kLastLayer || row.where == Where::kStageBefore) {
      of_layer = tables_.plan.LayersOf(of_stage) - 1;
    }
    for (uint32_t left = row.reads.bits | row.makes.bits; left != 0; left &= left - 1) {
      const auto value = static_cast<Value>(std::countr_zero(left));
      touches->push_back(
          {value, static_cast<int16_t>(of_layer), of_stage, microbatch, row.makes.Has(value)});
    }
  }
}

std::optional<ValueBytes> SizesOf(const CostModel& costs, int layers, std::string* missing,
                                  int stage) {
  const bool known = costs.memory && (layers == 0 || !costs.memory->values.empty());
  if (!known) {
    *missing = layers > 0 ? "the costs do not say how large the values of a layer are; give "
                            "\"memory\": {\"values\": {..}}, or compile with `model`"
                          : "the costs do not say how large activations are; give " +
                                MemoryKeys(costs, {"activation_bytes", "w_stash_bytes"});
    return std::nullopt;
  }
  const struct {
    Value value;
    int64_t bytes;
  } opaque[] = {
      {V::input, costs.comm.SizeBetween(stage - 1).bytes},
      {V::output, costs.comm.SizeBetween(stage).bytes},
      {V::doutput, costs.comm.SizeBetween(stage).bytes},
      {V::dinput, costs.comm.SizeBetween(stage - 1).bytes},
      {V::activation, costs.memory->activation(stage) - costs.memory->stash(stage)},
      {V::stash, costs.memory->stash(stage)},
  };
  ValueBytes bytes{};
  for (const auto& row : opaque) bytes[static_cast<size_t>(row.value)] = row.bytes;
  if (layers == 0) return bytes;
  CF_ASSERT(costs.memory->values.size() == bytes.size());
  for (size_t v = 0; v < bytes.size(); ++v) bytes[v] = costs.memory->values[v];
  return bytes;
}

}  // namespace contraflow::check
