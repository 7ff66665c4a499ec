#include <doctest/doctest.h>

#include "kernels/gpu/elementwise.h"
#include "kernels/host/attention.h"
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
  if (!Emulated()) shapes.insert(shapes.end(), {{2048, 1024, 32, 128}, {1000, 300, 7, 66}});
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
