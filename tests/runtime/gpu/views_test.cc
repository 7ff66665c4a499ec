#include "runtime/model/views.h"

#include <doctest/doctest.h>

#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "runtime/model/gpu_views.h"
#include "runtime/model/parameters.h"
#include "tests/runtime/gpu/gpu_plan.h"
#include "tests/support/failure.h"

namespace contraflow::views_test {
namespace {

Model RandomModel(std::mt19937_64* random) {
  const auto pick = [&](int least, int most) {
    return least + static_cast<int>((*random)() % static_cast<uint64_t>(most - least + 1));
  };
  Model model = SmallGpuModel();
  model.heads = pick(1, 4);
  model.width = model.heads * 8 * pick(1, 3);
  model.experts = 2 * pick(1, 5);
  model.top_k = pick(1, model.experts);
  model.expert_width = 8 * pick(1, 5);
  model.capacity_factor = pick(0, 1) == 0 ? 0.0f : 1.25f;
  model.sequence = pick(1, 9);
  model.batch = pick(1, 3);
  return model;
}

/// Required place of a part, and how many bytes it takes.
struct Part {
  const void* at;
  int64_t bytes;
};

template <typename T>
Part PartOf(const T* at, int rows, int columns) {
  return {at, int64_t{rows} * columns * static_cast<int64_t>(sizeof(T))};
}

/// The parts of a value, in the order in which they must lie.
std::vector<Part> PartsOf(const LayerShape& n, Value value, const GpuViews& v) {
  const int t = n.tokens, d = n.width, k = n.top_k, r = n.expert_rows, f = n.expert_width;
  switch (value) {
    case Value::input:
      return {PartOf(v.x, t, d)};
    case Value::output:
      return {PartOf(v.z, t, d)};
    case Value::attention:
      return {PartOf(v.attention_rstd, t, 1), PartOf(v.attention_xn, t, d),
              PartOf(v.context, t, d),        PartOf(v.y, t, d),
              PartOf(v.expert_rstd, t, 1),    PartOf(v.expert_xn, t, d)};
    case Value::scores:
      return {PartOf(v.qkv, t, 3 * d),
              PartOf(v.lse, n.batch * n.heads, n.sequence),
              PartOf(v.router, t, n.experts),
              PartOf(v.weight, t, k),
              PartOf(v.expert, t, k),
              PartOf(v.row_of, t, k),
              PartOf(v.token_of, n.sent_rows, 1),
              PartOf(v.sent, n.experts + 1, 1)};
    case Value::dispatched:
      return {PartOf(v.dispatched, n.sent_rows, d)};
    case Value::rows:
      return {PartOf(v.rows, r, d), PartOf(v.first, n.local_experts + 1, 1),
              PartOf(v.received, n.members, n.local_experts)};
    case Value::gate:
      return {PartOf(v.gate, r, 2 * f)};
    case Value::hidden:
      return {PartOf(v.hidden, r, f)};
    case Value::expert_out:
      return {PartOf(v.expert_out, r, d)};
    case Value::combined:
      return {PartOf(v.combined, n.sent_rows, d)};
    case Value::head:
      return {PartOf(v.final_rstd, t, 1), PartOf(v.final_xn, t, d),
              PartOf(v.logits, t, n.vocabulary), PartOf(v.row_loss, t, 1),
              PartOf(v.dfinal_xn, t, d)};
    case Value::doutput:
      return {PartOf(v.dz, t, d)};
    case Value::dcombined:
      return {PartOf(v.dcombined, n.sent_rows, d)};
    case Value::dweight:
      return {PartOf(v.dweight, t, k)};
    case Value::drows:
      return {PartOf(v.drows, r, d)};
    case Value::dgate:
      return {PartOf(v.dgate, r, 2 * f)};
    case Value::dsorted:
      return {PartOf(v.dsorted, r, d)};
    case Value::ddispatched:
      return {PartOf(v.ddispatched, n.sent_rows, d)};
    case Value::dexpert:
      return {PartOf(v.dexpert, t, d)};
    case Value::dattention:
      return {PartOf(v.dqkv, t, 3 * d), PartOf(v.dy, t, d), PartOf(v.dattention_xn, t, d),
              PartOf(v.dlogits, t, n.experts)};
    case Value::attention_work:
      return {PartOf(v.dcontext, t, d)};
    case Value::dinput:
      return {PartOf(v.dx, t, d)};
    case Value::activation:
    case Value::stash:
      return {};
  }
  return {};
}

TEST_SUITE("unit") {
  TEST_CASE("GPU values: parts lie one after another and aligned and fill the value") {
    std::mt19937_64 random(1);
    for (int round = 0; round < 40; ++round) {
      const int members = 1 + round % 2;
      const Model model = RandomModel(&random);
      const LayerShape shape(model, members, model.experts / members);
      const ValueBytes bytes = BytesOfGpuValues(shape);
      // Never read: only where parts lie counts.
      auto* const base = reinterpret_cast<std::byte*>(uintptr_t{1} << 40);
      for (size_t i = 0; i < kValueCount; ++i) {
        const auto value = static_cast<Value>(i);
        CAPTURE(Name(value));
        GpuViews views;
        CHECK(PlaceValue(shape, value, base, &views) == bytes[i]);
        int64_t end = 0;
        for (const Part& part : PartsOf(shape, value, views)) {
          CHECK(static_cast<const std::byte*>(part.at) - base == end);
          end = (end + part.bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
        }
        CHECK(end == bytes[i]);
      }
    }
  }

  TEST_CASE("GPU values: without memory they are counted and nothing is placed") {
    const Model model = SmallGpuModel();
    const LayerShape shape(model, 1, model.experts);
    GpuViews views;
    CHECK(PlaceValue(shape, Value::attention, nullptr, &views) ==
          2 * 64 + 4 * shape.tokens * shape.width * 2);
    CHECK(views.context == nullptr);
  }

  TEST_CASE("GPU footprint: values to the byte and 18 bytes a parameter") {
    const Model model = SmallGpuModel();
    const MemoryCost memory = GpuFootprintOf(model, 2, 2, 2);
    const Model fitted = FitModel(model, 2, 2, 2);
    const ValueBytes values = BytesOfGpuValues(LayerShape(fitted, 2, 2));
    REQUIRE(memory.values.size() == kValueCount);
    for (size_t i = 0; i < kValueCount; ++i) CHECK(memory.values[i] == values[i]);
    int64_t activation = 0;
    for (const Value value : kActivationOfLayer)
      activation += 2 * values[static_cast<size_t>(value)];
    CHECK(memory.activation_bytes == activation);
    REQUIRE(memory.parameter_bytes.size() == 2);
    for (int s = 0; s < 2; ++s) {
      const auto i = static_cast<size_t>(s);
      const auto size = static_cast<int64_t>(LayoutOfStage(fitted, s, 2, {0, 2}).size);
      CHECK(memory.parameter_bytes[i] == 6 * size);
      CHECK(memory.gradient_bytes[i] == 4 * size);
      CHECK(memory.optimizer_bytes[i] == 8 * size);
    }
    // The same as on the host, but for the sizes.
    const MemoryCost host = FootprintOf(model, 2, 2, 2);
    CHECK(host.gradient_bytes == memory.gradient_bytes);
    CHECK(host.activation_bytes > memory.activation_bytes);
  }

  TEST_CASE("GPU model: what kernels cannot do is refused with the remedy") {
    const auto refusal = [](const std::function<void(Model*)>& change) {
      Model model = SmallGpuModel();
      change(&model);
      const std::string text = Failure([&] { FitGpuModel(model, 1, 0, 1); });
      // A model that the plan is compiled for is refused there already.
      CHECK(Failure([&] { GpuFootprintOf(model, 1, 0, 1); }) == text);
      return text;
    };
    const std::string model = "model \"small-gpu\" is none for a GPU: ";
    CHECK(refusal([](Model*) {}) == "accepted");
    CHECK(refusal([](Model* m) { m->width = 12; }) ==
          model + "width must be a multiple of 8, is 12");
    CHECK(refusal([](Model* m) { m->expert_width = 20; }) ==
          model + "expert_width must be a multiple of 8, is 20");
    CHECK(refusal([](Model* m) { m->heads = 4; }) ==
          model + "width / heads must be a multiple of 8, is 4");
    CHECK(refusal([](Model* m) { m->width = 272; }) ==
          model + "width / heads must be at most 128, is 136; give it more heads");
    CHECK(refusal([](Model* m) { m->experts = 32, m->top_k = 17; }) ==
          model + "top_k must be at most 16, is 17");
    CHECK(refusal([](Model* m) { m->experts = 1025; }) ==
          model + "experts must be at most 1024, is 1025");
  }
}

}  // namespace
}  // namespace contraflow::views_test
