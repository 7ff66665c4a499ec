#include "tools/report/guard.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "compiler/files/json_builder.h"
#include "compiler/plan/error.h"
#include "compiler/plan/memory_limit.h"
#include "compiler/plan/spec.h"
#include "compiler/plan/text.h"
#include "schedules/report.h"
#include "tools/cli/exit.h"
#include "tools/report/report.h"
#include "tools/report/text.h"

namespace contraflow {
namespace {

/// The limits that are times, and those that are shares, by their names in files.
template <typename Figure>
struct NamedLimit {
  const char* name;
  std::optional<Figure> Limits::*field;
};
constexpr NamedLimit<GivenTime> kTimes[] = {{"max_bubble", &Limits::max_bubble},
                                            {"max_makespan", &Limits::max_makespan},
                                            {"max_exposed", &Limits::max_exposed}};
constexpr NamedLimit<double> kShares[] = {{"max_bubble_ratio", &Limits::max_bubble_ratio},
                                          {"max_gap", &Limits::max_gap},
                                          {"max_memory", &Limits::max_memory}};

/// A number, or text such as "10%".
double ReadShare(const JsonCursor& field) {
  if (!field.IsString()) return field.Number("a number", 0, 1e300);
  const std::string& text = field.String("a share", 64);
  double percent = -1;
  const auto [at, error] = std::from_chars(text.data(), text.data() + text.size(), percent);
  const bool read = error == std::errc() && percent >= 0 && std::string_view(at) == "%";
  if (!read) field.Fail("must be a number, or a share such as \"10%\"");
  return percent / 100;
}

Limits LimitsOf(const JsonCursor& object) {
  Limits limits;
  for (const auto& share : kShares) {
    const auto value = object.Optional(share.name);
    if (!value) continue;
    const bool multiple = share.field == &Limits::max_memory && value->IsString();
    limits.*share.field =
        multiple ? value->Checked([&] { return ParseMultiple(value->String("a multiple", 64)); })
                 : ReadShare(*value);
  }
  for (const auto& time : kTimes) {
    const auto value = object.Optional(time.name);
    if (!value) continue;
    limits.*time.field =
        value->IsString()
            ? value->Checked([&] { return ParseGivenTime(value->String("a time", 64)); })
            : GivenTime(value->Number("a number", 0, 1e300));
  }
  if (const auto value = object.Optional("max_activations")) {
    limits.max_activations = value->Integer("a whole number", 0, int64_t{1} << 40);
  }
  if (const auto value = object.Optional("max_bytes")) {
    limits.max_bytes =
        value->IsString()
            ? value->Checked([&] { return ParseBytes(value->String("bytes", 64), "bytes"); })
            : value->Integer("bytes", 1, int64_t{1} << 62);
  }
  if (const auto value = object.Optional("formula")) limits.formula = value->Boolean("true");
  return limits;
}

/// Without "." and "..", and without a slash at the end.
std::string NormalPath(const std::string& path) {
  std::string normal = std::filesystem::path(path).lexically_normal().string();
  while (normal.size() > 1 && normal.ends_with('/')) normal.pop_back();
  return normal;
}

/// From the root on; "-" is no path.
std::string WholePath(const std::string& path) {
  std::error_code unknown;
  const std::filesystem::path whole = std::filesystem::absolute(path, unknown);
  return path == "-" || unknown ? path : NormalPath(whole.string());
}

constexpr std::string_view kKeys[] = {
    "max_bubble",      "max_bubble_ratio", "max_makespan", "max_exposed", "max_gap",
    "max_activations", "max_bytes",        "max_memory",   "formula",     "plans"};

/// Makes the results of one plan.
class Judgement {
 public:
  Judgement(const Plan& plan, const CostModel& costs, const Limits& limits, const std::string& path)
      : plan_(plan),
        costs_(costs),
        limits_(limits),
        path_(path),
        report_(MakeReport(plan, costs, std::nullopt, Keep::kFigures)),
        unit_(report_.unit == Unit::kUnit ? "" : " " + std::string(Name(report_.unit))) {}

