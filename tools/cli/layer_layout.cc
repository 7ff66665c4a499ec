#include "tools/cli/layer_layout.h"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <optional>
#include <utility>

#include "compiler/plan/error.h"
#include "compiler/plan/layer_cost.h"

namespace contraflow {
namespace {

constexpr std::string_view kLetters = "EtmL";
/// Longest text that repeats may make.
constexpr size_t kMostLetters = size_t{kMaxStages} + kMaxModelLayers;

[[noreturn]] void FailLayout(const std::string& what) { throw Error("`partition`: " + what); }

/// The number after a "*" at `at`, which goes after it; nothing where there is none.
std::optional<size_t> TakeTimes(std::string_view text, size_t* at) {
  if (*at >= text.size() || text[*at] != '*') return std::nullopt;
  const size_t begin = *at + 1;
  const size_t end = std::min(text.find_first_not_of("0123456789", begin), text.size());
  if (begin == end) return std::nullopt;
  size_t times = kMostLetters + 1;
  std::from_chars(text.data() + begin, text.data() + end, times);
  *at = end;
  return times;
}

void AppendTimes(std::string_view unit, size_t times, std::string* out) {
  if (!unit.empty() && times > (kMostLetters - out->size()) / unit.size()) {
    FailLayout("the layout has more than " + std::to_string(kMostLetters) + " layers and stages");
  }
  for (size_t i = 0; i < times; ++i) *out += unit;
}

/// (..)*n as often as it says. A text with no repeat after it stays.
std::string WithoutGroups(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t close = text[at] == '(' ? text.find(')', at) : std::string_view::npos;
    size_t next = close == std::string_view::npos ? close : close + 1;
    const std::optional<size_t> times =
        close == std::string_view::npos || close == at + 1 ? std::nullopt : TakeTimes(text, &next);
    if (times) {
      AppendTimes(text.substr(at + 1, close - at - 1), *times, &out);
      at = next;
    } else {
      AppendTimes(text.substr(at++, 1), 1, &out);
    }
  }
  return out;
}

std::string WithoutRepeats(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    size_t next = at + 1;
    const std::optional<size_t> times = TakeTimes(text, &next);
    AppendTimes(text.substr(at, 1), times.value_or(1), &out);
    at = next;
  }
  return out;
}

/// "tt" or "t*3"
std::string StageText(const std::string& stage) {
  std::string text;
  for (size_t begin = 0; begin < stage.size();) {
    const size_t end = std::min(stage.find_first_not_of(stage[begin], begin), stage.size());
    const size_t count = end - begin;
    text += count < 3 ? stage.substr(begin, count) : stage[begin] + ("*" + std::to_string(count));
    begin = end;
  }
  return text;
}

std::string JoinedLayers(const LayerLayout& layout) {
  return std::accumulate(layout.begin(), layout.end(), std::string());
}

