#include "kernels/gpu/embedding_and_loss.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>

#include "kernels/host/embedding_and_loss.h"
#include "tests/support/guarded.h"

namespace contraflow::embedding_test {
namespace {

using gpu::Bf16;

struct Shape {
  int rows, vocabulary, width;
  int different;  // tokens at most
  size_t shift = 0;

  size_t size() const { return static_cast<size_t>(rows) * static_cast<size_t>(width); }
  size_t table() const { return static_cast<size_t>(vocabulary) * static_cast<size_t>(width); }
};

// Shapes of one, two and three digits; of several tiles; tokens that occur in none to all of the
// rows.
std::vector<Shape> Shapes() {
  std::vector<Shape> shapes = {{9, 1, 8, 1},         {50, 5, 16, 5},       {700, 512, 8, 512},
                               {600, 513, 3, 513},   {2048, 600, 1, 3},    {2049, 70000, 1, 900},
                               {5000, 3000, 1, 100}, {300, 300000, 1, 90}, {90, 40, 264, 1},
                               {40, 7, 1100, 7},     {0, 5, 8, 5},         {30, 4, 33, 3},
                               {30, 4, 32, 3, 1}};
  if (!SmallShapes())
    shapes.insert(shapes.end(), {{20000, 131072, 128, 131072}, {20000, 50257, 77, 9}});
  return shapes;
}

std::vector<int32_t> Tokens(const Shape& shape, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> choice(static_cast<size_t>(shape.different));
  const auto vocabulary = static_cast<unsigned>(shape.vocabulary);
  for (int32_t& token : choice) token = static_cast<int32_t>(random() % vocabulary);
  choice.back() = shape.vocabulary - 1;
  std::vector<int32_t> tokens(static_cast<size_t>(shape.rows));
  for (int32_t& token : tokens) token = choice[random() % choice.size()];
  return tokens;
}

std::vector<float> Backward(const Shape& shape, const std::vector<int32_t>& tokens,
                            const std::vector<Bf16>& dy, const std::vector<float>& before) {
  Guarded<int32_t> device_tokens(tokens);
  Guarded<Bf16> device_dy(dy, shape.shift);
  Guarded<float> dtable(before);
  Guarded<unsigned char> work(gpu::EmbeddingWork(shape.rows, shape.vocabulary));
  gpu::EmbeddingBackwardWeight(NarrowStream(), device_tokens.data(), device_dy.data(), shape.rows,
                               shape.vocabulary, shape.width, work.data(), dtable.data());
  work.Get();
  return dtable.Get();
}

TEST_SUITE("kernel") {
  TEST_CASE("embedding: forward copies rows") {
    unsigned seed = 600;
    for (const Shape& shape : Shapes()) {
      CAPTURE(shape.rows);
      CAPTURE(shape.width);
      const std::vector<int32_t> tokens = Tokens(shape, ++seed);
      const std::vector<Bf16> table = RandomBf16(shape.table(), ++seed);
      std::vector<Bf16> wanted(shape.size());
      const auto width = static_cast<size_t>(shape.width);
      for (size_t i = 0; i < wanted.size(); ++i) {
        wanted[i] = table[static_cast<size_t>(tokens[i / width]) * width + i % width];
      }
      Guarded<int32_t> device_tokens(tokens);
      Guarded<Bf16> device_table(table, shape.shift), y(shape.size(), shape.shift);
      for (const gpu::Stream stream : {TestStream(), NarrowStream()}) {
        y = Guarded<Bf16>(shape.size(), shape.shift);
        gpu::EmbeddingForward(stream, device_tokens.data(), device_table.data(), shape.rows,
                              shape.width, y.data());
        CHECK((y.Get() == wanted));
      }
    }
  }

  TEST_CASE("embedding: the gradient is summed in ascending order") {
    unsigned seed = 700;
    for (const Shape& shape : Shapes()) {
      CAPTURE(shape.rows);
      CAPTURE(shape.vocabulary);
      CAPTURE(shape.width);
      const std::vector<int32_t> tokens = Tokens(shape, ++seed);
      const std::vector<Bf16> dy = RandomBf16(shape.size(), ++seed);
      const std::vector<float> before = RandomFloats(shape.table(), ++seed);
      std::vector<float> wanted = before, rows;
      for (const Bf16 value : dy) rows.push_back(gpu::ToFloat(value));
      EmbeddingBackwardWeight(tokens.data(), rows.data(), shape.rows, shape.width, wanted.data());
      CHECK((Backward(shape, tokens, dy, before) == wanted));
    }
  }

  TEST_CASE("embedding: the same bits in any order of the threads") {
    const Shape shape = {2300, 800, 8, 60};
    const std::vector<int32_t> tokens = Tokens(shape, 1);
    const std::vector<Bf16> dy = RandomBf16(shape.size(), 2);
    const std::vector<float> before(shape.table(), 1);
    const std::vector<float> result = Backward(shape, tokens, dy, before);
    for (unsigned seed = 1; seed <= 3; ++seed) {
      ShuffleThreads(seed);
      CHECK((Backward(shape, tokens, dy, before) == result));
    }
  }
}

}  // namespace
}  // namespace contraflow::embedding_test

