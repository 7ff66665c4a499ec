#include <algorithm>
#include <array>
#include <numeric>

#include "kernels/host/attention.h"
#include "kernels/host/experts.h"
#include "kernels/host/routing.h"
#include "tests/kernels/kernel_check.h"

// Attention, routing and experts against naive double-precision references.

namespace contraflow::host_moe_test {
namespace {

size_t Size(int a, int b) { return static_cast<size_t>(a) * static_cast<size_t>(b); }

// Causal attention token by token.
Doubles NaiveAttention(const AttentionShape& s, const Doubles& qkv) {
  const size_t hd = static_cast<size_t>(s.head_width);
  const size_t width = static_cast<size_t>(s.heads) * hd, n = static_cast<size_t>(s.sequence);
  Doubles out(static_cast<size_t>(s.batch) * n * width);
  for (size_t b = 0; b < static_cast<size_t>(s.batch); ++b) {
    for (size_t h = 0; h < static_cast<size_t>(s.heads); ++h) {
      const auto at = [&](size_t row, size_t part, size_t j) {
        return qkv[(b * n + row) * 3 * width + part * width + h * hd + j];
      };
      for (size_t i = 0; i < n; ++i) {
        Doubles e(i + 1);
        double sum = 0;
        for (size_t t = 0; t <= i; ++t) {
          double score = 0;
          for (size_t j = 0; j < hd; ++j) score += at(i, 0, j) * at(t, 1, j);
          e[t] = std::exp(score / std::sqrt(static_cast<double>(hd)));
          sum += e[t];
        }
        for (size_t t = 0; t <= i; ++t) {
          for (size_t j = 0; j < hd; ++j) {
            out[(b * n + i) * width + h * hd + j] += e[t] / sum * at(t, 2, j);
          }
        }
      }
    }
  }
  return out;
}

// Rotates pairs as complex numbers, with the angle from its definition.
Doubles NaiveRope(int rows, int sequence, int heads, int head_width, const Doubles& qkv) {
  Doubles out = qkv;
  const size_t hd = static_cast<size_t>(head_width), width = static_cast<size_t>(heads) * hd;
  for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
    const double position = static_cast<double>(r % static_cast<size_t>(sequence));
    for (size_t part = 0; part < 2; ++part) {
      for (size_t j = 0; j < width; j += 2) {
        const double exponent = -static_cast<double>(j % hd) / static_cast<double>(hd);
        const double angle = position * std::pow(10000.0, exponent);
        const size_t i = r * 3 * width + part * width + j;
        out[i] = qkv[i] * std::cos(angle) - qkv[i + 1] * std::sin(angle);
        out[i + 1] = qkv[i] * std::sin(angle) + qkv[i + 1] * std::cos(angle);
      }
    }
  }
  return out;
}

// The weights of the experts `chosen` as a function of the logits.
Doubles NaiveRouterWeights(const Doubles& logits, const Buffer<int32_t>& chosen, int rows,
                           int experts, int top_k) {
  Doubles weights;
  for (int r = 0; r < rows; ++r) {
    double sum = 0;
    for (int e = 0; e < experts; ++e)
      sum += std::exp(logits[Size(r, experts) + static_cast<size_t>(e)]);
    for (int k = 0; k < top_k; ++k) {
      const int32_t e = chosen[Size(r, top_k) + static_cast<size_t>(k)];
      weights.push_back(std::exp(logits[Size(r, experts) + static_cast<size_t>(e)]) / sum);
    }
  }
  return weights;
}

// Every sorted row through its expert, from the definition of SwiGLU.
Doubles NaiveExperts(const ExpertsShape& s, const Doubles& x, const Doubles& gate_up,
                     const Doubles& down) {
  const size_t d = static_cast<size_t>(s.width), f = static_cast<size_t>(s.inner);
  Doubles y(x.size());
  for (size_t e = 0; e < static_cast<size_t>(s.experts); ++e) {
    for (size_t r = static_cast<size_t>(s.first[e]); r < static_cast<size_t>(s.first[e + 1]); ++r) {
      for (size_t j = 0; j < f; ++j) {
        double gate = 0, up = 0;
        for (size_t i = 0; i < d; ++i) {
          gate += x[r * d + i] * gate_up[e * d * 2 * f + i * 2 * f + j];
          up += x[r * d + i] * gate_up[e * d * 2 * f + i * 2 * f + f + j];
        }
        const double hidden = gate / (1 + std::exp(-gate)) * up;
        for (size_t i = 0; i < d; ++i) y[r * d + i] += hidden * down[e * f * d + j * d + i];
      }
    }
  }
  return y;
}

Doubles NaiveCombine(const Doubles& residual, const Doubles& sorted, const Buffer<int32_t>& row_of,
                     const Doubles& weight, size_t top_k, size_t width) {
  Doubles y = residual;
  for (size_t pair = 0; pair < row_of.size(); ++pair) {
    for (size_t j = 0; j < width; ++j) {
      y[pair / top_k * width + j] +=
          weight[pair] * sorted[static_cast<size_t>(row_of[pair]) * width + j];
    }
  }
  return y;
}

struct Sorted {
  Buffer<int32_t> first, token_of, row_of;
};

Sorted Sort(const Buffer<int32_t>& expert, int experts, int top_k) {
  Sorted s{Buffer<int32_t>(static_cast<size_t>(experts) + 1, -1),
           Buffer<int32_t>(expert.size(), -1), Buffer<int32_t>(expert.size(), -1)};
  const int rows = static_cast<int>(expert.size()) / top_k;
  SortByExpert(expert.data(), rows, experts, top_k, s.first.data(), s.token_of.data(),
               s.row_of.data());
  return s;
}

}  // namespace

