#include "tools/bench/padded_experts.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
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

/// Drawn values are repeated: a prime number of values, so that no two rows or experts are alike.
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

/// Like RelativeError, of arrays too large to be copied as doubles.
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

/// A layer with equally many rows for each expert.
struct Layer {
  ExpertsSizes sizes;
  OnDevice<int32_t> first;
  OnDevice<Bf16> x, dy, gate_up, down;

  explicit Layer(const ExpertsSizes& n)
      : sizes(n),
        first(FirstOf(n)),
        x(ManyBf16(Elements(n.most_rows, n.width), 1)),
        dy(ManyBf16(Elements(n.most_rows, n.width), 2)),
        gate_up(ManyBf16(Elements(n.experts, n.width, 2 * n.inner), 3, 0.3)),
        down(ManyBf16(Elements(n.experts, n.inner, n.width), 4, 0.3)) {}
  static std::vector<int32_t> FirstOf(const ExpertsSizes& n) {
    std::vector<int32_t> first;
    for (int e = 0; e <= n.experts; ++e) first.push_back(e * (n.most_rows / n.experts));
    return first;
  }
  /// Results of the grouped kernel.
  void Compute(Results* to, int sms = TestStream().sms) {
    const gpu::Stream stream = {TestStream().handle, sms};
    gpu::ExpertsForward(stream, sizes, first.data(), x.data(), gate_up.data(), down.data(),
                        to->gate_up_out.data(), to->hidden.data(), to->y.data());
    gpu::ExpertsBackwardInput(stream, sizes, first.data(), gate_up.data(), down.data(),
                              to->gate_up_out.data(), dy.data(), to->dgate_up_out.data(),
                              to->dx.data());
    gpu::ExpertsBackwardWeight(stream, sizes, first.data(), x.data(), to->hidden.data(),
                               to->dgate_up_out.data(), dy.data(), to->dgate_up.data(),
                               to->ddown.data());
  }
};

/// The grouped kernel and batched products.
void CheckAgainstBatches(const ExpertsSizes& sizes) {
  Layer layer(sizes);
  Results a(sizes), b(sizes);
  layer.Compute(&a);

  const gpu::Stream stream = TestStream();
  const gpu::PaddedExperts padded(stream.sms, sizes);
  OnDevice<std::byte> work(padded.work_bytes());
  padded.Forward(stream, layer.first.data(), layer.x.data(), layer.gate_up.data(),
                 layer.down.data(), work.data(), b.gate_up_out.data(), b.hidden.data(), b.y.data());
  padded.BackwardInput(stream, layer.first.data(), layer.gate_up.data(), layer.down.data(),
                       b.gate_up_out.data(), layer.dy.data(), work.data(), b.dgate_up_out.data(),
                       b.dx.data());
  padded.BackwardWeight(stream, layer.x.data(), b.hidden.data(), b.dgate_up_out.data(),
                        layer.dy.data(), work.data(), b.dgate_up.data(), b.ddown.data());

  // Roundings to bf16 here and there; the gradient of hidden is rounded in `padded` alone.
  CHECK(Error(a.gate_up_out, b.gate_up_out) < 2e-3);
  CHECK(Error(a.hidden, b.hidden) < 4e-3);
  CHECK(Error(a.y, b.y) < 4e-3);
  CHECK(Error(a.dgate_up_out, b.dgate_up_out) < 6e-3);
  CHECK(Error(a.dx, b.dx) < 6e-3);
  CHECK(Error(a.dgate_up, b.dgate_up) < 6e-3);
  CHECK(Error(a.ddown, b.ddown) < 4e-3);
}

ExpertsSizes RealLayer() {
  return SmallShapes() ? ExpertsSizes{4, 64, 32, 4 * 40} : ExpertsSizes{64, 4096, 1024, 64 * 256};
}

template <typename T>
bool SameBits(const OnDevice<T>& on_one, const OnDevice<T>& on_other) {
  const std::vector<T> one = on_one.Get(), other = on_other.Get();
  return one.size() == other.size() &&
         std::memcmp(one.data(), other.data(), one.size() * sizeof(T)) == 0;
}

/// Pairs of blocks and single ones.
void CheckPairs() {
  Layer layer(RealLayer());
  Results a(layer.sizes), b(layer.sizes);
  layer.Compute(&a, 32);
  layer.Compute(&b, 31);
  CHECK(SameBits(b.gate_up_out, a.gate_up_out));
  CHECK(SameBits(b.hidden, a.hidden));
  CHECK(SameBits(b.y, a.y));
  CHECK(SameBits(b.dgate_up_out, a.dgate_up_out));
  CHECK(SameBits(b.dx, a.dx));
  CHECK(SameBits(b.dgate_up, a.dgate_up));
  CHECK(SameBits(b.ddown, a.ddown));
}

TEST_SUITE("kernel") {
  TEST_CASE("padded experts: as the grouped kernel by batched products") {
    CheckAgainstBatches({3, 88, 56, 3 * (SmallShapes() ? 70 : 640)});
  }

  TEST_CASE("padded experts: the same at the sizes of a real layer") {
    CheckAgainstBatches(RealLayer());
  }

  TEST_CASE("experts in pairs of blocks: the same bits at the sizes of a real layer") {
    CheckPairs();
  }

  TEST_CASE("padded experts: rows that are not equally many are refused") {
    CHECK(Failure([] {
            gpu::PaddedExperts(1, {3, 8, 8, 10});
          }) == "10 rows are not equally many for each of 3 experts");
  }
}

}  // namespace
}  // namespace contraflow::padded_experts_test
