#include "tools/pictures/page.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <utility>

#include "compiler/files/json.h"
#include "compiler/plan/error.h"
#include "compiler/simulate/idle.h"
#include "tools/report/text.h"

namespace contraflow {
namespace {

std::string_view Asset(std::string_view name) {
  const auto asset = std::find_if(kPageAssets.begin(), kPageAssets.end(),
                                  [&](const PageAsset& known) { return known.name == name; });
  CF_ASSERT(asset != kPageAssets.end());
  return asset->text;
}

/// The page's knowledge of every operation; by its number.
Json Operations() {
  constexpr const char* kWorks[] = {"compute", "send", "recv",    "component", "alltoall",
                                    "reduce",  "step", "offload", "reload"};
  Json ops = Json::array();
  for (int number = 0; number < kOpCount; ++number) {
    const auto op = static_cast<Op>(number);
    ops.push_back({{"name", Name(op)},
                   {"work", kWorks[static_cast<size_t>(WorkOf(op))]},
                   {"kind", static_cast<int>(KindOf(op))},
                   {"short", ShortName(op)}});
  }
  return ops;
}

/// Names and colours of the kinds of work, in the order of legends; colours by side, for plans with
/// one or two of them and for those with more.
Json Kinds() {
  Json kinds = Json::array();
  for (const Op kind : AllKinds()) {
    Json two = Json::array(), more = Json::array();
    for (int side = 0; side < 2; ++side) two.push_back(ColorOf(kind, side, 2));
    for (int side = 0; side < kSideColors; ++side) more.push_back(ColorOf(kind, side, kSideColors));
    kinds.push_back({{"op", static_cast<int>(kind)},
                     {"names", ShortNames(kind)},
                     {"text", Explain(kind)},
                     {"two", std::move(two)},
                     {"more", std::move(more)}});
  }
  return kinds;
}

/// Why ranks are idle, by number.
Json Causes() {
  Json causes = Json::array();
  for (int number = 0; number < kIdleCauses; ++number) {
    causes.push_back({{"name", Name(static_cast<IdleCause>(number))}});
  }
  return causes;
}

bool IsWord(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$';
}

/// A line of the script without the spaces that mean nothing, unless a text other than "this" or a
/// pattern may be in it.
void AppendSqueezed(std::string_view line, std::string* out) {
  if (line.find_first_of("'`/\\") != std::string_view::npos) {
    *out += line;
    return;
  }
  bool text = false;
  for (size_t at = 0; at < line.size(); ++at) {
    const char before = out->back(), behind = at + 1 < line.size() ? line[at + 1] : ' ';
    const bool apart = (IsWord(before) && IsWord(behind)) || before == behind;
    if (line[at] == '"') text = !text;
    if (line[at] != ' ' || text || apart) *out += line[at];
  }
}

/// The script without indentation, lines that are a comment and idle spaces: a page of a small plan
/// is little else.
std::string Script() {
  std::string out = "\n";
  for (const PageAsset& asset : kPageAssets) {
    if (!asset.name.ends_with(".js")) continue;
    for (size_t begin = 0; begin < asset.text.size();) {
      const size_t end = std::min(asset.text.find('\n', begin), asset.text.size());
      std::string_view line = asset.text.substr(begin, end - begin);
      line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
      begin = end + 1;
      if (line.empty() || line.starts_with("//")) continue;
      AppendSqueezed(line, &out);
      out += '\n';
    }
  }
  return out;
}

/// Returns page.html with values for its marks, such as {{title}}.
std::string Fill(std::span<const std::pair<std::string_view, std::string_view>> values) {
  const std::string_view page = Asset("page.html");
  std::string out;
  size_t at = 0;
  for (size_t mark = 0; (mark = page.find("{{", at)) != std::string_view::npos;) {
    const size_t end = page.find("}}", mark);
    const std::string_view name = page.substr(mark + 2, end - mark - 2);
    const auto value = std::find_if(values.begin(), values.end(),
                                    [&](const auto& known) { return known.first == name; });
    CF_ASSERT(value != values.end());
    out.append(page.substr(at, mark - at)).append(value->second);
    at = end + 2;
  }
  return out.append(page.substr(at));
}

/// The plan in one line, or the names of the first of several.
std::string TitleOf(std::span<const PagePlan> plans) {
  constexpr size_t kMostNamed = 4;
  if (plans.size() == 1) return DescribePlan(*plans[0].plan);
  std::string title;
  for (const PagePlan& plan : plans.first(std::min(plans.size(), kMostNamed))) {
    title += (title.empty() ? "" : ", ") + plan.name;
  }
  const size_t rest = plans.size() - std::min(plans.size(), kMostNamed);
  return title + (rest > 0 ? " and " + std::to_string(rest) + " more" : "");
}

}  // namespace

PagePlan PageOf(const Plan& plan, const CostModel& costs, const Report& report, std::string name) {
  return {.plan = &plan,
          .costs = &costs,
          .name = std::move(name),
          .run = &report.simulation,
          .report = &report};
}

std::string DrawPage(std::span<const PagePlan> plans, const View& view, std::string title) {
  int64_t count = 0;
  for (const PagePlan& page : plans) count += InstructionCount(*page.plan);
  if (count > kMostOnPage) {
    throw Error("the plans have " + FormatCount(count) + " instructions, a page takes at most " +
                FormatCount(kMostOnPage) +
                "; use `format` grid or svg with `rank`, `from` and `to`");
  }
  Json settings = {{"rank", view.rank}, {"from", view.from}, {"to", nullptr}};
  if (view.to) settings["to"] = *view.to;
  std::string data = "{\"view\":" + settings.dump() + ",\n\"ops\":" + Operations().dump() +
                     ",\n\"kinds\":" + Kinds().dump() + ",\n\"causes\":" + Causes().dump() +
                     ",\n\"plans\":[\n";
  for (const PagePlan& page : plans) {
    if (&page != &plans[0]) data += ",\n";
    WritePagePlan(page, &data);
  }
  data += "]}";
  const std::string script = Script();
  if (title.empty()) title = TitleOf(plans);
  title = EscapeMarkup(title);
  const std::pair<std::string_view, std::string_view> values[] = {
      {"title", title}, {"style", Asset("page.css")}, {"data", data}, {"script", script}};
  return Fill(values);
}

}  // namespace contraflow
