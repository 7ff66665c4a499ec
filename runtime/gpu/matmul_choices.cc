#include "runtime/gpu/matmul_choices.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <climits>
#include <limits>
#include <memory>
#include <optional>
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

using gpu::ExpertsForm;
using gpu::ExpertsSizes;
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

Json ToJson(const ExpertsSizes& sizes, ExpertsForm form) {
  return {{"experts", sizes.experts}, {"width", sizes.width}, {"inner", sizes.inner},
          {"rows", sizes.most_rows},  {"pairs", form.pairs},  {"boxes", form.boxes}};
}

ExpertsSizes SizesFrom(const JsonCursor& experts) {
  experts.Keys("a layer's experts (an object)",
               {"experts", "width", "inner", "rows", "pairs", "boxes"});
  const auto size = [&](const char* key) {
    return static_cast<int>(experts.Required(key).Integer("a size", 1, INT_MAX));
  };
  return {size("experts"), size("width"), size("inner"), size("rows")};
}

ExpertsForm FormFrom(const JsonCursor& experts) {
  return {.pairs = experts.Required("pairs").Boolean("a choice"),
          .boxes = experts.Required("boxes").Boolean("a choice")};
}

/// Refuses a list that is too long.
size_t SizeOf(const JsonCursor& list, const char* noun, size_t most) {
  const size_t size = list.Size(noun);
  if (size > most) list.Fail("must have at most " + std::to_string(most) + " entries");
  return size;
}

