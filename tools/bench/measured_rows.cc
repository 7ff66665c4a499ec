// Published measurements, read from JSON.

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "compiler/files/file.h"
#include "compiler/files/json.h"
#include "compiler/plan/error.h"
#include "tools/bench/measured.h"

namespace contraflow {
namespace {

constexpr int64_t kMaxTableBytes = 1 << 20;
constexpr size_t kMaxRows = 1000;
constexpr int kMostGpus = 1 << 17;
constexpr double kGibibyte = 1 << 30;

constexpr std::array<std::string_view, 32> kRowKeys = {"name",
                                                       "model",
                                                       "gpu",
                                                       "schedule",
                                                       "partition",
                                                       "recompute",
                                                       "optimizer",
                                                       "activations",
                                                       "workspace_gib",
                                                       "anchor",
                                                       "left_out",
                                                       "gpus",
                                                       "tp",
                                                       "cp",
                                                       "pp",
                                                       "ep",
                                                       "etp",
                                                       "chunks",
                                                       "microbatches",
                                                       "zero",
                                                       "sequence",
                                                       "micro_batch",
                                                       "dtype",
                                                       "assumed",
                                                       "ms",
                                                       "gib",
                                                       "tokens_per_second",
                                                       "gb",
                                                       "tokens_of_all_per_second",
                                                       "samples_per_second",
                                                       "tp_overlap",
                                                       "moe_overlap"};

/// Puts the fields that an object has into a row.
void ReadFields(const JsonCursor& object, MeasuredRow* row) {
  object.Keys("a row", kRowKeys);
  const auto text = [&](const char* key, std::string* field) {
    if (const auto value = object.Optional(key)) *field = value->String("text", 256);
  };
  text("name", &row->name);
  text("model", &row->model);
  text("gpu", &row->gpu);
  text("schedule", &row->schedule);
  text("partition", &row->partition);
  text("recompute", &row->recompute);
  text("optimizer", &row->optimizer);
  text("activations", &row->activations);
  text("anchor", &row->anchor);
  text("left_out", &row->left_out);
  const auto integer = [&](const char* key, auto low, auto* field) {
    if (const auto value = object.Optional(key)) {
      *field = static_cast<std::remove_pointer_t<decltype(field)>>(
          value->Integer("a number", low, kMostGpus));
    }
  };
  integer("gpus", 1, &row->gpus);
  integer("tp", 1, &row->tp);
  integer("cp", 1, &row->cp);
  integer("pp", 1, &row->pp);
  integer("ep", 1, &row->ep);
  integer("etp", 1, &row->etp);
  integer("chunks", 1, &row->chunks);
  integer("microbatches", 1, &row->microbatches);
  integer("zero", 0, &row->zero);
  integer("sequence", 1, &row->sequence);
  integer("micro_batch", 1, &row->micro_batch);
  if (const auto dtype = object.Optional("dtype")) {
    const std::string& name = dtype->String("bf16 or fp8", 16);
    if (name != "bf16" && name != "fp8") dtype->Fail("must be bf16 or fp8");
    row->fp8 = name == "fp8";
  }
  if (const auto workspace = object.Optional("workspace_gib")) {
    row->workspace = workspace->Number("GiB", 0, 1e3) * kGibibyte;
  }
  const auto flag = [&](const char* key, bool* field) {
    if (const auto value = object.Optional(key)) *field = value->Boolean("a flag");
  };
  flag("tp_overlap", &row->tp_overlap);
  flag("moe_overlap", &row->moe_overlap);
  flag("assumed", &row->assumed);
}

/// Reads the measured figures, in any of the units of the sources.
void ReadFigures(const JsonCursor& object, MeasuredRow* row) {
  const auto number = [&](const char* key) -> std::optional<double> {
    const auto value = object.Optional(key);
    if (!value) return std::nullopt;
    return value->Number("a figure", 1e-3, 1e12);
  };
  const double sequences = static_cast<double>(row->microbatches) *
                           static_cast<double>(row->micro_batch) * row->gpus /
                           (row->tp * row->cp * row->pp);
  const double tokens = sequences * static_cast<double>(row->sequence);
  if (const auto ms = number("ms")) row->seconds = *ms / 1e3;
  if (const auto rate = number("tokens_per_second")) row->seconds = tokens / row->gpus / *rate;
  if (const auto rate = number("tokens_of_all_per_second")) row->seconds = tokens / *rate;
  if (const auto rate = number("samples_per_second")) row->seconds = sequences / *rate;
  if (const auto gib = number("gib")) row->bytes = *gib * kGibibyte;
  if (const auto gb = number("gb")) row->bytes = *gb * 1e9;
}

void CheckRow(const JsonCursor& object, const MeasuredRow& row) {
  if (row.name.empty()) object.Fail("must have a \"name\"");
  if (!row.left_out.empty()) return;
  if (row.model.empty() || row.model.find('/') != std::string::npos) {
    object.Fail("must have a \"model\", the name of a file in models/");
  }
  if (row.gpu.empty()) object.Fail("must have a \"gpu\"");
  if (row.gpus % (row.tp * row.cp * row.pp) != 0) {
    object.Fail("\"gpus\" must be a multiple of tp x cp x pp");
  }
  if (!row.seconds && !row.bytes) object.Fail("must have a figure, as \"ms\" or \"gib\"");
}

}  // namespace

MeasuredTable ReadMeasured(std::string_view text, const std::string& place,
                           const std::string& name) {
  const JsonDocument document = ParseJson(text, place, {.comments = true});
  const JsonCursor root = document.Root();
  root.Keys("a table of measurements", {"title", "source", "note", "every", "rows"});
  MeasuredTable table = {.name = name,
                         .title = root.Required("title").String("a title"),
                         .source = root.Required("source").String("a source"),
                         .note = {},
                         .rows = {}};
  if (const auto note = root.Optional("note")) table.note = note->String("a note");
  MeasuredRow every;
  if (const auto fields = root.Optional("every")) ReadFields(*fields, &every);
  const JsonCursor rows = root.Required("rows");
  const size_t count = rows.Size("rows");
  if (count > kMaxRows) rows.Fail("must be at most " + std::to_string(kMaxRows) + " rows");
  for (size_t i = 0; i < count; ++i) {
    const JsonCursor object = rows.Item(i);
    MeasuredRow row = every;
    ReadFields(object, &row);
    ReadFigures(object, &row);
    CheckRow(object, row);
    table.rows.push_back(std::move(row));
  }
  return table;
}

std::vector<MeasuredTable> ReadMeasuredTables(const std::string& path) {
  std::vector<std::string> files;
  if (std::filesystem::is_directory(path)) {
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      if (entry.path().extension() == ".json") files.push_back(entry.path().string());
    }
    std::ranges::sort(files);
  } else {
    files.push_back(path);
  }
  std::vector<MeasuredTable> tables;
  for (const std::string& file : files) {
    tables.push_back(ReadMeasured(ReadFile(file, kMaxTableBytes), file,
                                  std::filesystem::path(file).stem().string()));
  }
  return tables;
}

}  // namespace contraflow
