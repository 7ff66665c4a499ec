#include <algorithm>
#include <numeric>

#include "kernels/host/adamw.h"
#include "kernels/host/embedding_and_loss.h"
#include "kernels/host/experts.h"
#include "kernels/host/linear.h"
#include "kernels/host/normalization.h"
#include "tests/kernels/kernel_check.h"

// The dense layer parts against naive double-precision references written from their definitions.

namespace contraflow::host_layers_test {
namespace {

size_t Size(int a, int b) { return static_cast<size_t>(a) * static_cast<size_t>(b); }

// c = alpha * op(a) op(b) + beta * c, element by element.
Doubles NaiveGemm(bool ta, bool tb, int m, int n, int k, double alpha, const Doubles& a, int lda,
                  const Doubles& b, int ldb, double beta, const Doubles& c, int ldc) {
  Doubles result = c;
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < n; ++j) {
      double sum = 0;
      for (int l = 0; l < k; ++l) {
        sum +=
            a[ta ? Size(l, lda) + static_cast<size_t>(i) : Size(i, lda) + static_cast<size_t>(l)] *
            b[tb ? Size(j, ldb) + static_cast<size_t>(l) : Size(l, ldb) + static_cast<size_t>(j)];
      }
      double& out = result[Size(i, ldc) + static_cast<size_t>(j)];
      out = alpha * sum + (beta == 0 ? 0 : beta * out);
    }
  }
  return result;
}

Doubles NaiveMatmul(const Doubles& a, const Doubles& b, int m, int k, int n) {
  return NaiveGemm(false, false, m, n, k, 1, a, k, b, n, 0, Doubles(Size(m, n)), n);
}

Doubles NaiveRmsNorm(const Doubles& x, const Doubles& gain, int rows, int width) {
  Doubles y(x.size());
  const size_t w = static_cast<size_t>(width);
  for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
    double square = 0;
    for (size_t j = 0; j < w; ++j) square += x[r * w + j] * x[r * w + j];
    const double root = std::sqrt(square / width + kRmsNormEpsilon);
    for (size_t j = 0; j < w; ++j) y[r * w + j] = gain[j] * x[r * w + j] / root;
  }
  return y;
}

Doubles NaiveSoftmax(const Doubles& x) {
  Doubles y(x.size());
  std::transform(x.begin(), x.end(), y.begin(), [](double v) { return std::exp(v); });
  const double sum = std::accumulate(y.begin(), y.end(), 0.0);
  for (double& v : y) v /= sum;
  return y;
}

Doubles NaiveSwiglu(const Doubles& gate_up, int rows, int width) {
  Doubles y;
  const size_t w = static_cast<size_t>(width);
  for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
    for (size_t j = 0; j < w; ++j) {
      const double gate = gate_up[r * 2 * w + j], up = gate_up[r * 2 * w + w + j];
      y.push_back(gate / (1 + std::exp(-gate)) * up);
    }
  }
  return y;
}

// Mean of -log softmax(logits)[target], as a vector of one.
Doubles NaiveCrossEntropy(const Doubles& logits, const std::vector<int32_t>& targets, int classes) {
  const size_t c = static_cast<size_t>(classes);
  double sum = 0;
  for (size_t r = 0; r < targets.size(); ++r) {
    const Doubles row(logits.begin() + static_cast<ptrdiff_t>(r * c),
                      logits.begin() + static_cast<ptrdiff_t>(r * c + c));
    sum -= std::log(NaiveSoftmax(row)[static_cast<size_t>(targets[r])]);
  }
  return {sum / static_cast<double>(targets.size())};
}

constexpr int kShapes[][3] = {{1, 1, 1}, {1, 7, 3},   {5, 1, 9},
                              {3, 5, 7}, {17, 33, 9}, {64, 16, 64}};

}  // namespace

TEST_SUITE_BEGIN("unit");

TEST_CASE_TEMPLATE("gemm: all transpositions leading dimensions alpha and beta", T, float, double) {
  for (const auto& shape : kShapes) {
    const int m = shape[0], n = shape[1], k = shape[2];
    for (const int mode : {0, 1, 2, 3}) {
      const bool ta = (mode & 1) != 0, tb = (mode & 2) != 0;
      CAPTURE(m);
      CAPTURE(n);
      CAPTURE(k);
      CAPTURE(mode);
      const int lda = (ta ? m : k) + 3, ldb = (tb ? k : n) + 1, ldc = n + 2;
      const auto a = RandomValues<T>(Size(ta ? k : m, lda), 1);
      const auto b = RandomValues<T>(Size(tb ? n : k, ldb), 2);
      for (const double beta : {0.0, 1.0, -0.5}) {
        auto c = RandomValues<T>(Size(m, ldc), 3);
        const Doubles want = NaiveGemm(ta, tb, m, n, k, 0.5, ToDoubles(a), lda, ToDoubles(b), ldb,
                                       beta, ToDoubles(c), ldc);
        Gemm<T>(static_cast<Transpose>(ta), static_cast<Transpose>(tb), m, n, k, T(0.5), a.data(),
                lda, b.data(), ldb, static_cast<T>(beta), c.data(), ldc);
        CheckClose(c, want);
      }
    }
  }
}

