#include "kernels/gpu/experts.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "tests/emulator/test_gpu.h"
#include "tests/support/sanitized.h"

namespace contraflow::experts_test {
namespace {

using gpu::Bf16;
using gpu::ExpertsSizes;

/// Experts with this many rows each, and memory for some more rows.
struct Case {
  int width, inner;
  std::vector<int> rows;
  int spare;

  ExpertsSizes sizes() const {
    return {static_cast<int>(rows.size()), width, inner, used() + spare};
  }
  int used() const { return std::accumulate(rows.begin(), rows.end(), 0); }
  std::vector<int32_t> first() const {
    std::vector<int32_t> at = {0};
    for (const int r : rows) at.push_back(at.back() + r);
    return at;
  }
  size_t size(int columns) const {
    return static_cast<size_t>(used() + spare) * static_cast<size_t>(columns);
  }
  size_t weights(int columns) const {
    return rows.size() * static_cast<size_t>(width) * static_cast<size_t>(columns);
  }
};

constexpr uint16_t kPoison = 0xffff;

/// Random values in the rows that experts have, NaN in those beyond.
std::vector<Bf16> Rows(const Case& shape, int columns, unsigned seed) {
  std::vector<Bf16> values = RandomBf16(shape.size(columns), seed);
  const size_t used = static_cast<size_t>(shape.used()) * static_cast<size_t>(columns);
  std::fill(values.begin() + static_cast<ptrdiff_t>(used), values.end(), Bf16{kPoison});
  return values;
}

/// Everything that one layer of experts has in memory.
struct Layer {
  Case shape;
  OnDevice<int32_t> first;
  OnDevice<Bf16> x, gate_up, down, gate_up_out, hidden, y, dy, dgate_up_out, dx;
  OnDevice<float> dgate_up, ddown;

  explicit Layer(const Case& of, unsigned seed = 1)
      : shape(of),
        first(of.first()),
        x(Rows(of, of.width, seed)),
        gate_up(RandomBf16(of.weights(2 * of.inner), seed + 1, 0.3)),
        down(RandomBf16(of.weights(of.inner), seed + 2, 0.3)),
        gate_up_out(of.size(2 * of.inner)),
        hidden(of.size(of.inner)),
        y(of.size(of.width)),
        dy(Rows(of, of.width, seed + 3)),
        dgate_up_out(of.size(2 * of.inner)),
        dx(of.size(of.width)),
        dgate_up(RandomFloats(of.weights(2 * of.inner), seed + 4)),
        ddown(RandomFloats(of.weights(of.inner), seed + 5)) {}