TEST_SUITE_BEGIN("unit");

TEST_CASE_TEMPLATE("attention: forward and gradient", T, float, double) {
  for (const AttentionShape& shape :
       {AttentionShape{1, 1, 1, 2}, {1, 1, 3, 4}, {2, 5, 2, 2}, {1, 9, 1, 6}, {3, 4, 2, 3}}) {
    const int rows = shape.batch * shape.sequence, width = shape.heads * shape.head_width;
    CAPTURE(rows);
    CAPTURE(width);
    const auto qkv = RandomValues<T>(Size(rows, 3 * width), 1);
    const auto dout = RandomValues<T>(Size(rows, width), 2);
    auto p = Poisoned<T>(Size(rows * shape.heads, shape.sequence));
    auto out = Poisoned<T>(Size(rows, width)), dqkv = Poisoned<T>(qkv.size());
    AttentionForward(shape, qkv.data(), p.data(), out.data());
    auto work = Poisoned<T>(Size(shape.sequence, shape.sequence));
    AttentionBackwardInput(shape, qkv.data(), p.data(), dout.data(), work.data(), dqkv.data());
    const auto naive = [&](const Doubles& v) { return NaiveAttention(shape, v); };
    CheckClose(out, naive(ToDoubles(qkv)));
    CheckClose(dqkv, NumericGradient(naive, ToDoubles(qkv), ToDoubles(dout)));
  }
}

TEST_CASE("attention: a token sees nothing after it") {
  const AttentionShape shape{1, 6, 2, 4};
  auto qkv = RandomValues<float>(6 * 24, 1);
  Buffer<float> p(2 * 36), before(48), after(48);
  AttentionForward(shape, qkv.data(), p.data(), before.data());
  for (size_t i = 4 * 24; i < qkv.size(); ++i) qkv[i] += 1;
  AttentionForward(shape, qkv.data(), p.data(), after.data());
  CHECK(std::equal(before.begin(), before.begin() + 4 * 8, after.begin()));
  CHECK_FALSE(std::equal(before.begin() + 4 * 8, before.end(), after.begin() + 4 * 8));
}

TEST_CASE_TEMPLATE("rope: forward and gradient values untouched", T, float, double) {
  for (const auto& [rows, sequence, heads, head_width] :
       {std::array{1, 1, 1, 2}, {6, 3, 2, 4}, {5, 5, 1, 6}}) {
    const int r = rows, s = sequence, h = heads, hd = head_width;
    Buffer<T> cosine(Size(s, hd / 2)), sine(cosine.size());
    FillRopeTable(s, hd, cosine.data(), sine.data());
    const auto x = RandomValues<T>(Size(r, 3 * h * hd), 1);
    auto y = x, dx = RandomValues<T>(x.size(), 2);
    const Doubles dy = ToDoubles(dx);
    RopeForward(cosine.data(), sine.data(), r, s, h, hd, y.data());
    RopeBackwardInput(cosine.data(), sine.data(), r, s, h, hd, dx.data());
    const auto naive = [&](const Doubles& v) { return NaiveRope(r, s, h, hd, v); };
    CheckClose(y, naive(ToDoubles(x)));
    CheckClose(dx, NumericGradient(naive, ToDoubles(x), dy));
  }
}