TEST_CASE("gemm: beta 0 does not read c empty sizes do nothing") {
  auto c = Poisoned<float>(4);
  const float one[4] = {1, 0, 0, 1};
  Gemm<float>(Transpose::kNo, Transpose::kNo, 2, 2, 2, 1, one, 2, one, 2, 0, c.data(), 2);
  CheckClose(c, {1, 0, 0, 1});
  Gemm<float>(Transpose::kNo, Transpose::kNo, 0, 2, 2, 1, one, 2, one, 2, 0, c.data(), 2);
  Gemm<float>(Transpose::kNo, Transpose::kNo, 2, 2, 0, 1, one, 2, one, 2, 1, c.data(), 2);
  CheckClose(c, {1, 0, 0, 1});
}

TEST_CASE_TEMPLATE("linear: forward input and weight gradient", T, float, double) {
  for (const auto& shape : kShapes) {
    const int rows = shape[0], in = shape[1], out = shape[2];
    const auto x = RandomValues<T>(Size(rows, in), 1);
    const auto w = RandomValues<T>(Size(in, out), 2);
    const auto dy = RandomValues<T>(Size(rows, out), 3);
    const Doubles x0 = ToDoubles(x), w0 = ToDoubles(w);
    const auto forward_x = [&](const Doubles& v) { return NaiveMatmul(v, w0, rows, in, out); };
    const auto forward_w = [&](const Doubles& v) { return NaiveMatmul(x0, v, rows, in, out); };

    auto y = Poisoned<T>(Size(rows, out));
    LinearForward(x.data(), w.data(), rows, in, out, y.data());
    CheckClose(y, forward_x(x0));
    LinearForwardAdd(x.data(), w.data(), rows, in, out, y.data());
    Doubles twice = forward_x(x0);
    for (double& v : twice) v *= 2;
    CheckClose(y, twice);

    if (rows * in * out > 5000) continue;  // Central differences of the larger shapes take long.
    auto dx = Poisoned<T>(Size(rows, in));
    LinearBackwardInput(dy.data(), w.data(), rows, in, out, dx.data());
    const Doubles want_dx = NumericGradient(forward_x, x0, ToDoubles(dy));
    CheckClose(dx, want_dx);
    LinearBackwardInputAdd(dy.data(), w.data(), rows, in, out, dx.data());
    Doubles twice_dx = want_dx;
    for (double& v : twice_dx) v *= 2;
    CheckClose(dx, twice_dx);

    auto dw = RandomValues<T>(Size(in, out), 4);
    Doubles want_dw = NumericGradient(forward_w, w0, ToDoubles(dy));
    for (size_t j = 0; j < want_dw.size(); ++j) want_dw[j] += static_cast<double>(dw[j]);
    LinearBackwardWeight(x.data(), dy.data(), rows, in, out, dw.data());
    CheckClose(dw, want_dw);
  }
}

TEST_CASE("linear: no rows leave the weight gradient as it is") {
  auto dw = RandomValues<float>(6, 1);
  const auto before = dw;
  LinearBackwardWeight<float>(nullptr, nullptr, 0, 2, 3, dw.data());
  CHECK(dw == before);
}

TEST_CASE("dot: every length with the tail") {
  for (int n = 0; n < 40; ++n) {
    const auto a = RandomValues<double>(static_cast<size_t>(n), 1);
    const auto b = RandomValues<double>(static_cast<size_t>(n), 2);
    const double want = std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
    CHECK(Dot(a.data(), b.data(), n) == doctest::Approx(want).epsilon(1e-12));
  }
}

TEST_CASE_TEMPLATE("embedding: looks rows up adds repeated tokens", T, float, double) {
  const std::vector<int32_t> tokens = {2, 0, 2, 2};
  const Buffer<T> table = {1, 2, 3, 4, 5, 6, 7, 8};
  auto y = Poisoned<T>(8);
  EmbeddingForward(tokens.data(), table.data(), 4, 2, y.data());
  CheckClose(y, {5, 6, 1, 2, 5, 6, 5, 6});
  Buffer<T> dtable = {1, 1, 1, 1, 1, 1, 1, 1};
  const Buffer<T> dy = {1, 2, 10, 20, 3, 4, 5, 6};
  EmbeddingBackwardWeight(tokens.data(), dy.data(), 4, 2, dtable.data());
  CheckClose(dtable, {11, 21, 1, 1, 10, 13, 1, 1});
}