size_t Products(const MatmulFile& file) {
  size_t count = 0;
  for (const auto& [place, choices] : file) {
    count += choices.matmuls.size() + choices.experts.size();
  }
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
struct Operands {
  size_t a, b, d;

  static size_t Bytes(int rows, int columns, int batch, size_t size) {
    const size_t bytes =
        static_cast<size_t>(rows) * static_cast<size_t>(columns) * static_cast<size_t>(batch);
    return (bytes * size + 255) / 256 * 256;
  }
  explicit Operands(const MatmulShape& s)
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
  for (const MatmulShape& shape : shapes) most = std::max(most, Operands(shape).all());
  const ProductTimer timer(most, gpu, stream);
  const std::shared_ptr<std::byte> work = gpu.NewDeviceMemory(gpu::Matmuls::kWorkBytes);
  for (const MatmulShape& shape : shapes) {
    const Operands operands(shape);
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

/// The form in which F, B and W of a layer's experts together take least, on rows that are spread
/// evenly.
ExpertsForm ChooseForm(const ExpertsSizes& sizes, int rows, Gpu& gpu, gpu::Stream stream) {
  const auto bytes = [](size_t value, int count, int width, int parts) {
    return (value * static_cast<size_t>(count) * static_cast<size_t>(width) *
                static_cast<size_t>(parts) +
            255) /
           256 * 256;
  };
  const size_t bf16 = sizeof(gpu::Bf16);
  const int experts = sizes.experts * sizes.width;
  const std::array<size_t, 11> parts = {
      bytes(sizeof(int32_t), sizes.experts + 1, 1, 1),
      bytes(bf16, experts, sizes.inner, 2),           // gate_up
      bytes(bf16, experts, sizes.inner, 1),           // down
      bytes(sizeof(float), experts, sizes.inner, 2),  // their gradients
      bytes(sizeof(float), experts, sizes.inner, 1),
      bytes(bf16, sizes.most_rows, sizes.width, 1),   // x; dx
      bytes(bf16, sizes.most_rows, sizes.inner, 2),   // gate_up_out
      bytes(bf16, sizes.most_rows, sizes.inner, 1),   // hidden
      bytes(bf16, sizes.most_rows, sizes.width, 1),   // y
      bytes(bf16, sizes.most_rows, sizes.width, 1),   // dy
      bytes(bf16, sizes.most_rows, sizes.inner, 2)};  // dgate_up_out
  std::array<size_t, 12> at = {};
  for (size_t i = 0; i < parts.size(); ++i) at[i + 1] = at[i] + parts[i];
  const ProductTimer timer(at.back(), gpu, stream);
  const auto values = [&](size_t i) {
    return reinterpret_cast<gpu::Bf16*>(timer.memory() + at[i]);
  };
  const auto gradient = [&](size_t i) { return reinterpret_cast<float*>(timer.memory() + at[i]); };
  std::vector<int32_t> ends;
  for (int64_t e = 0; e <= sizes.experts; ++e) {
    ends.push_back(static_cast<int32_t>(rows * e / sizes.experts));
  }
  auto* const first = reinterpret_cast<int32_t*>(timer.memory());
  gpu.CopyToDevice(stream, first, ends.data(), ends.size() * sizeof(int32_t));
  std::vector<uint64_t> times;
  std::vector<ExpertsForm> forms;
  for (const bool pairs : {false, true}) {
    for (const bool boxes : {false, true}) {
      const ExpertsForm form = forms.emplace_back(ExpertsForm{pairs, boxes});
      times.push_back(timer.Time(1, [&] {
        gpu::ExpertsForward(stream, sizes, first, values(5), values(1), values(2), values(6),
                            values(7), values(8), form);
        gpu::ExpertsBackwardInput(stream, sizes, first, values(1), values(2), values(6), values(9),
                                  values(10), values(8), form);
        gpu::ExpertsBackwardWeight(stream, sizes, first, values(5), values(7), values(10),
                                   values(9), gradient(3), gradient(4), form);
      }));
    }
  }
  return forms[FastestOf(times)];
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
    at.Keys("a place (an object)", {"gpu", "library", "sms", "products", "experts"});
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
      if (!entry->second.matmuls.emplace(shape, algorithm).second) product.Fail("is there twice");
    }
    const std::optional<JsonCursor> experts = at.Optional("experts");
    const size_t layers = experts ? SizeOf(*experts, "experts (an array)", kMostProducts) : 0;
    for (size_t j = 0; j < layers; ++j) {
      const JsonCursor layer = experts->Item(j);
      const ExpertsSizes sizes = SizesFrom(layer);
      if (!entry->second.experts.emplace(sizes, FormFrom(layer)).second) {
        layer.Fail("is there twice");
      }
    }
  }
  return file;
}

std::string WriteMatmulFile(const MatmulFile& file) {
  Json places = Json::array();
  for (const auto& [place, choices] : file) {
    Json products = Json::array();
    for (const auto& [shape, algorithm] : choices.matmuls) {
      products.push_back(ToJson(shape, algorithm));
    }
    Json experts = Json::array();
    for (const auto& [sizes, form] : choices.experts) experts.push_back(ToJson(sizes, form));
    places.push_back({{"gpu", place.gpu},
                      {"library", place.library},
                      {"sms", place.sms},
                      {"products", std::move(products)}});
    if (!experts.empty()) places.back()["experts"] = std::move(experts);
  }
  const Json document = {{"format", kFormat}, {"version", kVersion}, {"places", std::move(places)}};
  std::string text;
  WriteJson(document, &text);
  return text + "\n";
}

// The forms of experts all give the same bits.
std::string DigestOf(const MatmulChoices& choices) {
  if (choices.matmuls.empty()) return "";
  return Hex(Sha256(WriteMatmulFile({{MatmulPlace(), {choices.matmuls, {}}}})));
}

size_t FastestOf(std::span<const uint64_t> times) {
  return static_cast<size_t>(std::min_element(times.begin(), times.end()) - times.begin());
}

MatmulChoices ChooseMatmuls(const std::string& path, const TrainingProducts& products, Gpu& gpu,
                            gpu::Stream stream, int sms, const std::function<void()>& moves) {
  MatmulFile file;
  if (FileSize(path) >= 0) file = ParseMatmulFile(ReadFile(path, JsonLimits{}.bytes), path);
  MatmulChoices& known = file[{gpu.name(), gpu::Matmuls::Library(), sms}];
  MatmulChoices choices;
  std::vector<MatmulShape> missing;
  gpu::Matmuls matmuls(sms);
  for (const MatmulShape& shape : products.matmuls) {
    const auto found = known.matmuls.find(shape);
    if (found == known.matmuls.end()) {
      if (std::ranges::find(missing, shape) == missing.end()) missing.push_back(shape);
      continue;
    }
    try {
      matmuls.Prepare(shape, found->second);
    } catch (const gpu::GpuError& error) {
      throw Error(path + ": " + error.what() + "; remove the file to have it made anew");
    }
    choices.matmuls.insert(*found);
  }
  const auto form = known.experts.find(products.experts);
  if (form != known.experts.end()) choices.experts.insert(*form);
  if (missing.empty() && !choices.experts.empty()) return choices;
  if (!missing.empty()) {
    ChooseAlgorithms(missing, gpu, stream, sms, [&](const auto& shape, const auto& algorithm) {
      choices.matmuls[shape] = known.matmuls[shape] = algorithm;
      if (moves) moves();
    });
  }
  if (choices.experts.empty()) {
    stream.sms = sms;  // as the lane that computes
    choices.experts[products.experts] = known.experts[products.experts] =
        ChooseForm(products.experts, products.expert_rows, gpu, stream);
    if (moves) moves();
  }
  if (file.size() > kMostPlaces || Products(file) > kMostProducts) {
    throw Error(path + ": has more than " + std::to_string(kMostProducts) + " products or " +
                std::to_string(kMostPlaces) + " places; name another file");
  }
  WriteFile(path, WriteMatmulFile(file));
  return choices;
}

MatmulChoices ChooseMatmulsForAll(const std::string& path, const TrainingProducts& products,
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
