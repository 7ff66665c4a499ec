#include <algorithm>
#include <functional>
#include <utility>

#include "compiler/files/cost_fields.h"
#include "compiler/plan/plan.h"

namespace contraflow {
namespace {

/// Bytes that a stage holds from F to the end of B, and of W, by the values of its layers.
void DeriveActivations(const JsonCursor& memory, const MoeCost& moe, MemoryCost* cost) {
  const auto [activation, stash] = ActivationOf(cost->values);
  cost->activation_bytes = activation * moe.layers_per_stage;
  if (cost->activation_bytes > kMaxBytes) {
    memory.Required("values").Fail("the activations of a stage's layers add up to more than " +
                                   std::to_string(kMaxBytes) + " bytes; are they in bytes?");
  }
  if (!memory.Optional("w_stash_bytes")) cost->w_stash_bytes = stash * moe.layers_per_stage;
}

/// Activations and stashes: of each the least, and lists of both if either is one.
void ReadActivations(const JsonCursor& memory, const std::optional<JsonCursor>& activation,
                     const std::optional<JsonCursor>& stash, MemoryCost* cost) {
  std::vector<int64_t> activations = ReadStageBytes(activation), stashes = ReadStageBytes(stash);
  const size_t stages = std::max(activations.size(), stashes.size());
  for (std::vector<int64_t>* list : {&activations, &stashes}) {
    if (list->empty()) list->push_back(0);
    if (list->size() == 1) list->resize(std::max<size_t>(stages, 1), list->front());
  }
  if (activations.size() != stashes.size()) {
    memory.Fail("\"activation_bytes\" has " + std::to_string(activations.size()) +
                " entries and \"w_stash_bytes\" has " + std::to_string(stashes.size()) +
                "; give one number or as many of both");
  }
  if (stages > 1 &&
      (!activation || *std::min_element(activations.begin(), activations.end()) < 1)) {
    memory.Fail(
        "where stages differ in \"activation_bytes\" or \"w_stash_bytes\", each needs an "
        "activation "
        "of 1 byte or more");
  }
  for (size_t s = 0; activation && s < stages; ++s) {
    if (stashes[s] <= activations[s]) continue;
    (stash->IsArray() ? stash->Item(s) : *stash)
        .Fail("is part of \"activation_bytes\" and must be at most " +
              std::to_string(activations[s]) + ", is " + std::to_string(stashes[s]));
  }
  cost->activation_bytes = *std::min_element(activations.begin(), activations.end());
  cost->w_stash_bytes = *std::min_element(stashes.begin(), stashes.end());
  if (stages < 2) return;
  cost->activation_of = std::move(activations);
  cost->stash_of = std::move(stashes);
}

}  // namespace

std::vector<int64_t> ReadStageBytes(const std::optional<JsonCursor>& field) {
  if (!field) return {};
  if (!field->IsArray()) return {ReadBytes(*field)};
  const size_t size = field->Size("");
  if (size < 1 || size > size_t{kMaxStages}) {
    field->Fail("must be one number or a list with one for each stage, has " +
                std::to_string(size) + " entries");
  }
  std::vector<int64_t> bytes;
  for (size_t i = 0; i < size; ++i) bytes.push_back(ReadBytes(field->Item(i)));
  return bytes;
}

void ReadSharing(const JsonCursor& memory, MemoryCost* cost) {
  if (const auto zero = memory.Optional("zero")) {
    cost->zero = static_cast<int>(zero->Integer("a stage of ZeRO", 0, 3));
  }
  if (const auto bytes = memory.Optional("workspace_bytes")) {
    cost->workspace_bytes = ReadBytes(*bytes);
  }
}

MemoryCost ReadMemory(const JsonCursor& memory, const std::optional<MoeCost>& moe) {
  memory.Keys("an object with numbers of bytes",
              {"activation_bytes", "w_stash_bytes", "parameter_bytes", "gradient_bytes",
               "optimizer_bytes", "rest", "values", "input_bytes", "zero", "workspace_bytes"});
  MemoryCost cost;
  ReadSharing(memory, &cost);
  const std::optional<JsonCursor> activation = memory.Optional("activation_bytes");
  const std::optional<JsonCursor> values = memory.Optional("values");
  if (!activation && !values) memory.Required("activation_bytes");
  if (!activation && !moe) {
    memory.Fail(
        "has \"values\" and no \"activation_bytes\", which follows from them only with \"moe\"; "
        "give one of the two");
  }
  ReadActivations(memory, activation, memory.Optional("w_stash_bytes"), &cost);
  const std::optional<JsonCursor> rest = memory.Optional("rest");
  if (rest) {
    rest->Keys("an object with the bytes that belong to no expert",
               {"parameter_bytes", "gradient_bytes", "optimizer_bytes"});
  }
  for (const StateBytes& state : kStateBytes) {
    std::vector<int64_t>&all = cost.*state.of_stages, &part = cost.*state.rest_of_stages;
    all = ReadStageBytes(memory.Optional(state.key));
    if (rest) part = ReadStageBytes(rest->Optional(state.key));
    if (part.empty()) continue;
    if (part.size() != all.size() || !std::ranges::equal(part, all, std::less_equal())) {
      rest->Required(state.key).Fail("must be part of \"" + std::string(state.key) +
                                     "\", with an entry for each of its entries");
    }
  }
  if (values) {
    const ValueBytes bytes = ReadValues(*values)[0];
    cost.values.assign(bytes.begin(), bytes.end());
  }
  if (const auto input = memory.Optional("input_bytes")) cost.input_bytes = ReadBytes(*input);
  if (!activation) DeriveActivations(memory, *moe, &cost);
  if (cost.input_bytes > cost.activation_bytes) {
    memory.Required("input_bytes")
        .Fail("is part of \"activation_bytes\" and must be at most " +
              std::to_string(cost.activation_bytes) + ", is " + std::to_string(cost.input_bytes));
  }
  if (cost.w_stash_bytes > cost.activation_bytes) {
    memory.Required("w_stash_bytes")
        .Fail("is part of \"activation_bytes\" and must be at most " +
              std::to_string(cost.activation_bytes) + ", is " + std::to_string(cost.w_stash_bytes));
  }
  return cost;
}

}  // namespace contraflow
