#include "tools/bench/padded_experts.h"

#include <doctest/doctest.h>

#include "tests/emulator/test_gpu.h"
#include "tests/support/failure.h"

namespace contraflow::padded_experts_test {
namespace {

using gpu::Bf16;

TEST_SUITE("kernel") {
  TEST_CASE("padded experts: as the grouped kernel by batched products") {
    const int experts = 3, each = Emulated() ? 70 : 640, width = 88, inner = 56;
    const int rows = experts * each;
    const gpu::ExpertsSizes sizes = {experts, width, inner, rows};
    const auto size = [](int a, int b, int c = 1) {
      return static_cast<size_t>(a) * static_cast<size_t>(b) * static_cast<size_t>(c);
    };
    std::vector<int32_t> first = {0};
    for (int e = 0; e < experts; ++e) first.push_back(first.back() + each);
    OnDevice<int32_t> offsets(first);
    OnDevice<Bf16> x(RandomBf16(size(rows, width), 1)), dy(RandomBf16(size(rows, width), 2));
    OnDevice<Bf16> gate_up(RandomBf16(size(experts, width, 2 * inner), 3, 0.3));
    OnDevice<Bf16> down(RandomBf16(size(experts, inner, width), 4, 0.3));

    struct Results {
      OnDevice<Bf16> gate_up_out, hidden, y, dgate_up_out, dx;
      OnDevice<float> dgate_up, ddown;
    };
    const auto make = [&] {
      return Results{OnDevice<Bf16>(size(rows, 2 * inner)),
                     OnDevice<Bf16>(size(rows, inner)),
                     OnDevice<Bf16>(size(rows, width)),
                     OnDevice<Bf16>(size(rows, 2 * inner)),
                     OnDevice<Bf16>(size(rows, width)),
                     OnDevice<float>(RandomFloats(size(experts, width, 2 * inner), 5)),
                     OnDevice<float>(RandomFloats(size(experts, inner, width), 6))};
    };
    Results a = make(), b = make();
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

    const auto error = [](const auto& one, const auto& other) {
      return RelativeError(Doubles(one.Get()), Doubles(other.Get()));
    };
    // Roundings to bf16 here and there; the gradient of hidden is rounded in `padded` alone.
    CHECK(error(a.gate_up_out, b.gate_up_out) < 2e-3);
    CHECK(error(a.hidden, b.hidden) < 4e-3);
    CHECK(error(a.y, b.y) < 4e-3);
    CHECK(error(a.dgate_up_out, b.dgate_up_out) < 6e-3);
    CHECK(error(a.dx, b.dx) < 6e-3);
    CHECK(error(a.dgate_up, b.dgate_up) < 6e-3);
    CHECK(error(a.ddown, b.ddown) < 4e-3);
  }

  TEST_CASE("padded experts: rows that are not equally many are refused") {
    CHECK(Failure([] {
            gpu::PaddedExperts(1, {3, 8, 8, 10});
          }) == "10 rows are not equally many for each of 3 experts");
  }
}

}  // namespace
}  // namespace contraflow::padded_experts_test
