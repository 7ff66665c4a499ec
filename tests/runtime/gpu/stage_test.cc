#include "runtime/gpu/stage.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "kernels/host/buffer.h"
#include "kernels/host/random.h"
#include "tests/emulator/test_gpu.h"
#include "tests/runtime/gpu/gpu_plan.h"

namespace contraflow::stage_test {
namespace {

constexpr float kLossScale = 0.5f;
/// Few SMs, as blocks take time in the emulator.
gpu::Stream FewSms() { return {TestStream().handle, 2}; }

/// Values are rounded to 8 bits at every turn.
constexpr double kBound = 2e-2;
/// In sums over few tokens terms cancel.
constexpr double kGradientBound = 3e-2;

MicroBatch RandomTokens(const Model& model, uint64_t seed) {
  MicroBatch micro;
  for (int t = 0; t < model.tokens(); ++t) {
    const uint64_t key = DeriveKey(seed, static_cast<uint64_t>(t));
    const auto classes = static_cast<uint64_t>(model.vocabulary);
    micro.tokens.push_back(static_cast<int32_t>(key % classes));
    micro.targets.push_back(static_cast<int32_t>(key / classes % classes));
  }
  return micro;
}

/// One device without neighbours: what it sends to experts is what experts get.
template <typename Views>
void Shorten(Views* v) {
  v->rows = v->dispatched;
  v->first = v->sent;
  v->combined = v->expert_out;
  v->drows = v->dcombined;
  v->ddispatched = v->dsorted;
}

/// Layers get what layers give.
template <typename Views>
void Chain(std::vector<Views>* layers) {
  for (size_t l = 0; l + 1 < layers->size(); ++l) {
    (*layers)[l].z = (*layers)[l + 1].x;
    (*layers)[l + 1].dx = (*layers)[l].dz;
  }
}

/// A whole model in one stage, on the host.
struct OnHost {
  OnHost(const Model& model, const LayerShape& shape, const MicroBatch& the_micro)
      : stage(model, shape, 0, 0, 1, 1), micro(the_micro) {
    const ValueBytes bytes = BytesOfValues<float>(shape);
    for (int layer = 0; layer < stage.layers(); ++layer) {
      LayerViews<float>& v = views.emplace_back();
      for (size_t i = 0; i < kValueCount; ++i) {
        memory.push_back(std::make_unique<Buffer<std::byte>>(static_cast<size_t>(bytes[i])));
        PlaceValue<float>(shape, static_cast<Value>(i), memory.back()->data(), &v);
      }
      Shorten(&v);
    }
    Chain(&views);
    // Weights as the GPU multiplies by them.
    for (float& weight : stage.parameters()) weight = gpu::ToFloat(gpu::ToBf16(weight));
  }

  void Train() {
    for (int layer = 0; layer < stage.layers(); ++layer) {
      const LayerViews<float>& v = views[static_cast<size_t>(layer)];
      if (stage.HasEmbedding(layer)) stage.Embed(micro, v);
      dropped += stage.AttentionForward(layer, v);
      stage.ExpertsForward(layer, v);
      stage.CombineForward(v);
      if (stage.HasHead(layer)) loss = stage.HeadForward(micro, v);
    }
    for (int layer = stage.layers(); layer-- > 0;) {
      const LayerViews<float>& v = views[static_cast<size_t>(layer)];
      if (stage.HasHead(layer)) stage.HeadBackward(micro, kLossScale, v);
      stage.CombineBackward(v);
      stage.ExpertsBackward(layer, v);
      stage.DispatchBackward(v);
      stage.AttentionBackward(layer, 0.25f, v);
      stage.ExpertsWeight(layer, v, stage.expert_gradients().data());
      if (stage.HasHead(layer)) stage.HeadWeight(v, stage.dense_gradients().data());
      stage.AttentionWeight(layer, v, stage.dense_gradients().data());
      if (stage.HasEmbedding(layer)) {
        stage.EmbeddingWeight(micro, v, stage.dense_gradients().data());
      }
    }
  }

