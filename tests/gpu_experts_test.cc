#include "kernels/gpu_experts.h"

#include <doctest/doctest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "tests/test_gpu.h"

namespace contraflow {
namespace {

using gpu::Bf16;
using gpu::ExpertsSizes;

/// Experts with so many rows each, and memory for some more rows.
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

void CheckAll(Layer* layer) {
  CheckForward(layer);
  CheckBackwardInput(layer);
  CheckBackwardWeight(layer);
}

TEST_SUITE("kernel") {
  TEST_CASE("experts: rows about the height of a tile and none at all") {
    Layer layer({72, 40, {0, 1, 127, 0, 128, 129, 0}, 5});
    CheckAll(&layer);
  }
}

}  // namespace
}  // namespace contraflow
