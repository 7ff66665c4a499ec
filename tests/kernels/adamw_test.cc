#include "kernels/host/adamw.h"

#include <doctest/doctest.h>

#include <cmath>

#include "kernels/gpu/elementwise.h"
#include "tests/support/guarded.h"

namespace contraflow::adamw_test {
namespace {

using gpu::Bf16;

struct Shape {
  size_t size, shift = 0;
};

// A vector is 4 parameters: with and without a rest, and more than the threads of the grid have at
// once.
std::vector<Shape> Shapes() {
  std::vector<Shape> shapes = {{0}, {1}, {3}, {4}, {1023}, {9001}, {1021, 1}, {3, 3}};
  if (!Emulated()) shapes.insert(shapes.end(), {{10000003}, {1000003, 1}});
  return shapes;
}

gpu::AdamWStepSize StepSize(const AdamW& settings, int step) {
  return {static_cast<float>(settings.learning_rate),
          static_cast<float>(1 / (1 - std::pow(settings.beta1, step))),
          static_cast<float>(1 / (1 - std::pow(settings.beta2, step)))};
}

std::vector<Bf16> Rounded(const std::vector<float>& values) {
  std::vector<Bf16> rounded;
  for (const float value : values) rounded.push_back(gpu::ToBf16(value));
  return rounded;
}

TEST_SUITE("kernel") {
  TEST_CASE("adamw: several steps") {
    const AdamW settings = {
        .learning_rate = 0.01, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-3, .weight_decay = 0.1};
    const gpu::AdamWRates rates = {0.9f, 0.95f, 1e-3f, 0.1f};
    for (const Shape& shape : Shapes()) {
      CAPTURE(shape.size);
      const std::vector<float> begin = RandomFloats(shape.size, 1);
      Guarded<float> m(std::vector<float>(shape.size), shape.shift);
      Guarded<float> v(std::vector<float>(shape.size), shape.shift), parameter(begin, shape.shift);
      Guarded<Bf16> copy(shape.size, shape.shift);
      OnDevice<gpu::AdamWStepSize> step_size(1);
      std::vector<double> host_m(shape.size), host_v(shape.size), host = Doubles(begin);
      for (int step = 1; step <= 3; ++step) {
        const std::vector<float> gradient = RandomFloats(shape.size, 10u + unsigned(step), 2);
        Guarded<float> device_gradient(gradient, shape.shift);
        step_size.Put({StepSize(settings, step)});
        gpu::AdamWStep(step == 2 ? NarrowStream() : TestStream(), step_size.data(), rates,
                       shape.size, device_gradient.data(), m.data(), v.data(), parameter.data(),
                       copy.data());
        AdamWStep(settings, step, shape.size, Doubles(gradient).data(), host_m.data(),
                  host_v.data(), host.data());
        CHECK(RelativeError(Doubles(m.Get()), host_m) < 1e-6);
        CHECK(RelativeError(Doubles(v.Get()), host_v) < 1e-6);
        CHECK(RelativeError(Doubles(parameter.Get()), host) < 1e-6);
        CHECK((copy.Get() == Rounded(parameter.Get())));
      }
    }
  }

  TEST_CASE("adamw: the copy is the parameters rounded to even") {
    for (const Shape& shape : Shapes()) {
      std::vector<float> values = RandomFloats(shape.size, 2, 1000);
      // Half way between two.
      for (size_t i = 0; i < values.size(); i += 3) values[i] = 1 + 0x1p-8f * float(i % 16);
      Guarded<float> parameter(values, shape.shift);
      for (const gpu::Stream stream : {TestStream(), NarrowStream()}) {
        Guarded<Bf16> copy(shape.size, shape.shift);
        gpu::RoundToBf16(stream, shape.size, parameter.data(), copy.data());
        CHECK((copy.Get() == Rounded(values)));
      }
    }
  }
}

}  // namespace
}  // namespace contraflow::adamw_test