  std::vector<LimitResult> Results() {
    Times("max_bubble", limits_.max_bubble, plan_.layers > 0 ? "compute idle" : "bubble",
          report_.largest_bubble(), Where(&RankFigures::bubble));
    Ratio("max_bubble_ratio", limits_.max_bubble_ratio, IdleTitle(plan_.layers > 0),
          report_.simulation.bubble_ratio(), 1);
    Times("max_makespan", limits_.max_makespan, "makespan", report_.simulation.makespan, "");
    if (limits_.max_exposed && plan_.layers == 0) {
      throw Error("`max_exposed`: " + path_ +
                  " has no components, so no all-to-all is known; compile it with `level` "
                  "component");
    }
    Times("max_exposed", limits_.max_exposed, "exposed all-to-all", report_.largest_exposed(),
          Where(&RankFigures::exposed));
    Ratio("max_gap", limits_.max_gap, "gap to the lower bound", report_.gap(), 1e300);
    if (limits_.max_activations) {
      Count("max_activations", *limits_.max_activations, "activations", report_.peak_activations(),
            Where(&RankFigures::peak_activations));
    }
    if (limits_.max_bytes) Bytes();
    Ratio("max_memory", limits_.max_memory, "memory",
          MemoryOf1F1B(plan_, costs_, report_.simulation), 1e300, 1, "x of 1F1B's", "x");
    if (limits_.formula) Formula();
    return std::move(results_);
  }

 private:
  /// " on rank 3" of the rank with the largest `figure`.
  template <typename Figure>
  std::string Where(Figure figure) const {
    const auto& ranks = report_.simulation.ranks;
    return " on rank " +
           std::to_string(std::ranges::max_element(ranks, {}, figure) - ranks.begin());
  }

  std::string Exactly(Time ticks) const { return FormatTime(ticks, report_.unit) + unit_; }

  /// A figure and its limit, each as text.
  using Pair = std::pair<std::string, std::string>;

  /// The short texts, or the exact ones where those read alike.
  static Pair Apart(Pair brief, Pair exact) {
    return brief.first == brief.second ? std::move(exact) : std::move(brief);
  }

  void Put(const char* limit, double value, double bound, bool broken, const std::string& what,
           const Pair& texts, const std::string& where, const char* exceeds = " exceeds") {
    const std::string is = what + " " + texts.first + where;
    results_.push_back({limit, broken ? is + exceeds + " the limit " + texts.second : "", value,
                        bound, is + ", at most " + texts.second});
  }

  void Times(const char* limit, const std::optional<GivenTime>& given, const std::string& what,
             Time value, const std::string& where) {
    if (!given) return;
    const Time bound = ToTicks(*given, report_.unit, FieldOf(limit));
    const Pair exact = {Exactly(value), Exactly(bound)};
    const auto brief = [&](Time time) { return FormatWithUnit(time, report_.unit); };
    Put(limit, FromTicks(value, report_.unit), FromTicks(bound, report_.unit), value > bound, what,
        report_.unit == Unit::kUnit ? exact : Apart({brief(value), brief(bound)}, exact), where);
  }

  void Ratio(const char* limit, std::optional<double> bound, const std::string& what, double value,
             double most, double scale = 100, const std::string& unit = " %",
             const std::string& unit_of_limit = " %") {
    if (!bound) return;
    if (!(*bound >= 0 && *bound <= most)) {
      throw UsageError(FieldOf(limit) + ": must be " +
                       (most == 1 ? "in 0..1 or as in 10%" : ">= 0") + ", is " +
                       FormatReal(*bound));
    }
    char is[32], at_most[32];
    int digits = 2;  // enough to tell both apart
    do {
      ++digits;
      std::snprintf(is, sizeof is, "%.*g", digits, scale * value);
      std::snprintf(at_most, sizeof at_most, "%.*g", digits, scale * *bound);
    } while (digits < 17 && std::string_view(is) == at_most);
    Put(limit, value, *bound, value > *bound, what, {is + unit, at_most + unit_of_limit}, "");
  }

  void Count(const char* limit, int64_t bound, const std::string& what, int64_t value,
             const std::string& where) {
    Put(limit, static_cast<double>(value), static_cast<double>(bound), value > bound, what,
        {std::to_string(value), std::to_string(bound)}, where, " exceed");
  }

  void Bytes() {
    if (plan_.level != Level::kBuffer && !MemoryLimit(costs_).bytes()) {
      throw Error(
          "`max_bytes`: the costs give no \"activation_bytes\" under \"memory\"; use "
          "`costs` with a file that does, or `max_activations`");
    }
    const auto worst = std::ranges::max_element(report_.memory, {}, &MemoryFigures::total);
    const int64_t value = worst->total(), bound = *limits_.max_bytes;
    Put("max_bytes", static_cast<double>(value), static_cast<double>(bound), value > bound,
        "memory",
        Apart({FormatBytes(value), FormatBytes(bound)},
              {std::to_string(value) + " bytes", std::to_string(bound) + " bytes"}),
        " on rank " + std::to_string(worst - report_.memory.begin()));
  }

