#include <doctest/doctest.h>

#include <random>

#include "kernels/gpu/embedding_and_loss.h"
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

// Of one, two and three digits; of several tiles; tokens that occur in none to all of the rows.
std::vector<Shape> Shapes() {
  std::vector<Shape> shapes = {{9, 1, 8, 1},         {50, 5, 16, 5},       {700, 512, 8, 512},
                               {600, 513, 3, 513},   {2048, 600, 1, 3},    {2049, 70000, 1, 900},
                               {5000, 3000, 1, 100}, {300, 300000, 1, 90}, {90, 40, 264, 1},
                               {40, 7, 1100, 7},     {0, 5, 8, 5},         {30, 4, 33, 3},
                               {30, 4, 32, 3, 1}};
  if (!Emulated())
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