namespace contraflow::cross_entropy_test {
namespace {

using gpu::Bf16;

struct Shape {
  int rows, classes;
  size_t shift = 0;

  size_t size() const { return static_cast<size_t>(rows) * static_cast<size_t>(classes); }
};

// To both sides of each limit between blocks, and rows that fit in registers, with shared memory,
// and not at all.
std::vector<Shape> Shapes() {
  std::vector<Shape> shapes = {{3, 1},      {5, 2},      {20, 8},    {3, 40},    {4, 1001},
                               {2, 6144},   {2, 6152},   {1, 12296}, {3, 24584}, {2, 49160},
                               {1, 163848}, {20, 767},   {3, 769},   {2, 1600},  {2, 3073},
                               {2, 6145},   {1, 121001}, {0, 8},     {3, 64, 1}, {1, 80000}};
  if (!SmallShapes()) shapes.insert(shapes.end(), {{300, 131072}, {300, 50257}, {150, 200000}});
  return shapes;
}

std::vector<int32_t> Targets(const Shape& shape, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> targets(static_cast<size_t>(shape.rows));
  for (int32_t& t : targets) {
    t = static_cast<int32_t>(random() % static_cast<unsigned>(shape.classes));
  }
  if (!targets.empty()) targets[0] = shape.classes - 1;
  return targets;
}

struct Wanted {
  std::vector<double> gradient, loss;
};

Wanted Naive(const Shape& shape, const std::vector<int32_t>& targets, double scale,
             const std::vector<Bf16>& logits) {
  Wanted wanted = {Doubles(logits), {}};
  const auto classes = static_cast<size_t>(shape.classes);
  for (size_t r = 0; r < targets.size(); ++r) {
    double* row = wanted.gradient.data() + r * classes;
    const auto target = static_cast<size_t>(targets[r]);
    double top = row[0], sum = 0;
    for (size_t c = 0; c < classes; ++c) top = std::max(top, row[c]);
    for (size_t c = 0; c < classes; ++c) sum += std::exp(row[c] - top);
    if (target < classes) wanted.loss.push_back(top + std::log(sum) - row[target]);
    for (size_t c = 0; c < classes; ++c) {
      row[c] = (std::exp(row[c] - top) / sum - (c == target ? 1 : 0)) * scale / shape.rows;
    }
  }
  return wanted;
}

struct Result {
  std::vector<Bf16> gradient;
  std::vector<float> loss;
  bool operator==(const Result&) const = default;
};

Result Run(gpu::Stream stream, const Shape& shape, const std::vector<int32_t>& targets, float scale,
           const std::vector<Bf16>& logits) {
  Guarded<int32_t> device_targets(targets);
  Guarded<Bf16> gradient(logits, shape.shift);
  Guarded<float> loss(static_cast<size_t>(shape.rows));
  gpu::CrossEntropy(stream, device_targets.data(), scale, shape.rows, shape.classes,
                    gradient.data(), loss.data());
  return {gradient.Get(), loss.Get()};
}

TEST_SUITE("kernel") {
  TEST_CASE("cross entropy: loss and gradient") {
    unsigned seed = 800;
    for (const Shape& shape : Shapes()) {
      CAPTURE(shape.rows);
      CAPTURE(shape.classes);
      const std::vector<int32_t> targets = Targets(shape, ++seed);
      const std::vector<Bf16> logits = RandomBf16(shape.size(), ++seed, 2);
      const Result result = Run(TestStream(), shape, targets, 0.7f, logits);
      const Wanted wanted = Naive(shape, targets, static_cast<double>(0.7f), logits);
      CHECK(WorstUlps(result.gradient, wanted.gradient) < kRounding);
      CHECK(RelativeError(Doubles(result.loss), wanted.loss) < 1e-5);
      CHECK((Run(NarrowStream(), shape, targets, 0.7f, logits) == result));
    }
  }

  TEST_CASE("cross entropy: logits of any size") {
    const Shape shape = {40, 200};
    const std::vector<int32_t> targets = Targets(shape, 1);
    for (const double limit : {30.0, 5000.0}) {
      std::vector<Bf16> logits = RandomBf16(shape.size(), 2, limit);
      // A class that cannot be, as a mask makes it.
      for (size_t row = 0; row < 40; ++row) {
        if (targets[row] == 5) continue;
        logits[row * 200 + 5] = gpu::ToBf16(-std::numeric_limits<float>::infinity());
      }
      const Result result = Run(TestStream(), shape, targets, 40, logits);
      const Wanted wanted = Naive(shape, targets, 40, logits);
      CHECK(WorstUlps(result.gradient, wanted.gradient, 0.05) < kRounding);
      CHECK(RelativeError(Doubles(result.loss), wanted.loss) < 1e-5);
    }
  }

  TEST_CASE("cross entropy: a target outside the classes has no loss") {
    const Shape shape = {4, 48};
    const std::vector<Bf16> logits = RandomBf16(shape.size(), 3);
    const std::vector<int32_t> targets = {47, 48, -1, 0};
    const Result result = Run(NarrowStream(), shape, targets, 1, logits);
    CHECK(std::isfinite(result.loss[0]));
    CHECK(std::isnan(result.loss[1]));
    CHECK(std::isnan(result.loss[2]));
    CHECK(std::isfinite(result.loss[3]));
    CHECK(WorstUlps(result.gradient, Naive(shape, targets, 1, logits).gradient) < kRounding);
  }

  TEST_CASE("cross entropy: the same bits in any order of the threads") {
    for (const Shape& shape : {Shape{20, 600}, Shape{3, 1001}}) {
      const std::vector<int32_t> targets = Targets(shape, 4);
      const std::vector<Bf16> logits = RandomBf16(shape.size(), 5, 3);
      const Result result = Run(NarrowStream(), shape, targets, 1, logits);
      for (unsigned seed = 1; seed <= 3; ++seed) {
        ShuffleThreads(seed);
        CHECK((Run(NarrowStream(), shape, targets, 1, logits) == result));
      }
    }
  }

  TEST_CASE("cross entropy: the mean of the rows") {
    for (const int n : {1, 5, 1023, 5000}) {
      const std::vector<float> x = RandomFloats(static_cast<size_t>(n), 6, 9);
      Guarded<float> device(x), mean(1);
      gpu::Mean(TestStream(), device.data(), n, mean.data());
      double wanted = 0;
      for (const double value : Doubles(x)) wanted += value / n;
      const std::vector<float> result = mean.Get();
      CHECK(static_cast<double>(result[0]) == doctest::Approx(wanted).epsilon(1e-6));
      ShuffleThreads(static_cast<unsigned>(n));
      gpu::Mean(TestStream(), device.data(), n, mean.data());
      CHECK((mean.Get() == result));
    }
  }
}

}  // namespace
}  // namespace contraflow::cross_entropy_test
