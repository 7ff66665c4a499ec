// Stages of your own, as small as they get: each is y = x + relu(x W1) W2 on 64 vectors of 32
// numbers, trained by gradient descent to turn random vectors by one place. The same source is for
// GPUs and for the host:
//
// nvcc -I. -o mlp.so -shared -Xcompiler -fPIC -extended-lambda -arch=sm_90 mlp_stages.cu -lcublas
// g++ -I. -o mlp.so -shared -fPIC -std=c++20 -O2 -x c++ mlp_stages.cu -lopenblas

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
  float* step;  // after them: in memory, as a captured graph cannot have it as an argument
};
Stage& At(void* self) { return *static_cast<Stage*>(self); }
const float* In(const void* value) { return static_cast<const float*>(value); }
float* Out(void* value) { return static_cast<float*>(value); }

// Values that forward leaves for the others.
struct Stash {
  explicit Stash(void* at) : x(Out(at)), h(x + kX), da(h + kH), dy(da + kH) {}
  float *x, *h, *da, *dy;
};

const char* Sizes(const contraflow_job*, contraflow_sizes* sizes) {
  *sizes = {kX * sizeof(float), kH * sizeof(float), 2 * (kX + kH) * sizeof(float)};
  return nullptr;
}

void Destroy(void* self) {
  Delete(At(self).weights);
  delete &At(self);
}

const char* Create(const contraflow_job* job, const contraflow_copy* copy, void** self) {
  float* const w = New(4 * kW + 1);
  if (w == nullptr) return "not enough memory for its weights";
  *self = new Stage{*job, *copy, {}, w, w + 2 * kW, w + 4 * kW};
  const uint64_t seed = job->seed, which = static_cast<uint64_t>(copy->stage);
  EACH(static_cast<Stream>(copy->stream), 2 * kW, i, w[i] = 0.1f * Draw(seed, which, i));
  return Failed();
}

const char* BeginStep(void* self, int32_t number, void* stream) {
  float *const gradients = At(self).gradients, *const step = At(self).step;
  EACH(static_cast<Stream>(stream), 2 * kW, i, gradients[i] = 0);
  EACH(static_cast<Stream>(stream), 1, i, step[i] = static_cast<float>(number));
  return Failed();
}

const char* Forward(void* self, const contraflow_cell* cell, void* stream) {
  Stage& stage = At(self);
  const auto s = static_cast<Stream>(stream);
  const bool last = stage.copy.stage + 1 == stage.job.stages;
  const Stash stash(cell->stash);
  const float *const input = In(cell->input), *const step = stage.step;
  float* const a = Out(cell->activation);
  const uint64_t seed = ~stage.job.seed;
  const uint64_t micro = static_cast<uint64_t>(stage.copy.replica) << 20 | cell->microbatch;
  const auto datum = [=] DEVICE(int i) {
    return Draw(seed, static_cast<uint64_t>(*step) << 40 | micro, i);
  };
  EACH(s, kX, i, stash.x[i] = input != nullptr ? input[i] : datum(i));
  stage.blas.Product(s, false, false, kRows, kInner, kWidth, stash.x, stage.weights, false, a);
  EACH(s, kH, i, stash.h[i] = a[i] > 0 ? a[i] : 0);
  float* const y = last ? stash.dy : Out(cell->output);
  if (y == nullptr) return Failed();  // runs again: the next stage has it
  EACH(s, kX, i, y[i] = stash.x[i]);
  stage.blas.Product(s, false, false, kRows, kWidth, kInner, stash.h, stage.weights + kW, true, y);
  if (!last) return Failed();
  // The loss is the mean square of y - target; its gradient takes the place of y.
  EACH(s, kX, i, y[i] -= datum(i / kWidth * kWidth + (i + 1) % kWidth));
  if (float* const loss = cell->loss) {
    EACH(s, 1, one, float sum = 0; for (int i = 0; i < kX; ++i) sum += y[i] * y[i];
         loss[one] = sum / kX);
  }
  const float scale = 2.0f / kX / static_cast<float>(stage.job.microbatches * stage.job.replicas);
  EACH(s, kX, i, y[i] *= scale);
  return Failed();
}

const char* BackwardInput(void* self, const contraflow_cell* cell, void* stream) {
  Stage& stage = At(self);
  const auto s = static_cast<Stream>(stream);
  const Stash stash(cell->stash);
  const float *const a = In(cell->activation), *const doutput = In(cell->doutput);
  const float *const w1 = stage.weights, *const w2 = w1 + kW;
  if (doutput != nullptr) EACH(s, kX, i, stash.dy[i] = doutput[i]);
  stage.blas.Product(s, false, true, kRows, kInner, kWidth, stash.dy, w2, false, stash.da);
  EACH(s, kH, i, stash.da[i] = a[i] > 0 ? stash.da[i] : 0);
  float* const dinput = Out(cell->dinput);
  if (dinput == nullptr) return Failed();
  EACH(s, kX, i, dinput[i] = stash.dy[i]);
  stage.blas.Product(s, false, true, kRows, kWidth, kInner, stash.da, w1, true, dinput);
  return Failed();
}

const char* BackwardWeight(void* self, const contraflow_cell* cell, void* stream) {
  Stage& stage = At(self);
  const auto s = static_cast<Stream>(stream);
  const Stash stash(cell->stash);
  float* const g = stage.gradients;
  stage.blas.Product(s, true, false, kWidth, kInner, kRows, stash.x, stash.da, true, g);
  stage.blas.Product(s, true, false, kInner, kWidth, kRows, stash.h, stash.dy, true, g + kW);
  return Failed();
}

const char* Gradients(void* self, float** values, size_t* count) {
  *values = At(self).gradients, *count = 2 * kW;
  return nullptr;
}

const char* OptimizerStep(void* self, void* stream) {
  float *const w = At(self).weights, *const g = At(self).gradients;
  EACH(static_cast<Stream>(stream), 2 * kW, i, w[i] -= kRate * g[i]);
  return Failed();
}

const char* Block(void* self, int32_t index, contraflow_block* block) {
  *block = {"weights", index == 0 ? At(self).weights : nullptr, 2 * kW * sizeof(float)};
  return nullptr;
}

constexpr contraflow_stage_api kStages = {
    CONTRAFLOW_STAGE_VERSION, sizeof(contraflow_stage_api), Sizes, Create, Destroy, BeginStep,
    // Fused calls: one after the other.
    Forward, BackwardInput, BackwardWeight, nullptr, nullptr, Gradients, OptimizerStep, Block};

}  // namespace

extern "C" const contraflow_stage_api* contraflow_stages(void) { return &kStages; }
