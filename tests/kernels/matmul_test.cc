#include "kernels/gpu/matmul.h"

#include <doctest/doctest.h>

#include <random>
#include <string>

#include "kernels/host/linear.h"
#include "tests/emulator/test_gpu.h"
#include "tests/support/failure.h"

namespace contraflow::matmul_test {
namespace {

using gpu::Bf16;
using gpu::MatmulShape;

size_t Elements(int rows, int columns, int batch) {
  return static_cast<size_t>(rows) * static_cast<size_t>(columns) * static_cast<size_t>(batch);
}

/// d of the shape, in double.
std::vector<double> Product(const MatmulShape& shape, const std::vector<double>& a,
                            const std::vector<double>& b, std::vector<double> c) {
  const auto m = static_cast<size_t>(shape.m), n = static_cast<size_t>(shape.n);
  const auto k = static_cast<size_t>(shape.k);
  for (size_t batch = 0; batch < static_cast<size_t>(shape.batch); ++batch) {
    Gemm(shape.transpose_a, shape.transpose_b, shape.m, shape.n, shape.k, 1.0,
         a.data() + batch * m * k, shape.transpose_a == Transpose::kYes ? shape.m : shape.k,
         b.data() + batch * k * n, shape.transpose_b == Transpose::kYes ? shape.k : shape.n,
         shape.add ? 1.0 : 0.0, c.data() + batch * m * n, shape.n);
  }
  return c;
}

std::byte* Work() {
  static OnDevice<std::byte> work(gpu::Matmuls::kWorkBytes);
  return work.data();
}

/// Result of Run on random operands; in place if it adds.
template <typename T>
void CheckProduct(const gpu::Matmuls& matmuls, const MatmulShape& shape, unsigned seed) {
  CAPTURE(gpu::ToString(shape));
  const std::vector<Bf16> a = RandomBf16(Elements(shape.m, shape.k, shape.batch), seed);
  const std::vector<Bf16> b = RandomBf16(Elements(shape.k, shape.n, shape.batch), seed + 1);
  std::vector<T> c;
  for (const float x : RandomFloats(Elements(shape.m, shape.n, shape.batch), seed + 2)) {
    c.push_back(gpu::FromFloat<T>(x));
  }
  OnDevice<Bf16> on_a(a), on_b(b);
  OnDevice<T> d(c.size()), again(c.size());
  if (shape.add) {
    d.Put(c);
    again.Put(c);
  }
  matmuls.Run(TestStream(), shape, on_a.data(), on_b.data(), shape.add ? d.data() : nullptr,
              d.data(), Work());
  matmuls.Run(TestStream(), shape, on_a.data(), on_b.data(), shape.add ? again.data() : nullptr,
              again.data(), Work());
  const std::vector<T> got = d.Get();
  const double limit = shape.float_out ? 1e-5 : 4e-3;
  CHECK(RelativeError(Doubles(got), Product(shape, Doubles(a), Doubles(b), Doubles(c))) < limit);
  CHECK(got == again.Get());
}

TEST_SUITE("kernel") {
  TEST_CASE("matmul: random shapes in every form against the host in double") {
    std::mt19937 random(3);
    gpu::Matmuls matmuls(TestStream().sms);
    const int most = SmallShapes() ? 24 : 300;
    const auto size = [&] { return 1 + static_cast<int>(random() % static_cast<unsigned>(most)); };
    for (unsigned form = 0; form < 16; ++form) {
      for (const bool round : {false, true}) {
        MatmulShape shape{form & 1 ? Transpose::kYes : Transpose::kNo,
                          form & 2 ? Transpose::kYes : Transpose::kNo,
                          size(),
                          size(),
                          size(),
                          (form & 4) != 0,
                          (form & 8) != 0,
                          1 + static_cast<int>(random() % 3)};
        // Sizes as models have them, too.
        if (round) {
          shape.m *= 8;
          shape.n *= 8;
          shape.k *= 8;
        }
        matmuls.Prepare(shape);
        if (shape.float_out) {
          CheckProduct<float>(matmuls, shape, form * 10);
        } else {
          CheckProduct<Bf16>(matmuls, shape, form * 10);
        }
      }
    }
  }

  TEST_CASE("matmul: every candidate gives the product, and its own bits again") {
    const MatmulShape shape{Transpose::kYes, Transpose::kNo, 64, 72, 200, true, true, 1};
    const int candidates = gpu::Matmuls(TestStream().sms).Candidates(shape);
    CHECK(candidates >= 1);
    for (int candidate = 0; candidate < candidates; ++candidate) {
      CAPTURE(candidate);
      gpu::Matmuls matmuls(TestStream().sms);
      matmuls.Prepare(shape, candidate);
      CheckProduct<float>(matmuls, shape, 1);
    }
    CHECK_THROWS_AS(gpu::Matmuls(TestStream().sms).Prepare(shape, candidates), gpu::GpuError);
    CHECK_THROWS_AS(gpu::Matmuls(TestStream().sms).Prepare(shape, -1), gpu::GpuError);
  }

  TEST_CASE("matmul: c may be another matrix than d") {
    gpu::Matmuls matmuls(TestStream().sms);
    const MatmulShape shape{Transpose::kNo, Transpose::kNo, 5, 8, 3, true, true, 1};
    matmuls.Prepare(shape);
    const std::vector<Bf16> a = RandomBf16(15, 1), b = RandomBf16(24, 2);
    const std::vector<float> c = RandomFloats(40, 3);
    OnDevice<Bf16> on_a(a), on_b(b);
    OnDevice<float> on_c(c), d(40);
    matmuls.Run(TestStream(), shape, on_a.data(), on_b.data(), on_c.data(), d.data(), Work());
    CHECK(RelativeError(Doubles(d.Get()), Product(shape, Doubles(a), Doubles(b), Doubles(c))) <
          1e-5);
    CHECK(on_c.Get() == c);
  }

  TEST_CASE("matmul: whoever uses it wrongly is told which product") {
    gpu::Matmuls matmuls(TestStream().sms);
    const MatmulShape shape{Transpose::kYes, Transpose::kNo, 2, 8, 3, false, true, 4};
    OnDevice<Bf16> x(1024);
    const std::string name = "matmul bf16 [2 x 8] += a^T [2 x 3] b [3 x 8], 4 times: ";
    const auto run = [&](const Bf16* a, const void* c, void* work) {
      matmuls.Run(TestStream(), shape, a, x.data(), c, x.data() + 512, work);
    };
    CHECK_THROWS_WITH_AS(run(x.data(), x.data() + 512, Work()),
                         (name + "it was not prepared").c_str(), gpu::GpuError);
    matmuls.Prepare(shape);
    CHECK_THROWS_WITH_AS(run(x.data() + 1, x.data() + 512, Work()),
                         (name + "a is not 16-aligned").c_str(), gpu::GpuError);
    CHECK_THROWS_WITH_AS(run(x.data(), nullptr, Work()), (name + "c is null").c_str(),
                         gpu::GpuError);
    CHECK_THROWS_WITH_AS(run(x.data(), x.data() + 512, nullptr), (name + "work is null").c_str(),
                         gpu::GpuError);
    CHECK_THROWS_WITH_AS(matmuls.Prepare({.m = 2, .n = 0, .k = 1, .float_out = true}),
                         "matmul float [2 x 0] = a [2 x 1] b [1 x 0]: every size must be at "
                         "least 1",
                         gpu::GpuError);
    CHECK_THROWS_AS(gpu::Matmuls(0), gpu::GpuError);
  }
}

}  // namespace
}  // namespace contraflow::matmul_test