TEST_CASE_TEMPLATE("router: the most probable experts in descending order and the gradient", T,
                   float, double) {
  for (const auto& [rows, experts, top_k] :
       {std::array{1, 1, 1}, {1, 5, 2}, {7, 4, 1}, {6, 3, 3}, {9, 16, 4}}) {
    const int r = rows, e = experts, k = top_k;
    CAPTURE(e);
    const auto logits = RandomValues<T>(Size(r, e), 1);
    const auto dweight = RandomValues<T>(Size(r, k), 2);
    auto p = logits, weight = Poisoned<T>(Size(r, k)), dlogits = Poisoned<T>(logits.size());
    Buffer<int32_t> chosen(Size(r, k), -1);
    RouterForward(r, e, k, false, p.data(), chosen.data(), weight.data());
    for (int row = 0; row < r; ++row) {
      const T* l = logits.data() + row * e;
      std::vector<int32_t> order(static_cast<size_t>(e));
      for (int i = 0; i < e; ++i) order[static_cast<size_t>(i)] = i;
      std::ranges::stable_sort(order, [&](int a, int b) { return l[a] > l[b]; });
      CHECK(std::equal(order.begin(), order.begin() + k, chosen.begin() + row * k));
    }
    const auto naive = [&](const Doubles& v) { return NaiveRouterWeights(v, chosen, r, e, k); };
    CheckClose(weight, naive(ToDoubles(logits)));
    RouterBackwardInput(p.data(), chosen.data(), dweight.data(), r, e, k, false, T{0},
                        dlogits.data());
    CheckClose(dlogits, NumericGradient(naive, ToDoubles(logits), ToDoubles(dweight)));
  }
}

TEST_CASE_TEMPLATE("router: renormalised weights and the load-balancing loss and their gradients",
                   T, float, double) {
  for (const auto& [rows, experts, top_k] :
       {std::array{1, 1, 1}, {1, 5, 2}, {7, 4, 1}, {6, 3, 3}, {9, 16, 4}}) {
    const int r = rows, e = experts, k = top_k;
    CAPTURE(e);
    const auto logits = RandomValues<T>(Size(r, e), 1);
    const auto dweight = RandomValues<T>(Size(r, k), 2);
    auto p = logits, weight = Poisoned<T>(Size(r, k)), dlogits = Poisoned<T>(logits.size());
    Buffer<int32_t> chosen(Size(r, k), -1);
    RouterForward(r, e, k, true, p.data(), chosen.data(), weight.data());
    // The weights, and the loss after them.
    const auto naive = [&](const Doubles& v) {
      Doubles values = NaiveRouterWeights(v, chosen, r, e, k);
      for (int row = 0; row < r; ++row) {
        double* const w = values.data() + row * k;
        const double sum = std::accumulate(w, w + k, 0.0);
        for (int i = 0; i < k; ++i) w[i] /= sum;
      }
      Buffer<int32_t> all(Size(r, e));
      for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int32_t>(i) % e;
      const Doubles every = NaiveRouterWeights(v, all, r, e, e);
      double loss = 0;
      for (const int32_t c : chosen) {
        for (int row = 0; row < r; ++row) loss += every[static_cast<size_t>(row * e + c)];
      }
      values.push_back(loss * e / (1.0 * r * r * k));
      return values;
    };
    const Doubles values = naive(ToDoubles(logits));
    const T balance = RouterBalance(p.data(), chosen.data(), r, e, k);
    CHECK(static_cast<double>(balance) == doctest::Approx(values.back()).epsilon(1e-5));
    CheckClose(weight, Doubles(values.begin(), values.end() - 1));
    Doubles gradient = ToDoubles(dweight);
    gradient.push_back(0.75);
    RouterBackwardInput(p.data(), chosen.data(), dweight.data(), r, e, k, true, T{0.75},
                        dlogits.data());
    CheckClose(dlogits, NumericGradient(naive, ToDoubles(logits), gradient));
  }
}

TEST_CASE("router: ties go to the lower index") {
  Buffer<float> logits = {1, 1, 1, 1, 0, 2, 0, 2, 3, 0, 0, 0};
  Buffer<int32_t> chosen(6);
  Buffer<float> weight(6);
  RouterForward(3, 4, 2, false, logits.data(), chosen.data(), weight.data());
  CHECK(chosen == Buffer<int32_t>{0, 1, 1, 3, 0, 1});
  CHECK(weight[0] == 0.25f);
}

