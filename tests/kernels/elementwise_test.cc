#include "kernels/gpu/elementwise.h"

#include <doctest/doctest.h>

#include <cmath>

#include "kernels/host/adamw.h"
#include "kernels/host/attention.h"
#include "kernels/host/experts.h"
#include "kernels/host/random.h"
#include "tests/support/guarded.h"

namespace contraflow::rope_test {
namespace {

using gpu::Bf16;

struct Shape {
  int rows, sequence, heads, head_width;
  size_t shift = 0;

  size_t size() const {
    return static_cast<size_t>(rows) * 3 * static_cast<size_t>(heads * head_width);
  }
};

std::vector<Shape> Shapes() {
  // Heads of more places than a block has threads, and fewer heads than threads at one place.
  std::vector<Shape> shapes = {{5, 3, 2, 8},    {4, 4, 3, 16},   {7, 5, 33, 128}, {3, 2, 9, 24},
                               {2, 2, 70, 8},   {2, 2, 2, 2064}, {2, 2, 45, 24},  {3, 2, 1, 6},
                               {2, 3, 1, 2},    {2, 2, 1, 1030}, {0, 4, 2, 8},    {3, 2, 5, 10},
                               {3, 3, 2, 64, 1}};
  if (!SmallShapes()) shapes.insert(shapes.end(), {{2048, 1024, 32, 128}, {1000, 300, 7, 66}});
  return shapes;
}

struct Table {
  explicit Table(const Shape& shape)
      : cosine(static_cast<size_t>(shape.sequence * shape.head_width / 2)), sine(cosine) {
    FillRopeTable(shape.sequence, shape.head_width, cosine.data(), sine.data());
  }
  std::vector<float> cosine, sine;
};

using Rotate = void (*)(gpu::Stream, const float*, const float*, int, int, int, int, Bf16*);

std::vector<Bf16> Rotated(Rotate rotate, const Shape& shape, const std::vector<Bf16>& qkv) {
  const Table table(shape);
  Guarded<float> cosine(table.cosine), sine(table.sine);
  Guarded<Bf16> device(qkv, shape.shift);
  rotate(TestStream(), cosine.data(), sine.data(), shape.rows, shape.sequence, shape.heads,
         shape.head_width, device.data());
  return device.Get();
}

TEST_SUITE("kernel") {
  TEST_CASE("rope: forward and its gradient") {
    unsigned seed = 400;
    for (const Shape& shape : Shapes()) {
      CAPTURE(shape.heads);
      CAPTURE(shape.head_width);
      const std::vector<Bf16> qkv = RandomBf16(shape.size(), ++seed, 4);
      const Table table(shape);
      const std::vector<double> cosine = Doubles(table.cosine), sine = Doubles(table.sine);
      std::vector<double> forward = Doubles(qkv), backward = Doubles(qkv);
      RopeForward(cosine.data(), sine.data(), shape.rows, shape.sequence, shape.heads,
                  shape.head_width, forward.data());
      RopeBackwardInput(cosine.data(), sine.data(), shape.rows, shape.sequence, shape.heads,
                        shape.head_width, backward.data());
      const std::vector<Bf16> result = Rotated(gpu::RopeForward, shape, qkv);
      CHECK(WorstUlps(result, forward, 1e-3) < kRounding);
      CHECK(WorstUlps(Rotated(gpu::RopeBackwardInput, shape, qkv), backward, 1e-3) < kRounding);
      // Values are nobody's to turn.
      const size_t row = 3 * static_cast<size_t>(shape.heads * shape.head_width);
      size_t changed = 0;
      for (size_t i = 0; i < qkv.size(); ++i)
        changed += i % row >= row / 3 * 2 && qkv[i] != result[i];
      CHECK(changed == 0);
    }
  }

  TEST_CASE("rope: the same bits in any order of the threads") {
    const Shape shape = {3, 2, 9, 24};
    const std::vector<Bf16> qkv = RandomBf16(shape.size(), 9);
    const std::vector<Bf16> result = Rotated(gpu::RopeForward, shape, qkv);
    for (unsigned seed = 1; seed <= 3; ++seed) {
      ShuffleThreads(seed);
      CHECK((Rotated(gpu::RopeForward, shape, qkv) == result));
    }
  }
}

}  // namespace
}  // namespace contraflow::rope_test

