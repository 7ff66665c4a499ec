#include <doctest/doctest.h>

#include "kernels/gpu/elementwise.h"
#include "kernels/host/experts.h"
#include "tests/support/guarded.h"

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
  if (!Emulated()) shapes.insert(shapes.end(), {{20000, 21000, 1024}, {3000, 3000, 1407}});
  return shapes;
}

/// What has been written to the first rows of `device`, and that the others are as they were.
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