  Stage stage;
  MicroBatch micro;
  std::vector<std::unique_ptr<Buffer<std::byte>>> memory;
  std::vector<LayerViews<float>> views;
  int dropped = 0;
  float loss = 0;
};

/// The same on the GPU.
struct OnGpu {
  OnGpu(const Model& model, const LayerShape& shape, const MicroBatch& micro)
      : products(shape, TestGpu(), FewSms(), 2),
        stage(model, products, 0, 0, 1, 2, TestGpu(), TestStream()),
        mirror(model, shape, 0, 0, 1, 2),
        lane{FewSms(), products.work(0)},
        tokens(micro.tokens),
        targets(micro.targets),
        loss(size_t{1}),
        dropped(std::vector<int32_t>(1)) {
    const ValueBytes bytes = BytesOfGpuValues(shape);
    for (int layer = 0; layer < stage.layers(); ++layer) {
      GpuViews& v = views.emplace_back();
      for (size_t i = 0; i < kValueCount; ++i) {
        memory.emplace_back(static_cast<size_t>(bytes[i]));
        PlaceValue(shape, static_cast<Value>(i), memory.back().data(), &v);
      }
      Shorten(&v);
    }
    Chain(&views);
  }

  void Forward() {
    for (int layer = 0; layer < stage.layers(); ++layer) {
      const GpuViews& v = views[static_cast<size_t>(layer)];
      stage.AttentionForward(layer, tokens.data(), dropped.data(), v, lane);
      stage.ExpertsForward(layer, v, lane.stream);
      stage.CombineForward(layer, targets.data(), kLossScale, loss.data(), v, lane);
    }
  }
  void Backward() {
    for (int layer = stage.layers(); layer-- > 0;) {
      const GpuViews& v = views[static_cast<size_t>(layer)];
      stage.CombineBackward(layer, v, lane);
      stage.ExpertsBackward(layer, v, lane.stream);
      stage.DispatchBackward(v, lane.stream);
      stage.AttentionBackward(layer, v, lane);
      stage.ExpertsWeight(layer, v, stage.expert_gradients().data(), lane.stream);
      if (stage.HasHead(layer)) stage.HeadWeight(v, stage.dense_gradients().data(), lane);
      stage.AttentionWeight(layer, tokens.data(), v, stage.dense_gradients().data(), lane);
    }
  }
  Stage& Mirror() {
    stage.Get(&mirror, TestStream());
    return mirror;
  }