  void Forward(gpu::Stream stream = TestStream()) {
    gpu::ExpertsForward(stream, shape.sizes(), first.data(), x.data(), gate_up.data(), down.data(),
                        gate_up_out.data(), hidden.data(), y.data());
  }
  void BackwardInput(gpu::Stream stream = TestStream()) {
    gpu::ExpertsBackwardInput(stream, shape.sizes(), first.data(), gate_up.data(), down.data(),
                              gate_up_out.data(), dy.data(), dgate_up_out.data(), dx.data());
  }
  void BackwardWeight(gpu::Stream stream = TestStream()) {
    gpu::ExpertsBackwardWeight(stream, shape.sizes(), first.data(), x.data(), hidden.data(),
                               dgate_up_out.data(), dy.data(), dgate_up.data(), ddown.data());
  }
};

/// out[rows x n] = a[rows x k] by the weights of each row's expert, [k x n], or [n x k] transposed.
std::vector<double> Multiply(const Case& shape, const std::vector<Bf16>& a,
                             const std::vector<Bf16>& weights, int k, int n, bool transposed) {
  const std::vector<double> left = Doubles(a), right = Doubles(weights);
  const size_t depth = static_cast<size_t>(k), columns = static_cast<size_t>(n);
  std::vector<double> out;
  const std::vector<int32_t> first = shape.first();
  for (size_t e = 0; e < shape.rows.size(); ++e) {
    for (auto r = static_cast<size_t>(first[e]); r < static_cast<size_t>(first[e + 1]); ++r) {
      std::vector<double> sums(columns);
      for (size_t i = 0; i < depth; ++i) {
        for (size_t j = 0; j < columns; ++j) {
          const size_t at = transposed ? j * depth + i : i * columns + j;
          sums[j] += left[r * depth + i] * right[e * depth * columns + at];
        }
      }
      out.insert(out.end(), sums.begin(), sums.end());
    }
  }
  return out;
}

/// sums + a^T b of each expert's rows, a[rows x m], b[rows x n].
std::vector<double> AddProduct(const Case& shape, const std::vector<Bf16>& a,
                               const std::vector<Bf16>& b, int m, int n,
                               const std::vector<float>& sums) {
  const std::vector<double> left = Doubles(a), right = Doubles(b);
  const size_t rows = static_cast<size_t>(m), columns = static_cast<size_t>(n);
  std::vector<double> out = Doubles(sums);
  const std::vector<int32_t> first = shape.first();
  for (size_t e = 0; e < shape.rows.size(); ++e) {
    for (auto r = static_cast<size_t>(first[e]); r < static_cast<size_t>(first[e + 1]); ++r) {
      for (size_t i = 0; i < rows; ++i) {
        for (size_t j = 0; j < columns; ++j) {
          out[(e * rows + i) * columns + j] += left[r * rows + i] * right[r * columns + j];
        }
      }
    }
  }
  return out;
}

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

/// The rows that experts have are near to `expected`, value by value; the others are still poison.
void CheckRows(const char* what, const std::vector<Bf16>& values,
               const std::vector<double>& expected) {
  INFO(what);
  double largest = 0;
  for (const double value : expected) largest = std::max(largest, std::abs(value));
  const std::vector<double> got = Doubles(values);
  size_t wrong = 0, touched = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    if (i >= expected.size()) {
      if (values[i].bits != kPoison) ++touched;
    } else if (!(std::abs(got[i] - expected[i]) <=
                 0.0041 * std::abs(expected[i]) + 1e-5 * largest)) {
      ++wrong;
    }
  }
  CHECK(wrong == 0);
  CHECK(touched == 0);
}

void CheckForward(Layer* layer) {
  const Case& shape = layer->shape;
  const auto inner = static_cast<size_t>(shape.inner);
  layer->Forward();
  const std::vector<Bf16> gate_up_out = layer->gate_up_out.Get(), hidden = layer->hidden.Get();
  CheckRows(
      "gate_up_out", gate_up_out,
      Multiply(shape, layer->x.Get(), layer->gate_up.Get(), shape.width, 2 * shape.inner, false));
  std::vector<double> products;
  const std::vector<double> inputs = Doubles(gate_up_out);
  for (size_t r = 0; r < static_cast<size_t>(shape.used()); ++r) {
    for (size_t j = 0; j < inner; ++j) {
      const double gate = inputs[r * 2 * inner + j], up = inputs[r * 2 * inner + inner + j];
      products.push_back(gate * Sigmoid(gate) * up);
    }
  }
  CheckRows("hidden", hidden, products);
  CheckRows("y", layer->y.Get(),
            Multiply(shape, hidden, layer->down.Get(), shape.inner, shape.width, false));
}

void CheckBackwardInput(Layer* layer) {
  const Case& shape = layer->shape;
  const auto inner = static_cast<size_t>(shape.inner);
  layer->BackwardInput();
  const std::vector<double> dhidden =
      Multiply(shape, layer->dy.Get(), layer->down.Get(), shape.width, shape.inner, true);
  const std::vector<double> inputs = Doubles(layer->gate_up_out.Get());
  std::vector<double> expected(2 * dhidden.size());
  for (size_t r = 0; r < static_cast<size_t>(shape.used()); ++r) {
    for (size_t j = 0; j < inner; ++j) {
      const double gate = inputs[r * 2 * inner + j], up = inputs[r * 2 * inner + inner + j];
      const double s = Sigmoid(gate), d = dhidden[r * inner + j];
      expected[r * 2 * inner + j] = d * up * s * (1 + gate * (1 - s));
      expected[r * 2 * inner + inner + j] = d * gate * s;
    }
  }
  const std::vector<Bf16> dgate_up_out = layer->dgate_up_out.Get();
  CheckRows("dgate_up_out", dgate_up_out, expected);
  CheckRows(
      "dx", layer->dx.Get(),
      Multiply(shape, dgate_up_out, layer->gate_up.Get(), 2 * shape.inner, shape.width, true));
}

void CheckNear(const char* what, const std::vector<float>& values,
               const std::vector<double>& expected) {
  INFO(what);
  CHECK(RelativeError(Doubles(values), expected) < 1e-5);
}

void CheckBackwardWeight(Layer* layer) {
  const Case& shape = layer->shape;
  const std::vector<float> dgate_up = layer->dgate_up.Get(), ddown = layer->ddown.Get();
  layer->BackwardWeight();
  CheckNear("dgate_up", layer->dgate_up.Get(),
            AddProduct(shape, layer->x.Get(), layer->dgate_up_out.Get(), shape.width,
                       2 * shape.inner, dgate_up));
  CheckNear(
      "ddown", layer->ddown.Get(),
      AddProduct(shape, layer->hidden.Get(), layer->dy.Get(), shape.inner, shape.width, ddown));
}

void CheckAll(const Case& shape, unsigned seed) {
  Layer layer(shape, seed);
  CheckForward(&layer);
  CheckBackwardInput(&layer);
  CheckBackwardWeight(&layer);
}

/// All results of a layer, on this many SMs.
struct Results {
  std::vector<Bf16> gate_up_out, hidden, y, dgate_up_out, dx;
  std::vector<float> dgate_up, ddown;