TEST_CASE_TEMPLATE("rmsnorm: forward input gradient with residual gain gradient", T, float,
                   double) {
  for (const auto& [rows, width] : {std::pair(1, 1), {1, 16}, {5, 7}, {3, 33}}) {
    const int r = rows, w = width;
    const auto x = RandomValues<T>(Size(r, w), 1);
    const auto gain = RandomValues<T>(static_cast<size_t>(w), 2);
    const auto dy = RandomValues<T>(Size(r, w), 3);
    const auto residual = RandomValues<T>(Size(r, w), 4);
    const Doubles x0 = ToDoubles(x), gain0 = ToDoubles(gain);
    auto rstd = Poisoned<T>(static_cast<size_t>(r)), y = Poisoned<T>(x.size());
    RmsNormForward(x.data(), gain.data(), r, w, rstd.data(), y.data());
    CheckClose(y, NaiveRmsNorm(x0, gain0, r, w));

    auto dx = Poisoned<T>(x.size());
    RmsNormBackwardInput(x.data(), gain.data(), rstd.data(), dy.data(), residual.data(), r, w,
                         dx.data());
    Doubles want = NumericGradient([&](const Doubles& v) { return NaiveRmsNorm(v, gain0, r, w); },
                                   x0, ToDoubles(dy));
    for (size_t i = 0; i < want.size(); ++i) want[i] += static_cast<double>(residual[i]);
    CheckClose(dx, want, 100);
    auto in_place = residual;
    RmsNormBackwardInput(x.data(), gain.data(), rstd.data(), dy.data(), in_place.data(), r, w,
                         in_place.data());
    CHECK(in_place == dx);

    auto dgain = RandomValues<T>(static_cast<size_t>(w), 5);
    want = NumericGradient([&](const Doubles& v) { return NaiveRmsNorm(x0, v, r, w); }, gain0,
                           ToDoubles(dy));
    for (size_t i = 0; i < want.size(); ++i) want[i] += static_cast<double>(dgain[i]);
    RmsNormBackwardWeight(x.data(), rstd.data(), dy.data(), r, w, dgain.data());
    CheckClose(dgain, want, 100);
  }
}

TEST_CASE_TEMPLATE("softmax: forward gradient logarithm of the sum large values", T, float,
                   double) {
  for (const int n : {1, 2, 5, 19}) {
    const auto x = RandomValues<T>(static_cast<size_t>(n), 1);
    const auto dp = RandomValues<T>(static_cast<size_t>(n), 2);
    auto p = x;
    const T log_sum = Softmax(p.data(), n);
    const Doubles x0 = ToDoubles(x);
    CheckClose(p, NaiveSoftmax(x0));
    double sum = 0;
    for (const double v : x0) sum += std::exp(v);
    CHECK(static_cast<double>(log_sum) == doctest::Approx(std::log(sum)).epsilon(1e-6));
    auto dx = Poisoned<T>(x.size());
    SoftmaxBackwardInput(p.data(), dp.data(), n, dx.data());
    CheckClose(dx, NumericGradient(NaiveSoftmax, x0, ToDoubles(dp)));
  }
  Buffer<T> huge = {1000, 999, -1000};
  CHECK(Softmax(huge.data(), 3) == doctest::Approx(1000.3132617));
  CheckClose(huge, {1 / (1 + std::exp(-1.0)), std::exp(-1.0) / (1 + std::exp(-1.0)), 0});
}

TEST_CASE_TEMPLATE("swiglu: forward and gradient saturated gates", T, float, double) {
  for (const auto& [rows, width] : {std::pair(0, 3), {1, 1}, {1, 5}, {4, 9}}) {
    const int r = rows, w = width;
    auto gate_up = RandomValues<T>(Size(r, 2 * w), 1);
    for (T& v : gate_up) v *= 3;
    const auto dy = RandomValues<T>(Size(r, w), 2);
    auto y = Poisoned<T>(Size(r, w)), d = Poisoned<T>(gate_up.size());
    SwigluForward(gate_up.data(), r, w, y.data());
    SwigluBackwardInput(gate_up.data(), dy.data(), w, r, w, d.data());
    // The same in place, from the second halves.
    auto in_place = Poisoned<T>(gate_up.size());
    for (int i = 0; i < r; ++i) {
      std::copy_n(dy.data() + i * w, w, in_place.data() + i * 2 * w + w);
    }
    SwigluBackwardInput(gate_up.data(), in_place.data() + w, 2 * w, r, w, in_place.data());
    CHECK(in_place == d);
    const auto naive = [&](const Doubles& v) { return NaiveSwiglu(v, r, w); };
    CheckClose(y, naive(ToDoubles(gate_up)));
    CheckClose(d, NumericGradient(naive, ToDoubles(gate_up), ToDoubles(dy)));
  }
  const Buffer<T> saturated = {-1000, 1000, 2, 2};
  const Buffer<T> one = {1, 1};
  auto y = Poisoned<T>(2), d = Poisoned<T>(4);
  SwigluForward(saturated.data(), 1, 2, y.data());
  CheckClose(y, {0, 2000});
  SwigluBackwardInput(saturated.data(), one.data(), 2, 1, 2, d.data());
  CheckClose(d, {0, 2, 0, 1000});
}

