#include "kernels/attention/attention.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>

#include "tests/emulator/test_gpu.h"

namespace contraflow::attention_test {
namespace {

using gpu::Attention;
using gpu::Bf16;

constexpr size_t kGuard = 40;  // elements after every result that must stay as they are
constexpr Attention::Engine kEngines[] = {Attention::Engine::kOwn, Attention::Engine::kBest};

size_t Size(int x) { return static_cast<size_t>(x); }
size_t Rows(const AttentionShape& n) { return Size(n.batch) * Size(n.sequence); }
size_t Width(const AttentionShape& n) { return Size(n.heads) * Size(n.head_width); }

std::string Text(const AttentionShape& n) {
  return std::to_string(n.batch) + " x " + std::to_string(n.sequence) + " tokens, " +
         std::to_string(n.heads) + " heads of " + std::to_string(n.head_width);
}

struct Results {
  std::vector<Bf16> out, dqkv;
  std::vector<float> lse;

  bool operator==(const Results&) const = default;
};

/// Both directions, into poisoned memory.
Results Run(const AttentionShape& n, Attention::Engine engine, const std::vector<Bf16>& qkv,
            const std::vector<Bf16>& dout, size_t most_work = Attention::kMostWork) {
  const Attention attention(n, TestStream().sms, engine, most_work);
  if (Emulated() || engine == Attention::Engine::kOwn) CHECK(attention.engine() == "own");
  OnDevice<Bf16> on_qkv(qkv), on_dout(dout);
  OnDevice<Bf16> out(dout.size() + kGuard), dqkv(qkv.size() + kGuard);
  OnDevice<float> lse(Rows(n) * Size(n.heads) + kGuard);
  OnDevice<std::byte> work(std::max(attention.work_bytes(), size_t{16}));
  attention.Forward(TestStream(), on_qkv.data(), work.data(), out.data(), lse.data());
  work.Poison();
  attention.BackwardInput(TestStream(), on_qkv.data(), out.data(), lse.data(), on_dout.data(),
                          work.data(), dqkv.data());
  CHECK(on_qkv.Get() == qkv);
  CHECK(on_dout.Get() == dout);
  return {out.Get(), dqkv.Get(), lse.Get()};
}

/// Takes the guard off, having looked at it.
template <typename T>
std::vector<double> Checked(std::vector<T> values) {
  std::vector<T> untouched(kGuard);
  std::memset(static_cast<void*>(untouched.data()), 0xff, kGuard * sizeof(T));
  CHECK(std::memcmp(values.data() + values.size() - kGuard, untouched.data(), kGuard * sizeof(T)) ==
        0);
  values.resize(values.size() - kGuard);
  return Doubles(values);
}

/// Logarithms of the sums of exponentials.
std::vector<double> LogSums(const AttentionShape& n, const std::vector<double>& qkv) {
  std::vector<double> sums;
  for (size_t i = 0; i < Size(n.batch) * Size(n.heads) * Size(n.sequence); ++i) {
    const size_t row = i % Size(n.sequence), head = i / Size(n.sequence) % Size(n.heads);
    const size_t first = i / Size(n.sequence) / Size(n.heads) * Size(n.sequence);
    double sum = 0;
    for (size_t other = 0; other <= row; ++other) {
      double score = 0;
      for (size_t j = 0; j < Size(n.head_width); ++j) {
        const size_t column = head * Size(n.head_width) + j;
        score += qkv[(first + row) * 3 * Width(n) + column] *
                 qkv[(first + other) * 3 * Width(n) + Width(n) + column];
      }
      sum += std::exp(score / std::sqrt(n.head_width));
    }
    sums.push_back(std::log(sum));
  }
  return sums;
}

/// The error of queries', keys' or values' gradients, relative to their own size and, for where
/// they vanish, to a part of that of all.
double PartError(const AttentionShape& n, size_t part, const std::vector<double>& got,
                 const std::vector<double>& want) {
  double difference = 0, own = 0, all = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    all += want[i] * want[i];
    if (i / Width(n) % 3 != part) continue;
    own += want[i] * want[i];
    difference += (got[i] - want[i]) * (got[i] - want[i]);
  }
  return std::sqrt(difference) / (std::sqrt(own) + 0.02 * std::sqrt(all));
}

void CheckAgainstHost(const AttentionShape& n, const Results& results, const std::vector<Bf16>& qkv,
                      const std::vector<Bf16>& dout, double limit = 1e-2) {
  const std::vector<double> inputs = Doubles(qkv);
  std::vector<double> out(dout.size()), dqkv(qkv.size());
  std::vector<double> probabilities(Rows(n) * Size(n.heads) * Size(n.sequence));
  std::vector<double> work(Size(n.sequence) * Size(n.sequence));
  AttentionForward(n, inputs.data(), probabilities.data(), out.data());
  AttentionBackwardInput(n, inputs.data(), probabilities.data(), Doubles(dout).data(), work.data(),
                         dqkv.data());
  CHECK(RelativeError(Checked(results.out), out) < 5e-3);
  bool finite = true;
  const std::vector<double> lse = Checked(results.lse), sums = LogSums(n, inputs);
  for (const double value : lse) finite = finite && std::isfinite(value);
  double worst = 0;
  for (size_t i = 0; i < lse.size(); ++i) worst = std::fmax(worst, std::abs(lse[i] - sums[i]));
  CHECK(worst < 2e-4);
  const std::vector<double> got = Checked(results.dqkv);
  for (const double value : got) finite = finite && std::isfinite(value);
  CHECK(finite);
  for (size_t part = 0; part < 3; ++part) {
    CAPTURE(part);
    CHECK(PartError(n, part, got, dqkv) < limit);
  }
}

void CheckShape(const AttentionShape& n, unsigned seed, double limit) {
  CAPTURE(Text(n));
  CAPTURE(limit);
  const std::vector<Bf16> qkv = RandomBf16(Rows(n) * 3 * Width(n), seed, limit);
  const std::vector<Bf16> dout = RandomBf16(Rows(n) * Width(n), seed + 1);
  for (const Attention::Engine engine : kEngines) {
    if (Emulated() && engine != Attention::Engine::kOwn) continue;
    CheckAgainstHost(n, Run(n, engine, qkv, dout), qkv, dout);
  }
}

TEST_SUITE("kernel") {
  TEST_CASE("attention: random shapes against the host in double") {
    std::mt19937 random(11);
    const unsigned most = SmallShapes() ? 70 : 700;
    for (const int head_width : {8, 16, 24, 64, 72, 128}) {
      for (unsigned i = 0; i < 3; ++i) {
        const AttentionShape n{1 + static_cast<int>(random() % 2),
                               1 + static_cast<int>(random() % most),
                               1 + static_cast<int>(random() % 3), head_width};
        CheckShape(n, static_cast<unsigned>(random()), 1);
      }
    }
  }

  TEST_CASE("attention: lengths around those of tiles and blocks") {
    for (const int sequence : {1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 200}) {
      CheckShape({1, sequence, 1, sequence % 2 == 0 ? 40 : 104}, static_cast<unsigned>(sequence),
                 1);
    }
  }

  TEST_CASE("attention: sharp peaks which move from tile to tile") {
    CheckShape({1, 150, 1, 64}, 5, 5);
    // The score of a query and a key rises, or falls, with the number of the key.
    for (const float slope : {0.25f, -0.25f}) {
      const AttentionShape n{1, 150, 2, 16};
      std::vector<Bf16> qkv = RandomBf16(Rows(n) * 3 * Width(n), 6, 0.5);
      for (size_t row = 0; row < Rows(n); ++row) {
        for (size_t head = 0; head < 2; ++head) {
          Bf16* const at = qkv.data() + row * 3 * Width(n) + head * 16;
          at[0] = gpu::ToBf16(4);
          at[Width(n)] = gpu::ToBf16(slope * static_cast<float>(row));
        }
      }
      const std::vector<Bf16> dout = RandomBf16(Rows(n) * Width(n), 7);
      // Keys this large enlarge what is lost where out is rounded.
      CheckAgainstHost(n, Run(n, Attention::Engine::kOwn, qkv, dout), qkv, dout, 0.06);
    }
  }

  TEST_CASE("attention: cuDNN computes in parts where there is little work memory") {
    const AttentionShape n{2, 256, 6, 64};
    const std::vector<Bf16> qkv = RandomBf16(Rows(n) * 3 * Width(n), 8);
    const std::vector<Bf16> dout = RandomBf16(Rows(n) * Width(n), 9);
    const auto best = Attention::Engine::kBest;
    for (const size_t most : {size_t{1} << 20, size_t{1} << 19}) {  // a sequence, half of its heads
      if (!SmallShapes()) {
        CHECK(Attention(n, TestStream().sms, best, most).engine().ends_with(" parts backward"));
      }
      CheckAgainstHost(n, Run(n, best, qkv, dout, most), qkv, dout);
    }
  }

  TEST_CASE("attention: the same bits whatever the order of the threads") {
    const AttentionShape n{2, 70, 2, 24};
    const std::vector<Bf16> qkv = RandomBf16(Rows(n) * 3 * Width(n), 1);
    const std::vector<Bf16> dout = RandomBf16(Rows(n) * Width(n), 2);
    for (const Attention::Engine engine : kEngines) {
      const Results first = Run(n, engine, qkv, dout);
      const std::vector<double> out = Checked(first.out), lse = Checked(first.lse);
      const std::vector<double> dqkv = Checked(first.dqkv);
      for (const unsigned seed : {1u, 2u, 3u}) {
        ShuffleThreads(seed);
        const Results again = Run(n, engine, qkv, dout);
        CHECK(Checked(again.out) == out);
        CHECK(Checked(again.lse) == lse);
        CHECK(Checked(again.dqkv) == dqkv);
      }
    }
  }

  TEST_CASE("attention: tokens know nothing of later ones nor of other sequences") {
    const AttentionShape longer{2, 140, 2, 32}, shorter{1, 75, 2, 32};
    const std::vector<Bf16> qkv = RandomBf16(Rows(longer) * 3 * Width(longer), 3);
    const std::vector<Bf16> dout = RandomBf16(Rows(longer) * Width(longer), 4);
    // The beginning of the second sequence.
    const size_t row = Size(longer.sequence), end = row + Rows(shorter);
    const auto part = [&](const std::vector<Bf16>& all, size_t width) {
      return std::vector<Bf16>(all.begin() + static_cast<ptrdiff_t>(row * width),
                               all.begin() + static_cast<ptrdiff_t>(end * width));
    };
    const Results whole = Run(longer, Attention::Engine::kOwn, qkv, dout);
    const Results beginning = Run(shorter, Attention::Engine::kOwn, part(qkv, 3 * Width(longer)),
                                  part(dout, Width(longer)));
    const std::vector<Bf16> wanted = part(whole.out, Width(longer));
    CHECK(std::equal(wanted.begin(), wanted.end(), beginning.out.begin()));
  }

  TEST_CASE("attention: whoever uses it wrongly is told which attention") {
    const std::string tokens = "attention of 1 x 4 tokens, 2 heads of ";
    CHECK_THROWS_WITH_AS(
        Attention({1, 4, 2, 12}, 1),
        (tokens + "12: a head's width must be a multiple of 8 and at most 128").c_str(),
        gpu::GpuError);
    CHECK_THROWS_WITH_AS(
        Attention({1, 4, 2, 136}, 1),
        (tokens + "136: a head's width must be a multiple of 8 and at most 128").c_str(),
        gpu::GpuError);
    CHECK_THROWS_WITH_AS(Attention({1, 4, 2, 0}, 1),
                         (tokens + "0: every size must be at least 1").c_str(), gpu::GpuError);
    CHECK_THROWS_WITH_AS(Attention({1, 4, 2, 8}, 0), (tokens + "8: it needs at least 1 SM").c_str(),
                         gpu::GpuError);
    CHECK_THROWS_AS(Attention({4096, 4096, 32, 128}, 1), gpu::GpuError);
    const Attention attention({1, 4, 2, 8}, 1, Attention::Engine::kOwn);
    OnDevice<Bf16> x(256);
    OnDevice<float> lse(64);
    CHECK_THROWS_WITH_AS(
        attention.Forward(TestStream(), x.data() + 1, lse.data(), x.data(), lse.data()),
        (tokens + "8: qkv is not 16-aligned").c_str(), gpu::GpuError);
    CHECK_THROWS_WITH_AS(attention.BackwardInput(TestStream(), x.data(), x.data(), lse.data(),
                                                 x.data(), nullptr, x.data()),
                         (tokens + "8: work is null").c_str(), gpu::GpuError);
  }
}

}  // namespace
}  // namespace contraflow::attention_test