  const GpuProducts products;
  GpuStage stage;
  Stage mirror;
  const GpuLane lane;
  OnDevice<int32_t> tokens, targets;
  OnDevice<float> loss;
  OnDevice<int32_t> dropped;
  std::vector<OnDevice<std::byte>> memory;
  std::vector<GpuViews> views;
};

template <typename T>
std::vector<double> ReadDevice(const T* at, size_t count) {
  std::vector<T> values(count);
  TestGpu().CopyToHost(TestStream(), values.data(), at, count * sizeof(T));
  TestGpu().Synchronize();
  std::vector<double> doubles;
  for (const T value : values) doubles.push_back(static_cast<double>(gpu::ToFloat(value)));
  return doubles;
}

template <typename T>
double ErrorOf(const T* on_device, const float* wanted, int rows, int columns) {
  const size_t count = static_cast<size_t>(rows) * static_cast<size_t>(columns);
  return RelativeError(ReadDevice(on_device, count), std::vector<double>(wanted, wanted + count));
}

std::vector<int32_t> Integers(const int32_t* at, int count) {
  std::vector<int32_t> values(static_cast<size_t>(count));
  TestGpu().CopyToHost(TestStream(), values.data(), at, values.size() * sizeof(int32_t));
  TestGpu().Synchronize();
  return values;
}

/// Relative errors of the gradients, block by block.
void CheckGradients(Stage& gpu, Stage& host) {
  for (const ParameterBlock& block : host.blocks()) {
    CAPTURE(block.name);
    const auto part = [&block](std::span<const float> all) {
      const std::span<const float> values = all.subspan(block.offset, block.size);
      return std::vector<double>(values.begin(), values.end());
    };
    const std::vector<double> wanted = part(host.gradients());
    // Gradient of an expert that no token visits.
    if (std::ranges::all_of(wanted, [](double x) { return x == 0; })) {
      CHECK(part(gpu.gradients()) == wanted);
    } else {
      CHECK(RelativeError(part(gpu.gradients()), wanted) < kGradientBound);
    }
  }
}

void CompareWithHost(int layers, float capacity_factor) {
  Model model = SmallGpuModel(capacity_factor);
  model.layers = layers;
  const LayerShape n(model, 1, model.experts);
  const MicroBatch micro = RandomTokens(model, 5);
  OnHost host(model, n, micro);
  OnGpu gpu(model, n, micro);
  const auto& weights = host.stage.parameters();
  std::copy(weights.begin(), weights.end(), gpu.mirror.parameters().begin());
  gpu.stage.Put(gpu.mirror, TestStream());

  host.Train();
  gpu.Forward();
  for (int layer = 0; layer < model.layers; ++layer) {
    CAPTURE(layer);
    const GpuViews& v = gpu.views[static_cast<size_t>(layer)];
    const LayerViews<float>& w = host.views[static_cast<size_t>(layer)];
    CHECK(ErrorOf(v.x, w.x, n.tokens, n.width) < kBound);
    CHECK(ErrorOf(v.context, w.context, n.tokens, n.width) < kBound);
    CHECK(ErrorOf(v.y, w.y, n.tokens, n.width) < kBound);
    CHECK(ErrorOf(v.router, w.router, n.tokens, n.experts) < kBound);
    CHECK(ErrorOf(v.weight, w.weight, n.tokens, n.top_k) < kBound);
    const int pairs = n.tokens * n.top_k;
    CHECK(Integers(v.expert, pairs) == std::vector<int32_t>(w.expert, w.expert + pairs));
    CHECK(Integers(v.row_of, pairs) == std::vector<int32_t>(w.row_of, w.row_of + pairs));
    CHECK(Integers(v.sent, n.experts + 1) == std::vector<int32_t>(w.sent, w.sent + n.experts + 1));
    CHECK(ErrorOf(v.dispatched, w.dispatched, n.sent_rows, n.width) < kBound);
    CHECK(ErrorOf(v.expert_out, w.expert_out, n.sent_rows, n.width) < kBound);
    CHECK(ErrorOf(v.z, w.z, n.tokens, n.width) < kBound);
  }
  CHECK(gpu.loss.Get()[0] == doctest::Approx(host.loss).epsilon(1e-2));
  CHECK(gpu.dropped.Get()[0] == host.dropped);
  CHECK((host.dropped > 0) == (capacity_factor > 0));
  gpu.Backward();
  for (int layer = 0; layer < model.layers; ++layer) {
    CAPTURE(layer);
    const GpuViews& v = gpu.views[static_cast<size_t>(layer)];
    const LayerViews<float>& w = host.views[static_cast<size_t>(layer)];
    CHECK(ErrorOf(v.dz, w.dz, n.tokens, n.width) < kBound);
    CHECK(ErrorOf(v.dcombined, w.dcombined, n.sent_rows, n.width) < kBound);
    CHECK(ErrorOf(v.dweight, w.dweight, n.tokens, n.top_k) < kBound);
    CHECK(ErrorOf(v.dsorted, w.dsorted, n.sent_rows, n.width) < kBound);
    CHECK(ErrorOf(v.dexpert, w.dexpert, n.tokens, n.width) < kBound);
    CHECK(ErrorOf(v.dqkv, w.dqkv, n.tokens, 3 * n.width) < kBound);
    CHECK(ErrorOf(v.dx, w.dx, n.tokens, n.width) < kBound);
  }
  CheckGradients(gpu.Mirror(), host.stage);
}

TEST_SUITE("kernel") {
  TEST_CASE("GPU stage: every component gives what the host gives") { CompareWithHost(2, 0); }

  TEST_CASE("GPU stage: with a capacity too") { CompareWithHost(1, 1); }

  TEST_CASE("GPU stage: gradients are added to and the same in every order of threads") {
    Model model = SmallGpuModel();
    model.layers = 1;
    const LayerShape n(model, 1, model.experts);
    const MicroBatch micro = RandomTokens(model, 6);
    OnGpu gpu(model, n, micro);
    std::vector<float> once, twice;
    for (const unsigned seed : {1u, 2u}) {
      ShuffleThreads(seed);
      gpu.stage.ZeroGradients(TestStream());
      gpu.Forward();
      gpu.Backward();
      const std::span<const float> first = gpu.Mirror().gradients();
      if (once.empty()) once.assign(first.begin(), first.end());
      CHECK(std::equal(first.begin(), first.end(), once.begin(), once.end()));
      gpu.Forward();
      gpu.Backward();
      const std::span<const float> second = gpu.Mirror().gradients();
      twice.assign(second.begin(), second.end());
    }
    const auto norm = [](const std::vector<float>& all) {
      double sum = 0;
      for (const float x : all) sum += static_cast<double>(x) * static_cast<double>(x);
      return std::sqrt(sum);
    };
    CHECK(norm(twice) == doctest::Approx(2 * norm(once)).epsilon(1e-4));
  }

  TEST_CASE("GPU stage: the optimizer takes the host's steps and products see them") {
    Model model = SmallGpuModel();
    model.layers = 1;
    model.warmup_steps = 2;
    const LayerShape n(model, 1, model.experts);
    const MicroBatch micro = RandomTokens(model, 7);
    OnGpu gpu(model, n, micro);
    Stage host(model, n, 0, 0, 1, 1);
    const std::vector<float> gradients = RandomFloats(host.gradients().size(), 9);
    std::copy(gradients.begin(), gradients.end(), host.gradients().begin());
    std::copy(host.parameters().begin(), host.parameters().end(), gpu.mirror.parameters().begin());
    std::copy(gradients.begin(), gradients.end(), gpu.mirror.gradients().begin());
    gpu.stage.Put(gpu.mirror, TestStream());
    OnDevice<gpu::AdamWStepSize> size(size_t{1});
    OnDevice<int32_t> not_finite(std::vector<int32_t>{0});
    for (int step = 1; step <= 3; ++step) {
      size.Put({StepSizeOf(model, step)});
      gpu.stage.OptimizerStep(size.data(), not_finite.data(), nullptr, TestStream());
      host.OptimizerStep(step);
      Stage& mirror = gpu.Mirror();
      const auto error = [](std::span<const float> a, std::span<const float> b) {
        return RelativeError(std::vector<double>(a.begin(), a.end()),
                             std::vector<double>(b.begin(), b.end()));
      };
      CAPTURE(step);
      CHECK(error(mirror.parameters(), host.parameters()) < 1e-6);
      CHECK(error(mirror.first_moments(), host.first_moments()) < 1e-6);
      CHECK(error(mirror.second_moments(), host.second_moments()) < 1e-6);
    }
    gpu.Forward();
    const auto embedding = gpu.Mirror().parameters().subspan(static_cast<size_t>(3 * n.width));
    const size_t width = static_cast<size_t>(n.width);
    const std::vector<double> x = ReadDevice(gpu.views[0].x, width);
    for (size_t i = 0; i < width; ++i) {
      const float weight = embedding[static_cast<size_t>(micro.tokens[0]) * width + i];
      CHECK(x[i] == static_cast<double>(gpu::ToFloat(gpu::ToBf16(weight))));
    }
  }
}

}  // namespace
}  // namespace contraflow::stage_test
