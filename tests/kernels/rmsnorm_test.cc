#include "kernels/gpu/rmsnorm.h"

#include <doctest/doctest.h>

#include <random>

#include "kernels/host/normalization.h"
#include "tests/support/guarded.h"

namespace contraflow::rmsnorm_test {
namespace {

using gpu::Bf16;

struct Shape {
  int rows, width;
  size_t shift = 0;  // of every array, so that vectors are not possible

  size_t size() const { return static_cast<size_t>(rows) * static_cast<size_t>(width); }
};

// One of each kernel and to both sides of each limit between them, and chance.
std::vector<Shape> Shapes() {
  std::vector<Shape> shapes = {{1, 8},    {9, 256},   {3, 264},   {5, 512},  {2, 520},
                               {3, 1024}, {2, 1032},  {2, 2056},  {3, 4096}, {1, 4104},
                               {1, 8200}, {2, 16384}, {1, 16392}, {4, 1},    {7, 7},
                               {2, 1001}, {0, 64},    {3, 64, 1}, {200, 16}, {1, 17001}};
  std::mt19937 random(11);
  for (int i = 0; i < 6; ++i) {
    const int width = 1 + static_cast<int>(random() % 3000);
    shapes.push_back(
        {1 + static_cast<int>(random() % 9), i % 2 == 0 ? (width + 7) / 8 * 8 : width});
  }
  if (!SmallShapes()) shapes.insert(shapes.end(), {{5000, 4096}, {1000, 16384}, {3001, 5001}});
  return shapes;
}

struct Result {
  std::vector<Bf16> y;
  std::vector<float> rstd;
  bool operator==(const Result&) const = default;
};

Result Forward(gpu::Stream stream, const Shape& shape, const std::vector<Bf16>& x,
               const std::vector<float>& gain) {
  Guarded<Bf16> device_x(x, shape.shift), y(shape.size(), shape.shift);
  Guarded<float> device_gain(gain, shape.shift), rstd(static_cast<size_t>(shape.rows));
  gpu::RmsNormForward(stream, device_x.data(), device_gain.data(), shape.rows, shape.width,
                      rstd.data(), y.data());
  CHECK((device_x.Get() == x));
  return {y.Get(), rstd.Get()};
}

std::vector<Bf16> Backward(gpu::Stream stream, const Shape& shape, const std::vector<Bf16>& x,
                           const std::vector<float>& gain, const std::vector<float>& rstd,
                           const std::vector<Bf16>& dy, const std::vector<Bf16>* residual) {
  Guarded<Bf16> device_x(x, shape.shift), device_dy(dy, shape.shift);
  Guarded<float> device_gain(gain, shape.shift), device_rstd(rstd);
  Guarded<Bf16> dx(shape.size(), shape.shift);
  if (residual != nullptr) dx = Guarded<Bf16>(*residual, shape.shift);  // in place
  gpu::RmsNormBackwardInput(stream, device_x.data(), device_gain.data(), device_rstd.data(),
                            device_dy.data(), residual != nullptr ? dx.data() : nullptr, shape.rows,
                            shape.width, dx.data());
  return dx.Get();
}

std::vector<float> BackwardWeight(const Shape& shape, const std::vector<Bf16>& x,
                                  const std::vector<float>& rstd, const std::vector<Bf16>& dy,
                                  const std::vector<float>& dgain) {
  Guarded<Bf16> device_x(x, shape.shift), device_dy(dy, shape.shift);
  Guarded<float> device_rstd(rstd), work(gpu::RmsNormWork(shape.rows, shape.width));
  Guarded<float> device_dgain(dgain);
  gpu::RmsNormBackwardWeight(TestStream(), device_x.data(), device_rstd.data(), device_dy.data(),
                             shape.rows, shape.width, work.data(), device_dgain.data());
  work.Get();
  return device_dgain.Get();
}

std::vector<float> Gain(int width) {
  std::vector<float> gain = RandomFloats(static_cast<size_t>(width), 3);
  for (float& g : gain) g += 1.5f;
  return gain;
}

TEST_SUITE("kernel") {
  TEST_CASE("rmsnorm: forward") {
    unsigned seed = 100;
    for (const Shape& shape : Shapes()) {
      CAPTURE(shape.rows);
      CAPTURE(shape.width);
      const std::vector<Bf16> x = RandomBf16(shape.size(), ++seed, 3);
      const std::vector<float> gain = Gain(shape.width);
      const Result result = Forward(TestStream(), shape, x, gain);

      std::vector<double> rstd(static_cast<size_t>(shape.rows)), y(shape.size());
      RmsNormForward(Doubles(x).data(), Doubles(gain).data(), shape.rows, shape.width, rstd.data(),
                     y.data());
      CHECK(WorstUlps(result.y, y) < kRounding);
      CHECK(RelativeError(Doubles(result.rstd), rstd) < 1e-6);
      CHECK((Forward(NarrowStream(), shape, x, gain) == result));
    }
  }

  TEST_CASE("rmsnorm: a row of zeros and one that is large") {
    const Shape shape = {2, 16};
    std::vector<Bf16> x(32, gpu::ToBf16(0));
    std::fill(x.begin() + 16, x.end(), gpu::ToBf16(-1e15f));
    const Result result = Forward(TestStream(), shape, x, std::vector<float>(16, 2));
    CHECK(result.rstd[0] == doctest::Approx(1 / std::sqrt(1e-5)));
    CHECK((result.y[3] == gpu::ToBf16(0)));
    CHECK((result.y[20] == gpu::ToBf16(-2)));
  }

  TEST_CASE("rmsnorm: gradient of the input") {
    unsigned seed = 200;
    for (const Shape& shape : Shapes()) {
      CAPTURE(shape.rows);
      CAPTURE(shape.width);
      const std::vector<Bf16> x = RandomBf16(shape.size(), ++seed, 3);
      const std::vector<Bf16> dy = RandomBf16(shape.size(), ++seed);
      const std::vector<Bf16> residual = RandomBf16(shape.size(), ++seed);
      const std::vector<float> gain = Gain(shape.width);
      const std::vector<float> rstd = Forward(TestStream(), shape, x, gain).rstd;
      for (const std::vector<Bf16>* rest : {&residual, static_cast<decltype(&residual)>(nullptr)}) {
        const std::vector<Bf16> dx = Backward(TestStream(), shape, x, gain, rstd, dy, rest);
        std::vector<double> wanted =
            rest != nullptr ? Doubles(*rest) : std::vector<double>(shape.size());
        RmsNormBackwardInput(Doubles(x).data(), Doubles(gain).data(), Doubles(rstd).data(),
                             Doubles(dy).data(), wanted.data(), shape.rows, shape.width,
                             wanted.data());
        CHECK(WorstUlps(dx, wanted, 1e-2) < kRounding);
        CHECK((Backward(NarrowStream(), shape, x, gain, rstd, dy, rest) == dx));
      }
    }
  }

  TEST_CASE("rmsnorm: gradient of the gain is added in an order of its own") {
    unsigned seed = 300;
    std::vector<Shape> shapes = Shapes();
    shapes.insert(shapes.end(), {{31, 8}, {33, 264}, {129, 40}, {4100, 8}, {4100, 3}});
    for (const Shape& shape : shapes) {
      CAPTURE(shape.rows);
      CAPTURE(shape.width);
      const std::vector<Bf16> x = RandomBf16(shape.size(), ++seed, 3);
      const std::vector<Bf16> dy = RandomBf16(shape.size(), ++seed);
      const std::vector<float> rstd = RandomFloats(static_cast<size_t>(shape.rows), ++seed);
      const std::vector<float> before = RandomFloats(static_cast<size_t>(shape.width), ++seed);
      const std::vector<float> dgain = BackwardWeight(shape, x, rstd, dy, before);
      std::vector<double> wanted = Doubles(before);
      RmsNormBackwardWeight(Doubles(x).data(), Doubles(rstd).data(), Doubles(dy).data(), shape.rows,
                            shape.width, wanted.data());
      CHECK(RelativeError(Doubles(dgain), wanted) < 1e-6);
    }
  }

  TEST_CASE("rmsnorm: the same bits in any order of the threads") {
    for (const Shape& shape : {Shape{70, 16}, Shape{20, 520}, Shape{9, 1500}, Shape{13, 2056}}) {
      const std::vector<Bf16> x = RandomBf16(shape.size(), 7, 3);
      const std::vector<Bf16> dy = RandomBf16(shape.size(), 8);
      const std::vector<float> gain = Gain(shape.width);
      const Result y = Forward(NarrowStream(), shape, x, gain);
      const auto dx = Backward(NarrowStream(), shape, x, gain, y.rstd, dy, nullptr);
      const auto dgain = BackwardWeight(shape, x, y.rstd, dy, gain);
      for (unsigned seed = 1; seed <= 3; ++seed) {
        CAPTURE(seed);
        ShuffleThreads(seed);
        CHECK((Forward(NarrowStream(), shape, x, gain) == y));
        CHECK((Backward(NarrowStream(), shape, x, gain, y.rstd, dy, nullptr) == dx));
        CHECK((BackwardWeight(shape, x, y.rstd, dy, gain) == dgain));
      }
    }
  }
}

}  // namespace
}  // namespace contraflow::rmsnorm_test