  Results(const Case& shape, int sms) {
    Layer layer(shape, 1);
    const gpu::Stream stream = {TestStream().handle, sms};
    layer.Forward(stream);
    layer.BackwardInput(stream);
    layer.BackwardWeight(stream);
    gate_up_out = layer.gate_up_out.Get();
    hidden = layer.hidden.Get();
    y = layer.y.Get();
    dgate_up_out = layer.dgate_up_out.Get();
    dx = layer.dx.Get();
    dgate_up = layer.dgate_up.Get();
    ddown = layer.ddown.Get();
  }
};

template <typename T>
bool SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

void CheckSame(const Results& results, const Results& expected) {
  CHECK(SameBits(results.gate_up_out, expected.gate_up_out));
  CHECK(SameBits(results.hidden, expected.hidden));
  CHECK(SameBits(results.y, expected.y));
  CHECK(SameBits(results.dgate_up_out, expected.dgate_up_out));
  CHECK(SameBits(results.dx, expected.dx));
  CHECK(SameBits(results.dgate_up, expected.dgate_up));
  CHECK(SameBits(results.ddown, expected.ddown));
}

/// Elements begin .. end.
template <typename T>
std::vector<T> Part(const std::vector<T>& values, size_t begin, size_t end) {
  return {values.begin() + static_cast<ptrdiff_t>(begin),
          values.begin() + static_cast<ptrdiff_t>(end)};
}

TEST_SUITE("kernel") {
  TEST_CASE("experts: rows about the height of a tile and none at all") {
    CheckAll({72, 40, {0, 1, 127, 0, 128, 129, 0}, 5}, 1);
  }

  TEST_CASE("experts: more than one column of tiles and more slabs than stages") {
    CheckAll({328, 136, {260, 0, 5}, 0}, 2);
  }

  TEST_CASE("experts: random shapes against naive products") {
    std::mt19937 random(SmallShapes() ? 5 : 6);
    const auto draw = [&](int from, int to) {
      return std::uniform_int_distribution<int>(from, to)(random);
    };
    const int largest = SmallShapes() ? 24 : 40;
    for (unsigned round = 0; round < (kSanitized ? 1u : SmallShapes() ? 3u : 6u); ++round) {
      Case shape = {8 * draw(1, largest), 8 * draw(1, largest), {}, draw(0, 200)};
      shape.rows.resize(static_cast<size_t>(draw(1, 5)));
      for (int& rows : shape.rows) rows = draw(0, 2) == 0 ? 0 : draw(1, SmallShapes() ? 90 : 400);
      CAPTURE(shape.width);
      CAPTURE(shape.inner);
      CAPTURE(shape.rows.size());
      CAPTURE(shape.used());
      CheckAll(shape, 10 * round);
    }
  }

  // Blocks come in pairs where the number of SMs is even.
  TEST_CASE("experts: the same bits on any number of SMs and in any order of threads") {
    // Odd and even numbers of rows of tiles, experts that end within a box and at its edge; several
    // tiles for a block, some of which follow on one of another kind.
    unsigned seed = 0;
    const auto check = [&](const Case& shape, const std::vector<int>& numbers_of_sms) {
      CAPTURE(shape.width);
      const Results expected(shape, 131);
      for (const int sms : numbers_of_sms) {
        CAPTURE(sms);
        ShuffleThreads(++seed);
        CheckSame(Results(shape, sms), expected);
      }
    };
    check({136, 144, {70, 0, 130}, 3}, {1, 3});
    check({136, 72, {130, 0, 16, 261}, 3}, {2});
    check({8, 264, {40, 1}, 0}, {1, 2, 132});
  }

  TEST_CASE("experts: an expert's bits do not depend on those before and after it") {
    // Three experts of which the middle one is the only one of the other layer; its neighbours
    // have nothing but NaN.
    const int rows = 77, before = 19, after = 51;
    const Case alone = {72, 40, {rows}, 0}, among = {72, 40, {before, rows, after}, 0};
    Layer a(alone), b(among);
    const auto put = [&](OnDevice<Bf16>* to, const OnDevice<Bf16>& from, size_t columns) {
      std::vector<Bf16> values(among.size(static_cast<int>(columns)), Bf16{kPoison});
      const std::vector<Bf16> own = from.Get();
      std::copy(own.begin(), own.end(),
                values.begin() + static_cast<ptrdiff_t>(size_t{before} * columns));
      to->Put(values);
    };
    const auto put_weights = [&](OnDevice<Bf16>* to, const OnDevice<Bf16>& from) {
      const std::vector<Bf16> own = from.Get();
      std::vector<Bf16> values(3 * own.size(), Bf16{kPoison});
      std::copy(own.begin(), own.end(), values.begin() + static_cast<ptrdiff_t>(own.size()));
      to->Put(values);
    };
    put(&b.x, a.x, 72);
    put(&b.dy, a.dy, 72);
    put_weights(&b.gate_up, a.gate_up);
    put_weights(&b.down, a.down);
    for (OnDevice<float>* gradient : {&a.dgate_up, &a.ddown, &b.dgate_up, &b.ddown}) {
      gradient->Put(std::vector<float>(gradient->size(), 1.0f));
    }
    for (Layer* layer : {&a, &b}) {
      layer->Forward();
      layer->BackwardInput();
      layer->BackwardWeight();
    }
    const auto middle = [&](const OnDevice<Bf16>& values, size_t columns) {
      return Part(values.Get(), size_t{before} * columns, size_t{before + rows} * columns);
    };
    CHECK(SameBits(middle(b.hidden, 40), a.hidden.Get()));
    CHECK(SameBits(middle(b.y, 72), a.y.Get()));
    CHECK(SameBits(middle(b.dgate_up_out, 80), a.dgate_up_out.Get()));
    CHECK(SameBits(middle(b.dx, 72), a.dx.Get()));
    CHECK(SameBits(Part(b.dgate_up.Get(), a.dgate_up.size(), 2 * a.dgate_up.size()),
                   a.dgate_up.Get()));
    CHECK(SameBits(Part(b.ddown.Get(), a.ddown.size(), 2 * a.ddown.size()), a.ddown.Get()));
  }

  TEST_CASE("experts: without rows nothing is touched") {
    for (const int spare : {0, 9}) {
      Layer layer({16, 24, {0, 0}, spare});
      const std::vector<float> dgate_up = layer.dgate_up.Get(), ddown = layer.ddown.Get();
      layer.Forward();
      layer.BackwardInput();
      layer.BackwardWeight();
      CheckRows("gate_up_out", layer.gate_up_out.Get(), {});
      CheckRows("hidden", layer.hidden.Get(), {});
      CheckRows("y", layer.y.Get(), {});
      CheckRows("dgate_up_out", layer.dgate_up_out.Get(), {});
      CheckRows("dx", layer.dx.Get(), {});
      CHECK(SameBits(layer.dgate_up.Get(), dgate_up));
      CHECK(SameBits(layer.ddown.Get(), ddown));
    }
  }

  TEST_CASE("experts: the gradient of an expert without rows is left alone") {
    // Not even rounded: adding nothing to a signalling NaN would change its bits.
    const Case shape = {24, 16, {3, 0, 4}, 0};
    Layer layer(shape);
    layer.Forward();
    layer.BackwardInput();
    std::vector<float> dgate_up(shape.weights(32)), ddown(shape.weights(16));
    const auto poison = [](std::vector<float>* gradient) {
      const size_t third = gradient->size() / 3;
      std::memset(gradient->data() + third, 0xff, third * sizeof(float));
    };
    poison(&dgate_up);
    poison(&ddown);
    layer.dgate_up.Put(dgate_up);
    layer.ddown.Put(ddown);
    layer.BackwardWeight();
    const auto middle = [](const std::vector<float>& gradient) {
      return Part(gradient, gradient.size() / 3, gradient.size() / 3 * 2);
    };
    CHECK(SameBits(middle(layer.dgate_up.Get()), middle(dgate_up)));
    CHECK(SameBits(middle(layer.ddown.Get()), middle(ddown)));
    CHECK(!SameBits(layer.ddown.Get(), ddown));
  }
}

}  // namespace
}  // namespace contraflow::experts_test