TEST_CASE("permutation: stable with an expert without tokens and all tokens on one expert") {
  const Sorted mixed = Sort({2, 0, 0, 3, 2, 3, 0, 2}, 5, 2);
  CHECK(mixed.first == Buffer<int32_t>{0, 3, 3, 6, 8, 8});
  CHECK(mixed.token_of == Buffer<int32_t>{0, 1, 3, 0, 2, 3, 1, 2});
  CHECK(mixed.row_of == Buffer<int32_t>{3, 0, 1, 6, 4, 7, 2, 5});

  const Sorted one = Sort({1, 1, 1}, 3, 1);
  CHECK(one.first == Buffer<int32_t>{0, 0, 3, 3});
  CHECK(one.token_of == Buffer<int32_t>{0, 1, 2});
  CHECK(one.row_of == Buffer<int32_t>{0, 1, 2});
}

TEST_CASE("sort into capacity: first come first served the rest has no row") {
  // Expert 0 is chosen by tokens 0, 1, 2 and 3, expert 2 by 0 and 3, expert 1 by 1 and 2.
  const Buffer<int32_t> expert = {0, 2, 1, 0, 0, 1, 2, 0};
  Buffer<int32_t> first(5, -9), token_of(8, -9), row_of(8, -9);
  CHECK(SortIntoCapacity(expert.data(), 4, 4, 2, 2, first.data(), token_of.data(), row_of.data()) ==
        2);
  CHECK(first == Buffer<int32_t>{0, 2, 4, 6, 8});
  CHECK(token_of == Buffer<int32_t>{0, 1, 1, 2, 0, 3, -1, -1});
  CHECK(row_of == Buffer<int32_t>{0, 4, 2, 1, -1, 3, 5, -1});
  // With room for all, every pair has a row and finds its token there.
  token_of.assign(16, -9);
  CHECK(SortIntoCapacity(expert.data(), 4, 4, 2, 4, first.data(), token_of.data(), row_of.data()) ==
        0);
  for (size_t i = 0; i < expert.size(); ++i) {
    CHECK(row_of[i] / 4 == expert[i]);
    CHECK(token_of[static_cast<size_t>(row_of[i])] == static_cast<int32_t>(i / 2));
  }
}

TEST_CASE("pairs without a row add nothing and have no gradient") {
  const Buffer<int32_t> token_of = {1, -1, 0}, row_of = {2, -1, 0, -1};
  const Buffer<float> x = {1, 2, 3, 4}, weight = {0.5f, 7, 2, 7}, residual = {10, 20, 30, 40};
  auto sorted = Poisoned<float>(6);
  GatherTokens(x.data(), token_of.data(), 3, 2, sorted.data());
  CHECK(sorted == Buffer<float>{3, 4, 0, 0, 1, 2});
  auto y = Poisoned<float>(4), dx = Poisoned<float>(4), dweight = Poisoned<float>(4);
  CombineForward(residual.data(), sorted.data(), row_of.data(), weight.data(), 2, 2, 2, y.data());
  CHECK(y == Buffer<float>{10.5f, 21, 36, 48});
  Buffer<float> dsorted(6, -1);
  CombineBackwardInput(x.data(), sorted.data(), row_of.data(), weight.data(), 2, 2, 2,
                       dsorted.data(), dweight.data());
  CHECK(dsorted == Buffer<float>{6, 8, -1, -1, 0.5f, 1});
  CHECK(dweight == Buffer<float>{5, 0, 25, 0});
  GatherTokensBackwardInput(dsorted.data(), row_of.data(), 2, 2, 2, dx.data());
  CHECK(dx == Buffer<float>{0.5f, 1, 6, 8});
}

TEST_CASE_TEMPLATE("gather of tokens and its gradient", T, float, double) {
  const Sorted s = Sort({2, 0, 0, 3, 2, 3}, 5, 2);
  const auto x = RandomValues<T>(3 * 4, 1), dsorted = RandomValues<T>(6 * 4, 2);
  auto sorted = Poisoned<T>(6 * 4), dx = Poisoned<T>(3 * 4);
  GatherTokens(x.data(), s.token_of.data(), 6, 4, sorted.data());
  GatherTokensBackwardInput(dsorted.data(), s.row_of.data(), 3, 2, 4, dx.data());
  const auto naive = [&](const Doubles& v) {
    Doubles out;
    for (const int32_t t : s.token_of) {
      for (int j = 0; j < 4; ++j) out.push_back(v[Size(t, 4) + static_cast<size_t>(j)]);
    }
    return out;
  };
  CheckClose(sorted, naive(ToDoubles(x)));
  CheckClose(dx, NumericGradient(naive, ToDoubles(x), ToDoubles(dsorted)));
}

