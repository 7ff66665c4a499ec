#include <memory>
#include <utility>

#include "tools/contraflow/advice.h"
#include "tools/contraflow/comparison_text.h"

namespace contraflow {
namespace {

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

}  // namespace

std::unique_ptr<JsonObject> RowToJson(const Row& row, const Question& question) {
  if (!row.report) {
    auto object = std::make_unique<JsonObject>();
    object->Add("schedule", {row.schedule});
    object->Add("rejected", {row.rejected});
    return object;
  }
  auto object = ReportToJson(*row.report);
  object->Add("stages", {int64_t{row.stages}});
  object->Add("same_model", {row.same_model});
  object->Add("messages", {row.messages});
  if (row.message_bytes) object->Add("message_bytes", {*row.message_bytes});
  if (row.parameters) object->Add("parameter_bytes", {*row.parameters});
  if (row.provenance) {
    object->Add("placement", {row.provenance->placement});
    object->Add("from", {row.provenance->from});
  }
  if (question.recomputes()) {
    Json::Array stages;
    for (const int stage : row.recomputed) stages.push_back({int64_t{stage}});
    object->Add("recomputed_stages", {std::move(stages)});
  }
  if (!question.components) return object;
  object->Add("overlap", {std::string(Name(question.overlap()))});
  object->Add("exposed", TimeToJson(row.report->largest_exposed(), row.report->unit));
  if (row.published) {
    const Report& published = *row.published;
    object->Add("published_makespan", TimeToJson(published.simulation.makespan, published.unit));
    object->Add("published_peak_activations", {int64_t{published.peak_activations()}});
    object->Add("published_peak_bytes", {published.peak_bytes()});
  }
  return object;
}

std::unique_ptr<JsonObject> ComparisonToJson(const Question& question, std::span<const Row> rows) {
  Json::Array array;
  for (const Row& row : rows) array.push_back({RowToJson(row, question)});
  const Advice advice = Advise(rows);
  auto take = std::make_unique<JsonObject>();
  if (!advice.schedule.empty()) take->Add("schedule", {advice.schedule});
  take->Add("text", {advice.text});
  auto document = std::make_unique<JsonObject>();
  document->Add("rows", {std::move(array)});
  document->Add("advice", {std::move(take)});
  return document;
}

std::string ComparisonCsvHeader() {
  return "microbatches,memory_limit,schedule,placement,stages,same_model,advised,unit,makespan,"
         "span,bubble_ratio,lower_bound,gap,peak_activations,peak_bytes,parameter_bytes,messages,"
         "message_bytes,stages_recomputed,rejected\n";
}

std::string ComparisonCsv(const Question& question, std::span<const Row> rows) {
  const Advice advice = Advise(rows);
  std::string text;
  for (const Row& row : rows) {
    text += std::to_string(question.spec.microbatches) + "," + Field(question.memory_limit) + "," +
            row.schedule + "," + (row.provenance ? row.provenance->placement : "") + "," +
            std::to_string(row.stages) + "," + (row.same_model ? "1" : "0") + "," +
            (row.schedule == advice.schedule ? "1" : "0") + ",";
    if (!row.report) {
      text += ",,,,,,,,,,,," + Field(row.rejected) + "\n";
      continue;
    }
    const Report& report = *row.report;
    const auto time = [&](Time ticks) { return FormatTime(ticks, report.unit) + ","; };
    text += std::string(Name(report.unit)) + "," + time(row.makespan()) +
            time(report.simulation.span) + FormatReal(report.simulation.bubble_ratio()) + "," +
            time(report.bound.value) + FormatReal(report.gap()) + "," +
            std::to_string(report.peak_activations()) + "," + std::to_string(report.peak_bytes()) +
            "," + Optional(row.parameters) + "," + std::to_string(row.messages) + "," +
            Optional(row.message_bytes) + "," + std::to_string(row.recomputed.size()) + ",\n";
  }
  return text;
}

}  // namespace contraflow
