#include "runtime/gpu/whole_layer.h"

#include "runtime/gpu/products.h"

namespace contraflow {
namespace {

constexpr Value kOfMember[] = {
    Value::input,    Value::output,     Value::attention, Value::scores,        Value::dispatched,
    Value::combined, Value::doutput,    Value::dcombined, Value::dweight,       Value::ddispatched,
    Value::dexpert,  Value::dattention, Value::dinput,    Value::attention_work};
constexpr Value kOfExperts[] = {Value::rows,  Value::gate,  Value::hidden, Value::expert_out,
                                Value::drows, Value::dgate, Value::dsorted};

/// Places the values from `at` on, and returns their bytes; with a null `at` it only counts.
size_t Place(const LayerShape& shape, std::span<const int> layers, std::byte* at,
             std::vector<WholeLayer>* all) {
  int64_t bytes = 0;
  const auto place = [&](Value value, GpuViews* views) {
    bytes += PlaceGpuValue(shape, value, at == nullptr ? nullptr : at + bytes, views);
  };
  for (size_t s = 0; s < layers.size(); ++s) {
    for (int layer = 0; layer < layers[s]; ++layer) {
      WholeLayer& whole = all->emplace_back(WholeLayer{static_cast<int>(s), layer, {}, {}});
      for (const Value value : kOfExperts) place(value, &whole.experts);
      for (int e = 0; e < shape.members; ++e) {
        GpuViews& views = whole.members.emplace_back();
        for (const Value value : kOfMember) place(value, &views);
        if (s + 1 == layers.size() && layer + 1 == layers[s]) place(Value::head, &views);
      }
    }
  }
  return static_cast<size_t>(bytes);
}

}  // namespace

std::vector<WholeLayer> PlaceWholeLayers(const LayerShape& shape, std::span<const int> layers,
                                         Gpu& gpu, gpu::Stream stream) {
  std::vector<WholeLayer> counted, placed;
  const size_t size = Place(shape, layers, nullptr, &counted);
  std::byte* const memory = gpu.Allocate(size);
  PoisonOnDevice(gpu, stream, memory, size);
  Place(shape, layers, memory, &placed);
  for (size_t l = 0; l + 1 < placed.size(); ++l) {
    for (size_t e = 0; e < placed[l].members.size(); ++e) {
      placed[l].members[e].z = placed[l + 1].members[e].x;
      placed[l + 1].members[e].dx = placed[l].members[e].dz;
    }
  }
  return placed;
}

}  // namespace contraflow
