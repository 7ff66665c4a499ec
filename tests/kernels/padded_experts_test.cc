#include "tools/bench/padded_experts.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/gpu/experts.h"
#include "tests/emulator/test_gpu.h"
#include "tests/support/failure.h"

namespace contraflow::padded_experts_test {
namespace {

using gpu::Bf16;
using gpu::ExpertsSizes;

size_t Elements(int a, int b, int c = 1) {
  return static_cast<size_t>(a) * static_cast<size_t>(b) * static_cast<size_t>(c);
}

/// What is drawn is repeated: a prime number of values, so that no two rows or experts are alike.
template <typename T>
std::vector<T> Repeated(const std::vector<T>& drawn, size_t size) {
  std::vector<T> values;
  values.reserve(size);
  while (values.size() < size) {
    const size_t piece = std::min(drawn.size(), size - values.size());
    values.insert(values.end(), drawn.begin(), drawn.begin() + static_cast<std::ptrdiff_t>(piece));
  }
  return values;
}
constexpr size_t kDrawn = 1'000'003;
std::vector<Bf16> ManyBf16(size_t size, unsigned seed, double limit = 1) {
  return Repeated(RandomBf16(std::min(size, kDrawn), seed, limit), size);
}
std::vector<float> ManyFloats(size_t size, unsigned seed) {
  return Repeated(RandomFloats(std::min(size, kDrawn), seed), size);
}

double Value(Bf16 value) { return static_cast<double>(gpu::ToFloat(value)); }
double Value(float value) { return static_cast<double>(value); }

/// As RelativeError, of arrays too large to be copied as doubles.
template <typename T>
double Error(const OnDevice<T>& on_one, const OnDevice<T>& on_other) {
  const std::vector<T> one = on_one.Get(), other = on_other.Get();
  double difference = 0, size = 0;
  for (size_t i = 0; i < one.size(); ++i) {
    const double a = Value(one[i]), b = Value(other[i]);
    difference += (a - b) * (a - b);
    size += b * b;
  }
  const double error = std::sqrt(difference / size);
  return std::isfinite(error) ? error : std::numeric_limits<double>::infinity();
}

/// All that is computed of a layer of experts.
struct Results {
  OnDevice<Bf16> gate_up_out, hidden, y, dgate_up_out, dx;
  OnDevice<float> dgate_up, ddown;

  explicit Results(const ExpertsSizes& n)
      : gate_up_out(Elements(n.most_rows, 2 * n.inner)),
        hidden(Elements(n.most_rows, n.inner)),
        y(Elements(n.most_rows, n.width)),
        dgate_up_out(Elements(n.most_rows, 2 * n.inner)),
        dx(Elements(n.most_rows, n.width)),
        dgate_up(ManyFloats(Elements(n.experts, n.width, 2 * n.inner), 5)),
        ddown(ManyFloats(Elements(n.experts, n.inner, n.width), 6)) {}
};

/// The grouped kernel and batched products, on equally many rows for each expert.
void CheckAgainstBatches(const ExpertsSizes& sizes) {
  std::vector<int32_t> first;
  for (int e = 0; e <= sizes.experts; ++e) first.push_back(e * (sizes.most_rows / sizes.experts));
  const size_t rows = Elements(sizes.most_rows, sizes.width);
  OnDevice<int32_t> offsets(first);
  OnDevice<Bf16> x(ManyBf16(rows, 1)), dy(ManyBf16(rows, 2));
  OnDevice<Bf16> gate_up(ManyBf16(Elements(sizes.experts, sizes.width, 2 * sizes.inner), 3, 0.3));
  OnDevice<Bf16> down(ManyBf16(Elements(sizes.experts, sizes.inner, sizes.width), 4, 0.3));

  Results a(sizes), b(sizes);
  const gpu::Stream stream = TestStream();
  gpu::ExpertsForward(stream, sizes, offsets.data(), x.data(), gate_up.data(), down.data(),
                      a.gate_up_out.data(), a.hidden.data(), a.y.data());
  gpu::ExpertsBackwardInput(stream, sizes, offsets.data(), gate_up.data(), down.data(),
                            a.gate_up_out.data(), dy.data(), a.dgate_up_out.data(), a.dx.data());
  gpu::ExpertsBackwardWeight(stream, sizes, offsets.data(), x.data(), a.hidden.data(),
                             a.dgate_up_out.data(), dy.data(), a.dgate_up.data(), a.ddown.data());

  const gpu::PaddedExperts padded(stream.sms, sizes);
  OnDevice<std::byte> work(padded.work_bytes());
  padded.Forward(stream, offsets.data(), x.data(), gate_up.data(), down.data(), work.data(),
                 b.gate_up_out.data(), b.hidden.data(), b.y.data());
  padded.BackwardInput(stream, offsets.data(), gate_up.data(), down.data(), b.gate_up_out.data(),
                       dy.data(), work.data(), b.dgate_up_out.data(), b.dx.data());
  padded.BackwardWeight(stream, x.data(), b.hidden.data(), b.dgate_up_out.data(), dy.data(),
                        work.data(), b.dgate_up.data(), b.ddown.data());

  // Roundings to bf16 here and there; the gradient of hidden is rounded in `padded` alone.
  CHECK(Error(a.gate_up_out, b.gate_up_out) < 2e-3);
  CHECK(Error(a.hidden, b.hidden) < 4e-3);
  CHECK(Error(a.y, b.y) < 4e-3);
  CHECK(Error(a.dgate_up_out, b.dgate_up_out) < 6e-3);
  CHECK(Error(a.dx, b.dx) < 6e-3);
  CHECK(Error(a.dgate_up, b.dgate_up) < 6e-3);
  CHECK(Error(a.ddown, b.ddown) < 4e-3);
}

TEST_SUITE("kernel") {
  TEST_CASE("padded experts: as the grouped kernel by batched products") {
    CheckAgainstBatches({3, 88, 56, 3 * (Emulated() ? 70 : 640)});
  }

  TEST_CASE("padded experts: the same at the sizes of a real layer") {
    CheckAgainstBatches(Emulated() ? ExpertsSizes{4, 64, 32, 4 * 40}
                                   : ExpertsSizes{64, 4096, 1024, 64 * 256});
  }

  TEST_CASE("padded experts: rows that are not equally many are refused") {
    CHECK(Failure([] {
            gpu::PaddedExperts(1, {3, 8, 8, 10});
          }) == "10 rows are not equally many for each of 3 experts");
  }
}

}  // namespace
}  // namespace contraflow::padded_experts_test
