#include "tools/report/comparison.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "compiler/files/plan_document.h"
#include "compiler/plan/layer_cost.h"
#include "compiler/plan/memory_limit.h"
#include "schedules/compile.h"
#include "schedules/published/rows.h"
#include "schedules/search/portfolio.h"
#include "tools/cli/exit.h"
#include "tools/report/report.h"
#include "tools/report/text.h"

namespace contraflow {
namespace {

double Number(int64_t amount) { return static_cast<double>(amount); }

/// A column to sort by, under its name in the table.
struct SortKey {
  std::string_view name;
  double (*of)(const CompareRow&);
};
constexpr SortKey kSortKeys[] = {
    {"step", [](const CompareRow& row) { return Number(row.makespan()); }},
    {"makespan", [](const CompareRow& row) { return Number(row.makespan()); }},
    {"bubble", [](const CompareRow& row) { return Number(row.report->largest_bubble()); }},
    {"ratio", [](const CompareRow& row) { return row.report->simulation.bubble_ratio(); }},
    {"gap", [](const CompareRow& row) { return row.report->gap(); }},
    {"memory", [](const CompareRow& row) { return row.memory; }},
    {"total", [](const CompareRow& row) { return Number(row.total.value_or(0)); }}};

/// A field of CSV (RFC 4180).
std::string Field(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

std::string Optional(const std::optional<int64_t>& value) {
  return value ? std::to_string(*value) : "";
}

/// True if the costs know how long gradient sums or the optimizer take.
bool PricesUpdate(const CostModel& costs) {
  return HasEpilogue(costs) || std::ranges::any_of(costs.layers, [](const LayerCost& layer) {
           return layer.cost.reduce > 0 || layer.cost.step > 0;
         });
}

/// Returns how a rank's devices split the model; nothing: not known.
std::optional<Parallel> KnownParallel(const Spec& spec) {
  const bool known = spec.costs.parallel || spec.expert_parallel;
  return known ? std::optional(ParallelOf(spec)) : std::nullopt;
}

}  // namespace

std::string NameOf(const CompareRow& row) {
  if (row.provenance) return row.schedule + " (" + row.provenance->placement + ")";
  // With Spec::target, `auto` is the best schedule that the target runs.
  const bool other = row.report && row.report->schedule != row.schedule;
  return row.schedule + (other ? " (" + row.report->schedule + ")" : "");
}

void SortRows(const std::string& column, std::vector<CompareRow>* rows) {
  const auto key = std::ranges::find(kSortKeys, column, &SortKey::name);
  if (key == std::end(kSortKeys)) {
    throw UsageError("`sort`: must be step, bubble, ratio, gap, memory or total, is \"" +
                     column.substr(0, 64) + "\"");
  }
  const auto known = [](const CompareRow& row) { return row.report && row.total; };
  if (column == "total" && !rows->empty() && std::ranges::none_of(*rows, known)) {
    throw UsageError(
        "`sort` total: the costs do not say what ranks hold beside activations; give "
        "costs with \"parameter_bytes\", or `sort` memory");
  }
  std::ranges::stable_sort(*rows, {}, [&](const CompareRow& row) {
    return std::pair(!row.report, row.report ? key->of(row) : 0);
  });
}

std::string FormatMultiple(double value) {
  // Halves up, as the pages round: 1.125 is 1.13x.
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.2fx", std::round(100 * value) / 100);
  return buffer;
}

std::string AdviceLines(const Advice& advice) {
  if (advice.price == 0) return WithFlags(advice.text) + ".\n";
  return advice.text.substr(0, advice.price - 1) + "\n  " + advice.text.substr(advice.price) +
         ".\n";
}

bool ListsUnlikeStages(const CostModel& costs) {
  return std::ranges::adjacent_find(costs.stages, std::not_equal_to()) != costs.stages.end();
}

std::string ComparedHead(const CompareRequest& request, bool costs_given, bool one) {
  const Spec& spec = request.spec;
  std::string text = DescribeDevices(spec.ranks, KnownParallel(spec), spec.data_parallel);
  if (one) text += ", " + Counted(spec.microbatches, "micro-batch");
  if (request.global_batch > 0) {
    text += ", " + Counted(request.global_batch, "sample") + " a step";
    if (one) text += ", " + FormatCount(request.samples) + " a micro-batch";
  }
  text += "\n" + DescribeCostsUsed(spec.costs, costs_given) + "\n";
  if (ListsUnlikeStages(spec.costs)) {
    text +=
        "stages: a schedule with more of them cuts each of these into equal parts; list layers "
        "where\n"
        "  one cannot be cut, such as a head\n";
  }
  if (spec.data_parallel > 1 && !PricesUpdate(spec.costs)) {
    text +=
        "makespans are without gradient sums and optimizer: the costs have no reduce and step\n";
  }
  const std::vector<int64_t> devices = DevicesOf(spec);
  if (request.assumed_limit) {
    text +=
        "memory: no limit is known, so as much as 1F1B holds (1x); --memory-limit none lifts it\n";
  } else if (!request.memory_limit.empty()) {
    text += "memory: at most " + request.memory_limit;
    if (CountsBytes(spec.costs)) {
      Spec first = spec;
      first.schedule = kOneFOneB.name;
      const int64_t limit = MemoryLimitOf(first, request.memory_limit, request.held_by_1f1b);
      text += ", " + FormatBytes(limit) + " of activations on a rank";
    }
    text += "\n";
  }
  if (!devices.empty()) {
    const auto [low, high] = std::ranges::minmax(devices);
    const bool gpu = spec.costs.gpu && high == spec.costs.gpu->memory_bytes.value_or(0);
    text += "memory: " + FormatBytes(low) +
            (high == low ? " on each device" : " on the smallest device") +
            (gpu ? ", " + spec.costs.gpu->name : "") + "\n";
  }
  return text;
}

Json RowToJson(const CompareRow& row, const CompareRequest& request) {
  if (!row.report) {
    return {{"schedule", row.schedule}, {"rejected", WithFlags(row.rejected)}};
  }
  Json object = ReportToJson(*row.report);
  object["stages"] = row.stages;
  object["messages"] = row.messages;
  if (row.message_bytes) object["message_bytes"] = *row.message_bytes;
  if (row.parameters) object["parameter_bytes"] = *row.parameters;
  if (row.total) object["total_bytes"] = *row.total;
  object["memory_of_1f1b"] = row.memory;
  if (!DevicesOf(request.spec).empty() || !request.memory_limit.empty()) object["fits"] = row.fits;
  if (row.provenance) {
    object["placement"] = row.provenance->placement;
    object["from"] = row.provenance->from;
  }
  if (request.recomputes()) object["recomputed_stages"] = row.recomputed;
  if (!request.components) return object;
  object["overlap"] = Name(request.overlap());
  object["exposed"] = TimeToJson(row.report->largest_exposed(), row.report->unit);
  if (row.published) {
    const Report& published = *row.published;
    object["published_makespan"] = TimeToJson(published.simulation.makespan, published.unit);
    object["published_peak_activations"] = published.peak_activations();
    object["published_peak_bytes"] = published.peak_bytes();
  }
  return object;
}

Json ComparisonToJson(const CompareRequest& request, std::span<const CompareRow> rows) {
  Json array = Json::array();
  for (const CompareRow& row : rows) array.push_back(RowToJson(row, request));
  const Advice advice = Advise(rows);
  Json take = Json::object();
  if (advice.row != nullptr) take["schedule"] = advice.schedule;
  if (advice.row != nullptr && advice.row->provenance) {
    take["placement"] = advice.row->provenance->placement;
  }
  take["text"] = WithFlags(advice.text);
  Json object = Json::object();
  if (!request.memory_limit.empty()) object["memory_limit"] = request.memory_limit;
  if (const std::optional<Parallel> parallel = KnownParallel(request.spec)) {
    object["gpus"] = int64_t{request.spec.ranks} * parallel->devices() * request.spec.data_parallel;
  }
  if (request.global_batch > 0) {
    object["global_batch"] = request.global_batch;
    object["samples_per_microbatch"] = request.samples;
  }
  object["rows"] = std::move(array);
  object["advice"] = std::move(take);
  return object;
}

std::string ComparisonCsvHeader() {
  return "microbatches,memory_limit,schedule,placement,stages,advised,unit,makespan,"
         "span,bubble_ratio,lower_bound,gap,peak_activations,peak_bytes,parameter_bytes,"
         "total_bytes,fits,messages,message_bytes,stages_recomputed,rejected,memory_of_1f1b\n";
}

std::string ComparisonCsv(const CompareRequest& request, std::span<const CompareRow> rows) {
  const Advice advice = Advise(rows);
  std::string text;
  for (const CompareRow& row : rows) {
    text += std::to_string(request.spec.microbatches) + "," + Field(request.memory_limit) + "," +
            row.schedule + "," + (row.provenance ? row.provenance->placement : "") + "," +
            std::to_string(row.stages) + "," + (&row == advice.row ? "1" : "0") + ",";
    if (!row.report) {
      text += ",,,,,,,,,,,,,," + Field(WithFlags(row.rejected)) + ",\n";
      continue;
    }
    const Report& report = *row.report;
    const auto time = [&](Time ticks) { return FormatTime(ticks, report.unit) + ","; };
    text += std::string(Name(report.unit)) + "," + time(row.makespan()) +
            time(report.simulation.span) + FormatReal(report.simulation.bubble_ratio()) + "," +
            time(report.bound.value) + FormatReal(report.gap()) + "," +
            std::to_string(report.peak_activations()) + "," + std::to_string(report.peak_bytes()) +
            "," + Optional(row.parameters) + "," + Optional(row.total) + "," +
            (row.fits ? "1" : "0") + "," + std::to_string(row.messages) + "," +
            Optional(row.message_bytes) + "," + std::to_string(row.recomputed.size()) + ",," +
            FormatReal(row.memory) + "\n";
  }
  return text;
}

}  // namespace contraflow