std::string CountedLayers(const std::string& layers, char letter, const char* noun) {
  const auto count = std::count(layers.begin(), layers.end(), letter);
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

char LetterOfLayer(std::string_view name) {
  if (name.starts_with("embed") || name == "tok_embeddings") return 'E';
  if (name == "head" || name == "lm_head" || name == "output" || name == "loss") return 'L';
  return name.starts_with("mtp") ? 'm' : 't';
}

std::vector<NamedLayers> NamesOf(const CostModel& costs) {
  std::vector<NamedLayers> names;
  for (const LayerCost& layer : costs.layers) names.push_back({layer.name, layer.repeat});
  return names;
}

/// Reads Python's lists of the layers of each stage.
class ListReader {
 public:
  explicit ListReader(std::string_view text) : text_(text) {}

  LayerLayout Read() {
    LayerLayout layout = Sum<LayerLayout>([&](LayerLayout* list) {
      list->push_back(Sum<std::string>([&](std::string* stage) { *stage += Name(); }));
    });
    if (Next() != '\0') Fail("nothing may come after the lists");
    if (layout.empty()) Fail("there must be a stage");
    return layout;
  }

 private:
  [[noreturn]] void Fail(const std::string& what) const {
    FailLayout("the layout's lists are wrong at byte " + std::to_string(at_) + ": " + what +
               ", as in [[\"embedding\"] + [\"decoder\"] * 7, [\"decoder\", \"mtp\", \"loss\"]]");
  }

  /// The next character that is no blank; at the end a NUL.
  char Next() {
    at_ = std::min(text_.find_first_not_of(" \t\r\n", at_), text_.size());
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool Take(char c) {
    if (Next() != c) return false;
    ++at_;
    return true;
  }

  /// Lists with a + between them, each perhaps with * n after it; `item` adds an item to one.
  template <typename List, typename Item>
  List Sum(const Item& item) {
    List sum;
    do {
      if (!Take('[')) Fail("a list must be here");
      List list;
      while (Next() != ']') {
        item(&list);
        if (!Take(',') && Next() != ']') Fail("a comma or ] must be here");
      }
      ++at_;
      for (size_t times = Times(); times > 0; --times) {
        sum.insert(sum.end(), list.begin(), list.end());
        made_ += SizeOf(list);
        if (made_ > 2 * kMostLetters) Fail("there are too many layers");
      }
    } while (Take('+'));
    return sum;
  }
  static size_t SizeOf(const std::string& stage) { return 1 + stage.size(); }
  static size_t SizeOf(const LayerLayout& layout) { return 1 + JoinedLayers(layout).size(); }

  /// The number after a *, 1 without one.
  size_t Times() {
    size_t times = 1;
    if (!Take('*')) return times;
    Next();
    const char* const end = text_.data() + text_.size();
    const auto [after, error] = std::from_chars(text_.data() + at_, end, times);
    if (error != std::errc()) Fail("a number must follow *");
    at_ = static_cast<size_t>(after - text_.data());
    return times;
  }

  /// The letter of a layer's name in quotes.
  char Name() {
    const char quote = Next();
    const size_t end =
        quote == '"' || quote == '\'' ? text_.find(quote, at_ + 1) : std::string_view::npos;
    if (end == std::string_view::npos) Fail("a layer's name in quotes must be here");
    const std::string_view name = text_.substr(at_ + 1, end - at_ - 1);
    constexpr std::pair<std::string_view, char> kNames[] = {
        {"embedding", 'E'}, {"decoder", 't'}, {"mtp", 'm'}, {"loss", 'L'}};
    for (const auto& [known, letter] : kNames) {
      if (name != known) continue;
      at_ = end + 1;
      return letter;
    }
    Fail("a layer must be embedding, decoder, mtp or loss");
  }

  const std::string_view text_;
  size_t at_ = 0, made_ = 0;
};

}  // namespace

bool IsLayerLayout(std::string_view text) {
  return text.find_first_of("E|[") != std::string_view::npos;
}

LayerLayout ParseLayerLayout(std::string_view text) {
  if (text.find('[') != std::string_view::npos) return ListReader(text).Read();
  std::string plain;
  for (const char c : text.substr(0, kMostLetters + 1)) {
    if (c != ',') plain += c;
  }
  LayerLayout layout(1);
  for (const char c : WithoutRepeats(WithoutGroups(plain))) {
    if (c == '|') {
      layout.emplace_back();
    } else if (kLetters.find(c) != std::string_view::npos) {
      layout.back() += c;
    } else {
      FailLayout(
          "the layout has a '" + std::string(c >= ' ' && c <= '~' ? 1 : 0, c) +
          "' where a layer (E, t, m or L) or a | between stages must be; repeats are x*n and "
          "(..)*n, as in \"Et*3|(tt|)*29,m|L\"");
    }
  }
  return layout;
}

std::string FormatLayerLayout(const LayerLayout& layout) {
  std::string text;
  for (size_t i = 0; i < layout.size();) {
    const std::string stage = StageText(layout[i]);
    // Equal stages, each with the bar after it; the last stage has none.
    size_t end = i;
    while (end + 1 < layout.size() && layout[end] == layout[i]) ++end;
    if (end - i < 3) {
      text += stage + (i + 1 < layout.size() ? "|" : "");
      ++i;
    } else {
      text += "(" + stage + "|)*" + std::to_string(end - i);
      i = end;
    }
  }
  return text;
}

std::string FlawOf(const LayerLayout& layout, int ranks) {
  const std::string layers = JoinedLayers(layout);
  const size_t stages = layout.size(), per_rank = stages / static_cast<size_t>(ranks);
  if (stages % static_cast<size_t>(ranks) != 0) {
    return std::to_string(stages) + " stages are not equally many on each of " +
           std::to_string(ranks) + " ranks";
  }
  if (ranks == 1 && per_rank > 1) {
    return "it has chunks (" + std::to_string(per_rank) + ") on more than one rank only";
  }
  if (!layers.starts_with('E') || std::count(layers.begin(), layers.end(), 'E') != 1) {
    return "its layers must begin with the embedding and have it once";
  }
  if (!layers.ends_with('L') || std::count(layers.begin(), layers.end(), 'L') != 1) {
    return "its layers must end with the head and have it once";
  }
  const size_t first = layers.find('m');
  if (first == std::string::npos) return "";
  if (layers.find('t', first) != std::string::npos) {
    return "a transformer layer stands after one of multi-token prediction";
  }
  const auto has = [](const std::string& stage) { return stage.find('m') != std::string::npos; };
  if (std::count_if(layout.begin(), layout.end(), has) != 1) {
    return "the layers of multi-token prediction must be in one stage";
  }
  const auto stage =
      static_cast<size_t>(std::find_if(layout.begin(), layout.end(), has) - layout.begin());
  if (stage < stages - static_cast<size_t>(ranks)) {
    return "the layer of multi-token prediction must be in the last chunk of its rank, and is in "
           "stage " +
           std::to_string(stage);
  }
  return "";
}

std::string LettersOf(const std::vector<NamedLayers>& layers) {
  std::string letters;
  for (const NamedLayers& run : layers) {
    letters.append(static_cast<size_t>(run.repeat), LetterOfLayer(run.name));
  }
  return letters;
}

LayerLayout LayoutOf(const Plan& plan) {
  if (!plan.costs || plan.costs->partition.empty()) return {};
  const std::string letters = LettersOf(plan.costs->partition_of);
  const Partition& partition = plan.costs->partition;
  if (std::cmp_not_equal(letters.size(),
                         std::accumulate(partition.begin(), partition.end(), int64_t{0}))) {
    return {};
  }
  LayerLayout layout;
  size_t first = 0;
  for (const int layers : partition) {
    layout.push_back(letters.substr(first, static_cast<size_t>(layers)));
    first += static_cast<size_t>(layers);
  }
  if (letters.find('E') == std::string::npos) layout.front().insert(0, 1, 'E');
  if (letters.find('L') == std::string::npos) layout.back() += 'L';
  return layout;
}

Partition PartitionOf(const LayerLayout& layout, const CostModel& costs) {
  if (costs.layers.empty()) {
    FailLayout(
        "says what layers each stage has, and these costs are of stages; give costs with "
        "\"layers\"");
  }
  const std::string layers = LettersOf(NamesOf(costs));
  const auto has = [](const std::string& text, char c) {
    return text.find(c) != std::string::npos;
  };
  std::string wanted;  // the layers of the layout that the costs may have
  Partition partition;
  for (const std::string& stage : layout) {
    int count = 0;
    for (const char c : stage) {
      if ((c == 'E' || c == 'L') && !has(layers, c)) continue;
      wanted += c;
      ++count;
    }
    partition.push_back(count);
  }
  for (size_t stage = 0; stage < partition.size(); ++stage) {
    if (partition[stage] > 0) continue;
    const std::string& ends = layout[stage];
    FailLayout("stage " + std::to_string(stage) +
               " of the layout has no layer of the costs; every stage needs one" +
               (ends.empty() ? ""
                             : std::string("; give the costs a layer \"") +
                                   (ends.front() == 'E' ? "embedding" : "head") + "\" for it"));
  }
  for (const auto& [letter, noun] : {std::pair{'t', "transformer layer"}, {'m', "MTP layer"}}) {
    const auto count = [&, c = letter](const std::string& text) {
      return std::count(text.begin(), text.end(), c);
    };
    if (count(wanted) == count(layers)) continue;
    FailLayout("the layout has " + CountedLayers(wanted, letter, noun) + " (" + letter +
               "), the costs have " + std::to_string(count(layers)));
  }
  if (wanted != layers) {
    FailLayout("the layout has its layers in another order than the costs, E t.. m.. L against " +
               layers.substr(0, 40));
  }
  return partition;
}

}  // namespace contraflow