namespace contraflow::swiglu_test {
namespace {

using gpu::Bf16;

struct Shape {
  int rows, most_rows, width;
  double limit = 4;
  size_t shift = 0;

  size_t size() const { return static_cast<size_t>(rows) * static_cast<size_t>(width); }
  size_t most() const { return static_cast<size_t>(most_rows) * static_cast<size_t>(width); }
};

std::vector<Shape> Shapes() {
  std::vector<Shape> shapes = {{5, 9, 8},       {3, 3, 24}, {40, 41, 64},    {2, 4, 1032},
                               {2, 2, 2056},    {4, 6, 7},  {3, 3, 129},     {0, 5, 16},
                               {0, 0, 16},      {1, 2, 1},  {6, 7, 40, 150}, {6, 7, 39, 150},
                               {3, 4, 32, 4, 1}};
  if (!SmallShapes()) shapes.insert(shapes.end(), {{20000, 21000, 1024}, {3000, 3000, 1407}});
  return shapes;
}

/// Checks the first rows of `device` that were written, and that the others are as they were.
std::vector<Bf16> FirstRows(const Guarded<Bf16>& device, size_t size) {
  std::vector<Bf16> values = device.Get();
  for (size_t i = size; i < values.size(); ++i) REQUIRE(values[i].bits == 0xffff);
  values.resize(size);
  return values;
}

std::vector<Bf16> Forward(gpu::Stream stream, const Shape& shape,
                          const std::vector<Bf16>& gate_up) {
  Guarded<Bf16> device(gate_up, shape.shift), y(shape.most(), shape.shift);
  Guarded<int32_t> rows(std::vector<int32_t>{shape.rows});
  gpu::SwigluForward(stream, device.data(), rows.data(), shape.most_rows, shape.width, y.data());
  return FirstRows(y, shape.size());
}

std::vector<Bf16> Backward(gpu::Stream stream, const Shape& shape, const std::vector<Bf16>& gate_up,
                           const std::vector<Bf16>& dy) {
  Guarded<Bf16> device(gate_up, shape.shift), device_dy(dy, shape.shift);
  Guarded<Bf16> dgate_up(2 * shape.most(), shape.shift);
  Guarded<int32_t> rows(std::vector<int32_t>{shape.rows});
  gpu::SwigluBackwardInput(stream, device.data(), device_dy.data(), rows.data(), shape.most_rows,
                           shape.width, dgate_up.data());
  return FirstRows(dgate_up, 2 * shape.size());
}

TEST_SUITE("kernel") {
  TEST_CASE("swiglu: forward and its gradient") {
    unsigned seed = 500;
    for (const Shape& shape : Shapes()) {
      CAPTURE(shape.rows);
      CAPTURE(shape.width);
      const std::vector<Bf16> gate_up = RandomBf16(2 * shape.most(), ++seed, shape.limit);
      const std::vector<Bf16> dy = RandomBf16(shape.most(), ++seed);
      std::vector<double> y(shape.size()), dgate_up(2 * shape.size());
      SwigluForward(Doubles(gate_up).data(), shape.rows, shape.width, y.data());
      SwigluBackwardInput(Doubles(gate_up).data(), Doubles(dy).data(), shape.width, shape.rows,
                          shape.width, dgate_up.data());
      const std::vector<Bf16> result = Forward(TestStream(), shape, gate_up);
      const std::vector<Bf16> gradient = Backward(TestStream(), shape, gate_up, dy);
      // Gradients of gates cancel around -1.28.
      CHECK(WorstUlps(result, y) < kRounding);
      CHECK(WorstUlps(gradient, dgate_up, 0.05) < kRounding);
      CHECK((Forward(NarrowStream(), shape, gate_up) == result));
      CHECK((Backward(NarrowStream(), shape, gate_up, dy) == gradient));
    }
  }

  TEST_CASE("swiglu: the same bits in any order of the threads") {
    const Shape shape = {20, 30, 40};
    const std::vector<Bf16> gate_up = RandomBf16(2 * shape.most(), 1, 4);
    const std::vector<Bf16> result = Forward(NarrowStream(), shape, gate_up);
    for (unsigned seed = 1; seed <= 3; ++seed) {
      ShuffleThreads(seed);
      CHECK((Forward(NarrowStream(), shape, gate_up) == result));
    }
  }
}

}  // namespace
}  // namespace contraflow::swiglu_test

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
  if (!SmallShapes()) shapes.insert(shapes.end(), {{10000003}, {1000003, 1}});
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
      OnDevice<int32_t> not_finite(1);
      not_finite.Put({0});
      std::vector<double> host_m(shape.size), host_v(shape.size), host = Doubles(begin);
      for (int step = 1; step <= 3; ++step) {
        const std::vector<float> gradient = RandomFloats(shape.size, 10u + unsigned(step), 2);
        Guarded<float> device_gradient(gradient, shape.shift);
        step_size.Put({StepSize(settings, step)});
        gpu::AdamWStep(step == 2 ? NarrowStream() : TestStream(), step_size.data(), rates,
                       shape.size, device_gradient.data(), m.data(), v.data(), parameter.data(),
                       copy.data(), not_finite.data(), nullptr);
        AdamWStep(settings, step, shape.size, Doubles(gradient).data(), host_m.data(),
                  host_v.data(), host.data());
        CHECK(RelativeError(Doubles(m.Get()), host_m) < 1e-6);
        CHECK(RelativeError(Doubles(v.Get()), host_v) < 1e-6);
        CHECK(RelativeError(Doubles(parameter.Get()), host) < 1e-6);
        CHECK((copy.Get() == Rounded(parameter.Get())));
      }
    }
  }

  TEST_CASE("adamw: nothing changes after what is not finite or has failed") {
    const gpu::AdamWRates rates = {0.9f, 0.95f, 1e-3f, 0.1f};
    for (const Shape& shape : Shapes()) {
      const std::vector<float> begin = RandomFloats(shape.size, 1);
      Guarded<float> gradient(RandomFloats(shape.size, 3), shape.shift), m(begin, shape.shift),
          v(begin, shape.shift), parameter(begin, shape.shift);
      Guarded<Bf16> copy(Rounded(begin), shape.shift);
      OnDevice<gpu::AdamWStepSize> step_size(1);
      step_size.Put({{0.1f, 1, 1}});
      for (const auto& [not_finite, failed] : {std::pair(3, 0), std::pair(0, 1), std::pair(0, 0)}) {
        OnDevice<int32_t> flags(std::vector<int32_t>{not_finite, failed});
        gpu::AdamWStep(TestStream(), step_size.data(), rates, shape.size, gradient.data(), m.data(),
                       v.data(), parameter.data(), copy.data(), flags.data(), flags.data() + 1);
        const bool changes = not_finite == 0 && failed == 0 && shape.size > 0;
        CHECK((m.Get() != begin) == changes);
        CHECK((v.Get() != begin) == changes);
        CHECK((parameter.Get() != begin) == changes);
        CHECK((copy.Get() != Rounded(begin)) == changes);
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

  TEST_CASE("uniform: the bits of the host, on any number of SMs") {
    for (const Shape& shape : Shapes()) {
      std::vector<float> host(shape.size);
      FillUniform(42, 0.3f, shape.size, host.data());
      for (const gpu::Stream stream : {TestStream(), NarrowStream()}) {
        Guarded<float> device(shape.size, shape.shift);
        gpu::FillUniform(stream, 42, 0.3f, shape.size, device.data());
        CHECK(device.Get() == host);
      }
    }
  }
}

}  // namespace
}  // namespace contraflow::adamw_test