TEST_CASE_TEMPLATE("cross entropy: mean over the rows gradient with its scale", T, float, double) {
  for (const auto& [rows, classes] : {std::pair(1, 1), {1, 5}, {6, 3}}) {
    const int c = classes;
    std::vector<int32_t> targets;
    for (int r = 0; r < rows; ++r) targets.push_back((r * 2) % c);
    auto logits = RandomValues<T>(Size(rows, c), 1);
    const Doubles logits0 = ToDoubles(logits);
    const auto naive = [&](const Doubles& v) { return NaiveCrossEntropy(v, targets, c); };
    const T loss = CrossEntropyForward(targets.data(), rows, c, logits.data());
    CHECK(static_cast<double>(loss) == doctest::Approx(naive(logits0)[0]).epsilon(1e-6));
    CrossEntropyBackwardInput(targets.data(), T(0.25), rows, c, logits.data());
    CheckClose(logits, NumericGradient(naive, logits0, {0.25}));
  }
}

TEST_CASE("cross entropy: an impossible target has a finite loss") {
  Buffer<float> logits = {0, 500};
  const int32_t target = 0;
  CHECK(CrossEntropyForward(&target, 1, 2, logits.data()) == doctest::Approx(500));
}

TEST_CASE_TEMPLATE("adamw: the textbook update over several steps", T, float, double) {
  const AdamW settings{0.1, 0.9, 0.95, 1e-3, 0.02};
  const size_t n = 5;
  auto p = RandomValues<T>(n, 1);
  Buffer<T> m(n), v(n);
  Doubles want = ToDoubles(p), want_m(n), want_v(n);
  for (int step = 1; step <= 4; ++step) {
    const auto g = RandomValues<T>(n, 10 + static_cast<uint64_t>(step));
    AdamWStep(settings, step, n, g.data(), m.data(), v.data(), p.data());
    for (size_t i = 0; i < n; ++i) {
      const double gi = static_cast<double>(g[i]);
      want_m[i] = 0.9 * want_m[i] + 0.1 * gi;
      want_v[i] = 0.95 * want_v[i] + 0.05 * gi * gi;
      const double mean = want_m[i] / (1 - std::pow(0.9, step));
      const double spread = std::sqrt(want_v[i] / (1 - std::pow(0.95, step)));
      want[i] -= 0.1 * 0.02 * want[i];
      want[i] -= 0.1 * mean / (spread + 1e-3);
    }
    CheckClose(p, want);
    CheckClose(m, want_m);
    CheckClose(v, want_v);
  }
}

TEST_CASE("random: values depend on key and index alone and are spread evenly") {
  // Fixed for ever: initial weights, and with them every reported loss, hang on them.
  Buffer<float> x(4);
  FillUniform(42, 1, 4, x.data());
  Buffer<double> same(4);
  FillUniform(42, 1, 4, same.data());
  CHECK(ToDoubles(x) == Doubles(same.begin(), same.end()));
  Buffer<float> golden = {0x1.eeb99p-2f, -0x1.5c4074p-1f, -0x1.c56cc8p-2f, -0x1.3f18f8p-2f};
  CHECK(x == golden);
  CHECK(DeriveKey(1, 2) == 0xc132dd2b56b2763cu);

  const auto many = RandomValues<double>(100000, 7);
  double sum = 0, square = 0;
  for (const double v : many) {
    REQUIRE(v >= -1);
    REQUIRE(v < 1);
    sum += v;
    square += v * v;
  }
  CHECK(std::abs(sum / 1e5) < 0.01);
  CHECK(square / 1e5 == doctest::Approx(1.0 / 3).epsilon(0.01));

  std::vector<uint64_t> keys;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    for (uint64_t layer = 0; layer < 20; ++layer) keys.push_back(DeriveKey(seed, layer));
  }
  std::ranges::sort(keys);
  CHECK(std::ranges::adjacent_find(keys) == keys.end());
}

TEST_SUITE_END();

}  // namespace contraflow::host_layers_test