TEST_CASE_TEMPLATE("experts: forward input and weight gradients for uneven loads", T, float,
                   double) {
  const std::vector<Buffer<int32_t>> loads = {{0, 1},       {0, 0, 1},    {0, 3, 3, 4},
                                              {0, 0, 6, 6}, {0, 2, 4, 7}, {0, 0, 0}};
  for (const Buffer<int32_t>& first : loads) {
    const int experts = static_cast<int>(first.size()) - 1, d = 3, f = 5, rows = first.back();
    CAPTURE(experts);
    CAPTURE(rows);
    const ExpertsShape shape{experts, d, f, first.data()};
    const auto x = RandomValues<T>(Size(rows, d), 1);
    const auto gate_up = RandomValues<T>(Size(experts * d, 2 * f), 2);
    const auto down = RandomValues<T>(Size(experts * f, d), 3);
    const auto dy = RandomValues<T>(Size(rows, d), 4);
    auto inner = Poisoned<T>(Size(rows, 2 * f)), hidden = Poisoned<T>(Size(rows, f));
    auto y = Poisoned<T>(Size(rows, d)), dinner = inner, dx = y;
    ExpertsForward(shape, x.data(), gate_up.data(), down.data(), inner.data(), hidden.data(),
                   y.data());
    ExpertsBackwardInput(shape, gate_up.data(), down.data(), inner.data(), dy.data(), dinner.data(),
                         dx.data());
    auto dgate_up = RandomValues<T>(gate_up.size(), 5), ddown = RandomValues<T>(down.size(), 6);
    Doubles start_gate_up = ToDoubles(dgate_up), start_down = ToDoubles(ddown);
    ExpertsBackwardWeight(shape, x.data(), hidden.data(), dinner.data(), dy.data(), dgate_up.data(),
                          ddown.data());

    const Doubles x0 = ToDoubles(x), g0 = ToDoubles(gate_up), w0 = ToDoubles(down);
    const Doubles dy0 = ToDoubles(dy);
    CheckClose(y, NaiveExperts(shape, x0, g0, w0));
    CheckClose(dx, NumericGradient([&](const Doubles& v) { return NaiveExperts(shape, v, g0, w0); },
                                   x0, dy0));
    const auto accumulated = [](Doubles start, const Doubles& gradient) {
      for (size_t i = 0; i < start.size(); ++i) start[i] += gradient[i];
      return start;
    };
    CheckClose(dgate_up,
               accumulated(
                   start_gate_up,
                   NumericGradient([&](const Doubles& v) { return NaiveExperts(shape, x0, v, w0); },
                                   g0, dy0)));
    CheckClose(ddown,
               accumulated(
                   start_down,
                   NumericGradient([&](const Doubles& v) { return NaiveExperts(shape, x0, g0, v); },
                                   w0, dy0)));
  }
}

TEST_CASE_TEMPLATE("combine: forward and both gradients", T, float, double) {
  for (const int top_k : {1, 2, 3}) {
    const int rows = 4, width = 5, pairs = rows * top_k;
    Buffer<int32_t> expert;
    for (int t = 0; t < rows; ++t) {
      for (int k = 0; k < top_k; ++k) expert.push_back((3 - k + t) % 4);
    }
    const Sorted s = Sort(expert, 4, top_k);
    const auto residual = RandomValues<T>(Size(rows, width), 1);
    const auto sorted = RandomValues<T>(Size(pairs, width), 2);
    const auto weight = RandomValues<T>(Size(rows, top_k), 3);
    const auto dy = RandomValues<T>(Size(rows, width), 4);
    auto y = Poisoned<T>(residual.size()), dsorted = Poisoned<T>(sorted.size());
    auto dweight = Poisoned<T>(weight.size());
    CombineForward(residual.data(), sorted.data(), s.row_of.data(), weight.data(), rows, top_k,
                   width, y.data());
    CombineBackwardInput(dy.data(), sorted.data(), s.row_of.data(), weight.data(), rows, top_k,
                         width, dsorted.data(), dweight.data());
    const Doubles r0 = ToDoubles(residual), s0 = ToDoubles(sorted), w0 = ToDoubles(weight);
    const auto naive = [&](const Doubles& sorted_rows, const Doubles& weights) {
      return NaiveCombine(r0, sorted_rows, s.row_of, weights, static_cast<size_t>(top_k), 5);
    };
    CheckClose(y, naive(s0, w0));
    CheckClose(dsorted,
               NumericGradient([&](const Doubles& v) { return naive(v, w0); }, s0, ToDoubles(dy)));
    CheckClose(dweight,
               NumericGradient([&](const Doubles& v) { return naive(s0, v); }, w0, ToDoubles(dy)));
  }
}

TEST_SUITE_END();

}  // namespace contraflow::host_moe_test
