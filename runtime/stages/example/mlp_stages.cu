// Stages of your own, as small as they get: each is y = x + relu(x W1) W2 on 64 vectors of 32
// numbers, trained by gradient descent to turn random vectors by one place. The same source is for
// GPUs and for the host:
//
//   nvcc -I. -shared -Xcompiler -fPIC --extended-lambda -arch=sm_90 mlp_stages.cu -lcublas -o
//   mlp.so g++ -I. -std=c++20 -shared -fPIC -O2 -x c++ mlp_stages.cu -lopenblas -o mlp.so

#include <cstdint>

#include "runtime/stages/example/portable.h"
#include "runtime/stages/stage_api.h"

namespace {

constexpr int kRows = 64, kWidth = 32, kInner = 48;
constexpr int kX = kRows * kWidth, kH = kRows * kInner, kW = kWidth * kInner;
constexpr float kRate = 3;

// In [-1, 1), the same for all who ask for the same.
ANYWHERE inline float Draw(uint64_t seed, uint64_t which, int i) {
  uint64_t z = seed + 0x9e3779b97f4a7c15 * (which * 1000003 + static_cast<uint64_t>(i) + 1);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return static_cast<float>((z ^ (z >> 31)) >> 40) * 0x1p-23f - 1;
}

struct Stage {
  contraflow_job job;
  contraflow_copy copy;
  Blas blas;
  float *weights, *gradients;  // W1 [width x inner], W2 [inner x width]
  float* step;                 // in memory, as a captured graph cannot have it as an argument
};

// What forward leaves for the others.
struct Stash {
  explicit Stash(void* at) : x(static_cast<float*>(at)), h(x + kX), da(h + kH), dy(da + kH) {}
  float *x, *h, *da, *dy;
  static constexpr size_t kCount = 2 * kX + 2 * kH;
};

const char* Sizes(const contraflow_job*, contraflow_sizes* sizes) {
  *sizes = {kX * sizeof(float), kH * sizeof(float), Stash::kCount * sizeof(float)};
  return nullptr;
}

void Destroy(void* self) {
  auto* const stage = static_cast<Stage*>(self);
  Delete(stage->weights), Delete(stage->gradients), Delete(stage->step);
  delete stage;
}

const char* Create(const contraflow_job* job, const contraflow_copy* copy, void** self) {
  auto* const stage = new Stage{*job, *copy, {}, New(2 * kW), New(2 * kW), New(1)};
  if (stage->weights == nullptr || stage->gradients == nullptr || stage->step == nullptr) {
    Destroy(stage);
    return "not enough memory for its weights";
  }
  float* const w = stage->weights;
  const uint64_t seed = job->seed, which = static_cast<uint64_t>(copy->stage);
  Each(
      static_cast<Stream>(copy->stream), 2 * kW,
      EACH(int i) { w[i] = 0.1f * Draw(seed, which, i); });
  *self = stage;
  return Failed();
}

const char* BeginStep(void* self, int32_t number, void* stream) {
  const auto* const stage = static_cast<Stage*>(self);
  float *const gradients = stage->gradients, *const step = stage->step;
  Each(
      static_cast<Stream>(stream), 2 * kW, EACH(int i) { gradients[i] = 0; });
  Each(
      static_cast<Stream>(stream), 1, EACH(int) { *step = static_cast<float>(number); });
  return Failed();
}

const char* Forward(void* self, const contraflow_cell* cell, void* stream) {
  auto* const stage = static_cast<Stage*>(self);
  const auto s = static_cast<Stream>(stream);
  const bool last = stage->copy.stage + 1 == stage->job.stages;
  const Stash stash(cell->stash);
  const auto* const input = static_cast<const float*>(cell->input);
  auto* const a = static_cast<float*>(cell->activation);
  const float* const step = stage->step;
  const uint64_t seed = ~stage->job.seed;
  const uint64_t micro = static_cast<uint64_t>(stage->copy.replica) << 20 | cell->microbatch;
  const auto datum = EACH(int i) {
    return Draw(seed, static_cast<uint64_t>(*step) << 40 | micro, i);
  };
  Each(
      s, kX, EACH(int i) { stash.x[i] = input != nullptr ? input[i] : datum(i); });
  stage->blas.Product(s, false, false, kRows, kInner, kWidth, stash.x, stage->weights, false, a);
  Each(
      s, kH, EACH(int i) { stash.h[i] = a[i] > 0 ? a[i] : 0; });
  float* const y = last ? stash.dy : static_cast<float*>(cell->output);
  if (y == nullptr) return Failed();  // runs again: the next stage has it
  Each(
      s, kX, EACH(int i) { y[i] = stash.x[i]; });
  stage->blas.Product(s, false, false, kRows, kWidth, kInner, stash.h, stage->weights + kW, true,
                      y);
  if (!last) return Failed();
  // The loss is the mean square of y - target; its gradient takes the place of y.
  Each(
      s, kX, EACH(int i) { y[i] -= datum(i / kWidth * kWidth + (i + 1) % kWidth); });
  float* const loss = cell->loss;
  if (loss != nullptr) {
    Each(
        s, 1, EACH(int) {
          float sum = 0;
          for (int i = 0; i < kX; ++i) sum += y[i] * y[i];
          *loss = sum / kX;
        });
  }
  const float scale = 2.0f / kX / static_cast<float>(stage->job.microbatches * stage->job.replicas);
  Each(
      s, kX, EACH(int i) { y[i] *= scale; });
  return Failed();
}

const char* BackwardInput(void* self, const contraflow_cell* cell, void* stream) {
  auto* const stage = static_cast<Stage*>(self);
  const auto s = static_cast<Stream>(stream);
  const Stash stash(cell->stash);
  const auto* const a = static_cast<const float*>(cell->activation);
  if (const auto* const doutput = static_cast<const float*>(cell->doutput)) {
    Each(
        s, kX, EACH(int i) { stash.dy[i] = doutput[i]; });
  }
  stage->blas.Product(s, false, true, kRows, kInner, kWidth, stash.dy, stage->weights + kW, false,
                      stash.da);
  Each(
      s, kH, EACH(int i) {
        if (a[i] <= 0) stash.da[i] = 0;
      });
  auto* const dinput = static_cast<float*>(cell->dinput);
  if (dinput == nullptr) return Failed();
  Each(
      s, kX, EACH(int i) { dinput[i] = stash.dy[i]; });
  stage->blas.Product(s, false, true, kRows, kWidth, kInner, stash.da, stage->weights, true,
                      dinput);
  return Failed();
}

const char* BackwardWeight(void* self, const contraflow_cell* cell, void* stream) {
  auto* const stage = static_cast<Stage*>(self);
  const auto s = static_cast<Stream>(stream);
  const Stash stash(cell->stash);
  stage->blas.Product(s, true, false, kWidth, kInner, kRows, stash.x, stash.da, true,
                      stage->gradients);
  stage->blas.Product(s, true, false, kInner, kWidth, kRows, stash.h, stash.dy, true,
                      stage->gradients + kW);
  return Failed();
}

const char* Gradients(void* self, float** values, size_t* count) {
  *values = static_cast<Stage*>(self)->gradients;
  *count = 2 * kW;
  return nullptr;
}

const char* OptimizerStep(void* self, void* stream) {
  const auto* const stage = static_cast<Stage*>(self);
  float *const w = stage->weights, *const g = stage->gradients;
  Each(
      static_cast<Stream>(stream), 2 * kW, EACH(int i) { w[i] -= kRate * g[i]; });
  return Failed();
}

const char* Block(void* self, int32_t index, contraflow_block* block) {
  *block = {"weights", static_cast<Stage*>(self)->weights, 2 * kW * sizeof(float)};
  if (index > 0) block->data = nullptr;
  return nullptr;
}

constexpr contraflow_stage_api kStages = {CONTRAFLOW_STAGE_VERSION,
                                          sizeof(contraflow_stage_api),
                                          Sizes,
                                          Create,
                                          Destroy,
                                          BeginStep,
                                          Forward,
                                          BackwardInput,
                                          BackwardWeight,
                                          nullptr,
                                          nullptr,
                                          Gradients,
                                          OptimizerStep,
                                          Block};

}  // namespace

extern "C" const contraflow_stage_api* contraflow_stages(void) { return &kStages; }
