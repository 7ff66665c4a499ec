#include "runtime/gpu/matmul_choices.h"

#include <algorithm>
#include <charconv>
#include <climits>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>
#include <vector>

#include "compiler/files/file.h"
#include "compiler/files/json.h"
#include "compiler/plan/error.h"
#include "runtime/core/digest.h"
#include "runtime/gpu/products.h"

namespace contraflow {
namespace {

using gpu::MatmulAlgorithm;
using gpu::MatmulShape;

constexpr char kFormat[] = "contraflow-matmuls";
constexpr int kVersion = 1;
/// So that a file of as many is far from the limits of JSON.
constexpr size_t kMostPlaces = 64, kMostProducts = 1024;
constexpr size_t kMostName = 200;
constexpr size_t kDigits = 16;  // of a word of an algorithm, hexadecimal

std::string ToHex(const MatmulAlgorithm& algorithm) {
  std::string text;
  for (const uint64_t word : algorithm) {
    char digits[kDigits] = {};
    const auto size =
        static_cast<size_t>(std::to_chars(digits, digits + kDigits, word, 16).ptr - digits);
    text.append(kDigits - size, '0').append(digits, size);
  }
  return text;
}

MatmulAlgorithm AlgorithmFrom(const JsonCursor& field) {
  MatmulAlgorithm algorithm = {};
  const std::string& text = field.String("an algorithm");
  bool good = text.size() == algorithm.size() * kDigits;
  for (size_t i = 0; good && i < algorithm.size(); ++i) {
    const char* const word = text.data() + i * kDigits;
    const auto read = std::from_chars(word, word + kDigits, algorithm[i], 16);
    good = read.ec == std::errc() && read.ptr == word + kDigits;
  }
  if (good) return algorithm;
  field.Fail("must be " + std::to_string(algorithm.size() * kDigits) + " hexadecimal digits");
}

Json ToJson(const MatmulShape& shape, const MatmulAlgorithm& algorithm) {
  return {{"m", shape.m},
          {"n", shape.n},
          {"k", shape.k},
          {"batch", shape.batch},
          {"transpose_a", shape.transpose_a == Transpose::kYes},
          {"transpose_b", shape.transpose_b == Transpose::kYes},
          {"float", shape.float_out},
          {"add", shape.add},
          {"algorithm", ToHex(algorithm)}};
}

MatmulShape ShapeFrom(const JsonCursor& product) {
  product.Keys("a product (an object)",
               {"m", "n", "k", "batch", "transpose_a", "transpose_b", "float", "add", "algorithm"});
  const auto size = [&](const char* key) {
    return static_cast<int>(product.Required(key).Integer("a size", 1, INT_MAX));
  };
  const auto turned = [&](const char* key) {
    return product.Required(key).Boolean("a choice") ? Transpose::kYes : Transpose::kNo;
  };
  return {.transpose_a = turned("transpose_a"),
          .transpose_b = turned("transpose_b"),
          .m = size("m"),
          .n = size("n"),
          .k = size("k"),
          .float_out = product.Required("float").Boolean("a choice"),
          .add = product.Required("add").Boolean("a choice"),
          .batch = size("batch")};
}

/// Refuses a list that is too long.
size_t SizeOf(const JsonCursor& list, const char* noun, size_t most) {
  const size_t size = list.Size(noun);
  if (size > most) list.Fail("must have at most " + std::to_string(most) + " entries");
  return size;
}

size_t Products(const MatmulFile& file) {
  size_t count = 0;
  for (const auto& [place, choices] : file) count += choices.size();
  return count;
}

/// Times work in memory that lives as long. Power, and so the clock, depends on the numbers: those
/// of a training are no zeros, and so they are none here.
class ProductTimer {
 public:
  ProductTimer(size_t bytes, Gpu& gpu, gpu::Stream stream)
      : gpu_(gpu),
        stream_(stream),
        memory_(gpu.NewDeviceMemory(bytes)),
        stamps_(gpu.NewDeviceMemory(2 * sizeof(uint64_t))) {
    std::minstd_rand random;
    std::vector<gpu::Bf16> numbers(std::min(bytes, size_t{64} << 10) / sizeof(gpu::Bf16));
    for (gpu::Bf16& number : numbers) {
      number = gpu::FromFloat<gpu::Bf16>(static_cast<float>(random() % 255) / 127.0f - 1.0f);
    }
    FillOnDevice(gpu, stream, memory_.get(), bytes, std::as_bytes(std::span(numbers)));
  }