  void Formula() {
    if (!report_.formula) {
      throw Error("`formula`: none is known for schedule \"" + plan_.schedule.substr(0, 64) +
                  (plan_.layers > 0
                       ? "\" with components (formulas are for whole cells, level comm)"
                       : "\" with these sizes and costs (formulas are for equal stages and "
                         "micro-batches)"));
    }
    const FormulaFigures& formula = *report_.formula;
    results_.push_back({"formula", formula.holds ? ""
                                                 : "formula " + std::string(formula.text) + " = " +
                                                       Exactly(formula.published) + " " +
                                                       CompareWithFormula(report_)});
  }

  const Plan& plan_;
  const CostModel& costs_;
  const Limits& limits_;
  const std::string& path_;
  const Report report_;
  const std::string unit_;  // after a time
  std::vector<LimitResult> results_;
};

/// Escapes an XML attribute and keeps its line breaks.
std::string Attribute(std::string_view text) {
  std::string escaped = EscapeMarkup(text);
  for (size_t at = 0; (at = escaped.find('\n', at)) != std::string::npos;) {
    escaped.replace(at, 1, "&#10;");
  }
  return escaped;
}

/// The value of a workflow command or, more is escaped there, of a property of one.
std::string Command(std::string_view text, bool property) {
  std::string escaped;
  for (const char c : PlainText(text)) {
    const std::string_view special = property ? "%\r\n:," : "%\r\n";
    if (special.find(c) == std::string_view::npos) {
      escaped += c;
      continue;
    }
    constexpr char kHex[] = "0123456789ABCDEF";
    const auto code = static_cast<unsigned char>(c);
    escaped += {'%', kHex[code >> 4], kHex[code & 15]};
  }
  return escaped;
}

}  // namespace

int Limits::count() const {
  int count = max_activations.has_value() + max_bytes.has_value() + formula;
  for (const auto& time : kTimes) count += (this->*time.field).has_value();
  for (const auto& share : kShares) count += (this->*share.field).has_value();
  return count;
}

Limits Limits::Over(const Limits& other) const {
  Limits both = *this;
  for (const auto& time : kTimes) {
    if (!(both.*time.field)) both.*time.field = other.*time.field;
  }
  for (const auto& share : kShares) {
    if (!(both.*share.field)) both.*share.field = other.*share.field;
  }
  if (!both.max_activations) both.max_activations = other.max_activations;
  if (!both.max_bytes) both.max_bytes = other.max_bytes;
  both.formula = both.formula || other.formula;
  return both;
}

std::vector<std::string> LimitsFile::KeysOf(const std::vector<std::string>& paths) const {
  std::vector<std::string> keys(paths.size());
  std::map<std::string, std::string> plan_of;  // of the keys that are whole paths, then of all
  const auto choose = [&](size_t i, const std::string& key, size_t length) {
    if (!keys[i].empty() && NormalPath(keys[i]).size() == length) {
      throw Error(place + ": /plans: " + keys[i] + " and " + key + " both mean " + paths[i] +
                  "; leave one out");
    }
    if (keys[i].empty() || NormalPath(keys[i]).size() < length) keys[i] = key;
  };
  for (size_t i = 0; i < paths.size(); ++i) {
    const std::string whole = WholePath(paths[i]);
    if (plans.contains(paths[i])) keys[i] = paths[i];
    for (const auto& [key, limits] : plans) {
      if (!plans.contains(paths[i]) && WholePath(key) == whole) {
        choose(i, key, NormalPath(key).size());
      }
    }
    if (!keys[i].empty()) plan_of.emplace(keys[i], whole);
  }
  const std::map<std::string, std::string> whole_paths = plan_of;
  for (size_t i = 0; i < paths.size(); ++i) {
    if (!keys[i].empty()) continue;
    const std::string whole = WholePath(paths[i]);
    for (const auto& [key, limits] : plans) {
      const std::string normal = NormalPath(key);
      if (!whole_paths.contains(key) && whole.ends_with("/" + normal)) {
        choose(i, key, normal.size());
      }
    }
    if (keys[i].empty()) continue;
    const auto [other, first] = plan_of.emplace(keys[i], whole);
    if (first || other->second == whole) continue;
    throw Error(place + ": /plans/" + keys[i] + ": several of these plans are called so; write " +
                "the path of each");
  }
  return keys;
}

Limits LimitsFile::Of(const std::string& key) const {
  const auto own = plans.find(key);
  return own == plans.end() ? all : own->second.Over(all);
}

LimitsFile ReadLimits(const std::string& text, const std::string& path) {
  if (path.ends_with(".toml")) throw Error(path + ": limits are read as JSON; write them as that");
  const JsonDocument document = ParseJson(text, path, {.members = 4096, .comments = true});
  const JsonCursor root = document.Root();
  root.Keys("limits", kKeys);
  LimitsFile file{path, LimitsOf(root), {}};
  if (const auto plans = root.Optional("plans")) {
    if (!plans->IsObject()) plans->Fail("must be an object: the path of a plan, and its limits");
    for (const auto& [plan, limits] : (*document.value)["plans"].items()) {
      const JsonCursor own(path, limits, "/plans/" + plan);
      own.Keys("limits", std::span(kKeys).first(std::size(kKeys) - 1));
      file.plans.emplace(plan, LimitsOf(own));
    }
  }
  return file;
}

bool Verdict::holds() const {
  return std::ranges::all_of(results, &std::string::empty, &LimitResult::broken);
}

std::vector<LimitResult> Judge(const Plan& plan, const CostModel& costs, const Limits& limits,
                               const std::string& path) {
  return Judgement(plan, costs, limits, path).Results();
}

Json VerdictsToJson(const std::vector<Verdict>& verdicts) {
  Json plans = Json::array();
  for (const Verdict& verdict : verdicts) {
    Json results = Json::array();
    for (const LimitResult& result : verdict.results) {
      Json row = Json::object();
      row["limit"] = result.limit;
      row["ok"] = result.broken.empty();
      if (result.value) row["value"] = *result.value;
      if (result.bound) row["bound"] = *result.bound;
      if (!result.broken.empty()) row["message"] = result.broken;
      results.push_back(std::move(row));
    }
    Json plan = Json::object();
    plan["plan"] = verdict.plan;
    plan["ok"] = verdict.holds();
    plan["limits"] = std::move(results);
    plans.push_back(std::move(plan));
  }
  Json document = Json::object();
  document["ok"] = std::ranges::all_of(verdicts, &Verdict::holds);
  document["plans"] = std::move(plans);
  return document;
}

std::string WriteJunit(const std::vector<Verdict>& verdicts) {
  const auto broken = [](const Verdict& verdict) {
    return std::ranges::count_if(verdict.results,
                                 [](const LimitResult& result) { return !result.broken.empty(); });
  };
  const auto counts = [](size_t tests, std::ptrdiff_t failures) {
    return " tests=\"" + std::to_string(tests) + "\" failures=\"" + std::to_string(failures) +
           "\" errors=\"0\"";
  };
  size_t tests = 0;
  std::ptrdiff_t failures = 0;
  std::string suites;
  for (const Verdict& verdict : verdicts) {
    tests += verdict.results.size();
    failures += broken(verdict);
    const std::string plan = Attribute(verdict.plan);
    suites += "  <testsuite name=\"" + plan + "\"" +
              counts(verdict.results.size(), broken(verdict)) + ">\n";
    for (const LimitResult& result : verdict.results) {
      suites += "    <testcase classname=\"" + plan + "\" name=\"" + result.limit + "\"";
      suites += result.broken.empty()
                    ? "/>\n"
                    : "><failure message=\"" + Attribute(result.broken) + "\"/></testcase>\n";
    }
    suites += "  </testsuite>\n";
  }
  return "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"contraflow check\"" +
         counts(tests, failures) + ">\n" + suites + "</testsuites>\n";
}

std::string WriteAnnotations(const std::vector<Verdict>& verdicts) {
  std::string lines;
  for (const Verdict& verdict : verdicts) {
    for (const LimitResult& result : verdict.results) {
      if (result.broken.empty()) continue;
      lines += "::error file=" + Command(verdict.plan, true) + ",title=contraflow check " +
               Command(result.limit, true) + "::" + Command(result.broken, false) + "\n";
    }
  }
  return lines;
}

}  // namespace contraflow