  std::byte* memory() const { return memory_.get(); }

  /// Nanoseconds, of the least disturbed of some rounds; the first one warms up.
  uint64_t Time(int times, const std::function<void()>& work) const {
    constexpr int kRounds = 4;
    auto* const stamps = reinterpret_cast<uint64_t*>(stamps_.get());
    uint64_t least = std::numeric_limits<uint64_t>::max();
    for (int round = 0; round < kRounds; ++round) {
      gpu::Stamp(stream_, &stamps[0]);
      for (int i = 0; i < times; ++i) work();
      gpu::Stamp(stream_, &stamps[1]);
      uint64_t at[2] = {};
      gpu_.CopyToHost(stream_, at, stamps, sizeof at);
      gpu_.Synchronize();
      if (round > 0) least = std::min(least, at[1] - at[0]);
    }
    return least;
  }

 private:
  Gpu& gpu_;
  const gpu::Stream stream_;
  const std::shared_ptr<std::byte> memory_, stamps_;
};

/// Bytes of what a product reads and writes, each where the next one may begin.
struct MatmulMemory {
  size_t a, b, d;

  static size_t Bytes(int rows, int columns, int batch, size_t size) {
    const size_t bytes =
        static_cast<size_t>(rows) * static_cast<size_t>(columns) * static_cast<size_t>(batch);
    return (bytes * size + 255) / 256 * 256;
  }
  explicit MatmulMemory(const MatmulShape& s)
      : a(Bytes(s.m, s.k, s.batch, sizeof(gpu::Bf16))),
        b(Bytes(s.k, s.n, s.batch, sizeof(gpu::Bf16))),
        d(Bytes(s.m, s.n, s.batch, s.float_out ? sizeof(float) : sizeof(gpu::Bf16))) {}
  size_t all() const { return a + b + d; }
};

/// The fastest algorithm of each of these shapes, one after the other in the same memory.
void ChooseAlgorithms(
    const std::vector<MatmulShape>& shapes, Gpu& gpu, gpu::Stream stream, int sms,
    const std::function<void(const MatmulShape&, const MatmulAlgorithm&)>& found) {
  size_t most = 0;
  for (const MatmulShape& shape : shapes) most = std::max(most, MatmulMemory(shape).all());
  const ProductTimer timer(most, gpu, stream);
  const std::shared_ptr<std::byte> work = gpu.NewDeviceMemory(gpu::Matmuls::kWorkBytes);
  for (const MatmulShape& shape : shapes) {
    const MatmulMemory operands(shape);
    auto* const a = reinterpret_cast<gpu::Bf16*>(timer.memory());
    auto* const b = reinterpret_cast<gpu::Bf16*>(timer.memory() + operands.a);
    std::byte* const d = timer.memory() + operands.a + operands.b;
    const int candidates = gpu::Matmuls(sms).Candidates(shape);
    std::vector<uint64_t> times;
    for (int candidate = 0; candidate < candidates; ++candidate) {
      gpu::Matmuls matmuls(sms);
      matmuls.Prepare(shape, candidate);
      times.push_back(timer.Time(8, [&] { matmuls.Run(stream, shape, a, b, d, d, work.get()); }));
    }
    gpu::Matmuls matmuls(sms);
    matmuls.Prepare(shape, static_cast<int>(FastestOf(times)));
    found(shape, matmuls.AlgorithmOf(shape));
  }
}

}  // namespace

MatmulFile ParseMatmulFile(std::string_view text, const std::string& place) {
  const JsonDocument document = ParseJson(text, place);
  const JsonCursor root = document.Root();
  root.Keys("a file of matrix products (an object)", {"format", "version", "places"});
  const JsonCursor format = root.Required("format"), version = root.Required("version");
  if (format.String("a format") != kFormat) format.Fail("must be " + QuoteJson(kFormat));
  if (version.Integer("a version", 0, INT_MAX) != kVersion) {
    version.Fail("this program reads version " + std::to_string(kVersion) +
                 " only; remove the file to have it made anew");
  }
  MatmulFile file;
  const JsonCursor places = root.Required("places");
  const size_t count = SizeOf(places, "places (an array)", kMostPlaces);
  for (size_t i = 0; i < count; ++i) {
    const JsonCursor at = places.Item(i);
    at.Keys("a place (an object)", {"gpu", "library", "sms", "products"});
    const auto [entry, is_new] = file.try_emplace(
        {at.Required("gpu").String("the name of a GPU", kMostName),
         at.Required("library").String("the name of a library", kMostName),
         static_cast<int>(at.Required("sms").Integer("a number of SMs", 1, INT_MAX))});
    if (!is_new) at.Fail("is there twice");
    const JsonCursor products = at.Required("products");
    const size_t here = SizeOf(products, "products (an array)", kMostProducts);
    for (size_t j = 0; j < here; ++j) {
      const JsonCursor product = products.Item(j);
      const MatmulShape shape = ShapeFrom(product);
      const MatmulAlgorithm algorithm = AlgorithmFrom(product.Required("algorithm"));
      if (!entry->second.emplace(shape, algorithm).second) product.Fail("is there twice");
    }
  }
  return file;
}

std::string WriteMatmulFile(const MatmulFile& file) {
  Json places = Json::array();
  for (const auto& [place, choices] : file) {
    Json products = Json::array();
    for (const auto& [shape, algorithm] : choices) products.push_back(ToJson(shape, algorithm));
    places.push_back({{"gpu", place.gpu},
                      {"library", place.library},
                      {"sms", place.sms},
                      {"products", std::move(products)}});
  }
  const Json document = {{"format", kFormat}, {"version", kVersion}, {"places", std::move(places)}};
  std::string text;
  WriteJson(document, &text);
  return text + "\n";
}

std::string DigestOf(const MatmulChoices& choices) {
  if (choices.empty()) return "";
  return Hex(Sha256(WriteMatmulFile({{MatmulPlace(), choices}})));
}

size_t FastestOf(std::span<const uint64_t> times) {
  return static_cast<size_t>(std::min_element(times.begin(), times.end()) - times.begin());
}

MatmulChoices ChooseMatmuls(const std::string& path, const std::vector<MatmulShape>& products,
                            Gpu& gpu, gpu::Stream stream, int sms,
                            const std::function<void()>& moves) {
  MatmulFile file;
  if (FileSize(path) >= 0) file = ParseMatmulFile(ReadFile(path, JsonLimits{}.bytes), path);
  MatmulChoices& known = file[{gpu.name(), gpu::Matmuls::Library(), sms}];
  MatmulChoices choices;
  std::vector<MatmulShape> missing;
  gpu::Matmuls matmuls(sms);
  for (const MatmulShape& shape : products) {
    const auto found = known.find(shape);
    if (found == known.end()) {
      if (std::ranges::find(missing, shape) == missing.end()) missing.push_back(shape);
      continue;
    }
    try {
      matmuls.Prepare(shape, found->second);
    } catch (const gpu::GpuError& error) {
      throw Error(path + ": " + error.what() + "; remove the file to have it made anew");
    }
    choices.insert(*found);
  }
  if (missing.empty()) return choices;
  ChooseAlgorithms(missing, gpu, stream, sms, [&](const auto& shape, const auto& algorithm) {
    choices[shape] = known[shape] = algorithm;
    if (moves) moves();
  });
  if (file.size() > kMostPlaces || Products(file) > kMostProducts) {
    throw Error(path + ": has more than " + std::to_string(kMostProducts) + " products or " +
                std::to_string(kMostPlaces) + " places; name another file");
  }
  WriteFile(path, WriteMatmulFile(file));
  return choices;
}

MatmulChoices ChooseMatmulsForAll(const std::string& path, const std::vector<MatmulShape>& products,
                                  Gpu& gpu, gpu::Stream stream, int sms, bool leads,
                                  const std::function<std::string(const std::string&)>& broadcast,
                                  const std::function<void()>& moves) {
  const MatmulPlace here = {gpu.name(), gpu::Matmuls::Library(), sms};
  std::string text;
  if (leads) {
    text = WriteMatmulFile({{here, ChooseMatmuls(path, products, gpu, stream, sms, moves)}});
  }
  MatmulFile all = ParseMatmulFile(broadcast(text), "choices of process 0");
  const auto found = all.find(here);
  if (found != all.end()) return std::move(found->second);
  const auto name = [](const MatmulPlace& place) {
    return std::to_string(place.sms) + " SMs of " + place.gpu + " with " + place.library;
  };
  throw Error(path + ": process 0 has chosen matrix products for " + name(all.begin()->first) +
              ", this process has " + name(here) +
              "; use the same GPUs and libraries, or leave --matmul-choices out");
}

}  // namespace contraflow
