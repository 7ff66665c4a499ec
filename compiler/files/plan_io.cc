#include "compiler/files/plan_io.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "compiler/files/cost_fields.h"
#include "compiler/files/cost_io.h"
#include "compiler/files/json_builder.h"
#include "compiler/files/plan_document.h"
#include "compiler/plan/error.h"

namespace contraflow {
namespace {

constexpr size_t kMaxName = 64;

int ReadSize(const JsonCursor& root, const char* key, const char* noun, int most) {
  return static_cast<int>(root.Required(key).Integer(noun, 1, most));
}

std::vector<Route> ReadRoutes(const JsonCursor& list, const Plan& plan) {
  const size_t size = list.Size("an array of routes");
  if (size < 1 || size > static_cast<size_t>(plan.microbatches)) {
    list.Fail("must have 1.." + std::to_string(plan.microbatches) +
              " routes (at most one for each micro-batch), has " + std::to_string(size));
  }
  std::vector<Route> routes;
  // The route that has a micro-batch.
  std::vector<int> taken(static_cast<size_t>(plan.microbatches), -1);
  for (size_t r = 0; r < size; ++r) {
    const JsonCursor route = list.Item(r);
    route.Keys("an object with \"ranks\" and \"microbatches\"", {"ranks", "microbatches"});
    const JsonCursor ranks = route.Required("ranks");
    const JsonCursor microbatches = route.Required("microbatches");
    const auto stages = static_cast<size_t>(plan.stages);
    if (ranks.Size("an array with the rank of every stage") != stages) {
      ranks.Fail("must have " + std::to_string(stages) + " entries, one for each stage, has " +
                 std::to_string(ranks.Size("")));
    }
    routes.push_back({ranks.Integers("a rank", 0, plan.ranks - 1, stages),
                      microbatches.Integers("a micro-batch", 0, plan.microbatches - 1,
                                            static_cast<size_t>(plan.microbatches))});
    int last = -1;
    for (size_t i = 0; i < routes.back().microbatches.size(); ++i) {
      const int m = routes.back().microbatches[i];
      if (m <= last) {
        microbatches.Item(i).Fail("must be ascending, " + std::to_string(m) + " stands after " +
                                  std::to_string(last));
      }
      last = m;
      int& other = taken[static_cast<size_t>(m)];
      if (other >= 0) {
        microbatches.Item(i).Fail("micro-batch " + std::to_string(m) + " is in route " +
                                  std::to_string(other) +
                                  " already; a micro-batch takes one route");
      }
      other = static_cast<int>(r);
    }
  }
  return routes;
}

std::string ReadName(const JsonCursor& field) {
  const std::string& name = field.String("the name of a schedule", kMaxName);
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  };
  if (name.empty() || !std::all_of(name.begin(), name.end(), fits)) {
    field.Fail("must be a name of letters, digits, '-', '_' and '.', is " + Excerpt(name));
  }
  return name;
}

/// "stage_layers": of each stage its layers.
void ReadStageLayers(const JsonCursor& field, Plan* plan) {
  const size_t size = field.Size("an array with the layers of each stage");
  if (std::cmp_not_equal(size, plan->stages)) {
    field.Fail("must have one entry for each of the " + std::to_string(plan->stages) +
               " stages, has " + std::to_string(size));
  }
  for (size_t s = 0; s < size; ++s) {
    plan->stage_layers.push_back(ReadStageLayers(field.Item(s)));
    plan->layers = std::max(plan->layers, static_cast<int>(plan->stage_layers.back().size()));
  }
}

constexpr size_t kMaxWord = 200;
constexpr int64_t kMost = int64_t{1} << 62;

/// Reads text that is printed to a terminal verbatim.
std::string ReadText(const JsonCursor& field, const char* noun) {
  const std::string& text = field.String(noun, kMaxWord);
  const auto plain = [](char c) { return c >= ' ' && c <= '~'; };
  if (text.empty() || !std::all_of(text.begin(), text.end(), plain)) {
    field.Fail("must be plain ASCII text and not empty");
  }
  return text;
}

Time ReadTime(const JsonCursor& field, const char* noun, Unit unit) {
  // The longest time of a plan, which is more than a single cost.
  constexpr double kMostTicks = 0x1p62;
  const auto per_unit = static_cast<double>(TicksPerUnit(unit));
  const double ticks = field.Number(noun, 0, kMostTicks / per_unit) * per_unit;
  return std::llround(std::min(ticks, kMostTicks));
}

/// "provenance" of a plan document.
Provenance ReadProvenance(const JsonCursor& field, Unit unit) {
  field.Keys("an object that says where the plan comes from",
             {"placement", "from", "cost_stages", "memory_limit", "makespan", "bound",
              "bound_of_all", "budget_ns", "seed", "noise", "interrupted"});
  Provenance provenance;
  provenance.placement = ReadText(field.Required("placement"), "the name of a placement");
  provenance.from = ReadText(field.Required("from"), "what the order was made by");
  if (const auto stages = field.Optional("cost_stages")) {
    provenance.cost_stages = static_cast<int>(stages->Integer("a number of stages", 1, kMaxStages));
  }
  if (const auto limit = field.Optional("memory_limit")) {
    provenance.memory_limit = limit->Integer("bytes or activations", 1, kMost);
  }
  provenance.makespan = ReadTime(field.Required("makespan"), "a makespan", unit);
  provenance.bound = ReadTime(field.Required("bound"), "a bound", unit);
  if (provenance.makespan < provenance.bound) {
    field.Required("makespan").Fail("must be no shorter than \"bound\", which is proven");
  }
  if (const auto all = field.Optional("bound_of_all")) {
    provenance.bound_of_all = ReadTime(*all, "a bound", unit);
    if (*provenance.bound_of_all > provenance.bound) {
      all->Fail("must be at most \"bound\", which is that of one placement");
    }
  }
  provenance.budget = field.Required("budget_ns").Integer("nanoseconds", 0, INT64_MAX);
  provenance.seed = static_cast<uint64_t>(field.Required("seed").Integer("a seed", 0, INT64_MAX));
  if (const auto noise = field.Optional("noise")) {
    provenance.noise = noise->Number("a relative standard deviation", 0, 1);
  }
  if (const auto interrupted = field.Optional("interrupted")) {
    provenance.interrupted = interrupted->Boolean("true or false");
  }
  return provenance;
}

/// Everything but "rank", "programs", "slots" and "marks".
Plan ReadHead(const JsonCursor& root) {
  Plan plan;
  plan.schedule = ReadName(root.Required("schedule"));
  const JsonCursor level = root.Required("level");
  const std::string& level_name = level.String("a level");
  plan.level = level.Checked([&] { return ParseLevel(level_name); });
  plan.ranks = ReadSize(root, "ranks", "a number of ranks", kMaxRanks);
  plan.stages = ReadSize(root, "stages", "a number of stages", kMaxStages);
  plan.microbatches = ReadSize(root, "microbatches", "a number of micro-batches", kMaxMicrobatches);
  if (int64_t{plan.stages} * plan.microbatches > kMaxCells) {
    root.Fail("\"stages\" * \"microbatches\" is " +
              std::to_string(int64_t{plan.stages} * plan.microbatches) + ", must be at most " +
              std::to_string(kMaxCells));
  }
  if (root.Optional("data_parallel")) {
    plan.data_parallel = ReadSize(root, "data_parallel", "a number of replicas", kMaxDataParallel);
  }
  if (root.Optional("expert_parallel")) {
    plan.expert_parallel =
        ReadSize(root, "expert_parallel", "a number of devices", kMaxExpertParallel);
  }
  if (root.Optional("layers")) {
    plan.layers = ReadSize(root, "layers", "a number of layers of a stage", kMaxLayers);
  }
  if (const auto layers = root.Optional("stage_layers")) {
    if (plan.layers > 0) {
      layers->Fail("says what \"layers\" says of stages alike; keep one of them");
    }
    ReadStageLayers(*layers, &plan);
  }
  if (const auto semantics = root.Optional("semantics")) {
    const std::string& name = semantics->String("what the messages need");
    plan.semantics = semantics->Checked([&] { return ParseSemantics(name); });
  }
  plan.routes = ReadRoutes(root.Required("routes"), plan);
  if (const auto costs = root.Optional("costs")) {
    plan.costs = ReadCosts(*costs);
    costs->Checked([&] { CheckCosts(*plan.costs, plan.stages, plan.microbatches, ""); });
  }
  if (const auto provenance = root.Optional("provenance")) {
    if (!plan.costs) provenance->Fail("says what came of the costs, and the plan has no \"costs\"");
    plan.provenance = ReadProvenance(*provenance, plan.costs->unit);
  }
  if (plan.layers > 0 && plan.stage_layers.empty() && plan.costs && plan.costs->moe &&
      plan.costs->moe->layers_per_stage != plan.layers) {
    root.Required("layers").Fail("is " + std::to_string(plan.layers) + ", but the costs are for " +
                                 std::to_string(plan.costs->moe->layers_per_stage) +
                                 " layers of a stage");
  }
  const bool own = plan.layers > 0 && plan.costs && plan.costs->components();
  if (const auto costs = root.Optional("costs"); costs && own) {
    costs->Checked([&] { CheckLayers(plan, *plan.costs); });
  }
  return plan;
}

constexpr std::string_view kMembers[] = {
    "format",    "version",      "schedule",      "level",           "ranks",  "rank",
    "stages",    "microbatches", "data_parallel", "expert_parallel", "layers", "stage_layers",
    "semantics", "routes",       "costs",         "provenance",      "files",  "names",
    "programs",  "slots",        "marks"};

struct Document {
  Plan plan;
  std::optional<int> rank;  ///< where it holds that of one rank only
};

/// Document as `parse` reads it; its rows are handed over.
Document ReadDocument(const std::string& place,
                      const std::function<JsonDocument(std::span<const JsonRows>)>& parse) {
  PlanRows rows(place);
  const JsonDocument json = parse(rows.members());
  rows.Finish();
  const JsonCursor root = json.Root();
  CheckFormat(root, kPlanFormat);
  root.Keys("an object, the plan", kMembers);
  Document document{ReadHead(root), {}};
  Plan& plan = document.plan;
  if (const auto files = root.Optional("files")) {
    files->Fail("this file is the head of a folder with a file for each rank; give the folder");
  }
  if (const auto rank = root.Optional("rank")) {
    document.rank = static_cast<int>(rank->Integer("a rank", 0, plan.ranks - 1));
  }
  rows.MoveTo(&plan, root, document.rank);
  return document;
}

/// A document that is to be a whole plan.
Plan WholePlan(Document read, const std::string& place) {
  if (!read.rank) return std::move(read.plan);
  throw Error(place + ": /rank: this file holds the program of rank " + std::to_string(*read.rank) +
              " only; give the file with the whole plan");
}

Document ReadText(std::string_view text, const std::string& place) {
  return ReadDocument(place, [&](std::span<const JsonRows> rows) {
    return ParseJson(text, place, kPlanLimits, rows);
  });
}

}  // namespace

std::string PlanChecksum::Text() const {
  std::string text;
  for (int shift = 60; shift >= 0; shift -= 4) text += "0123456789abcdef"[sum_ >> shift & 15];
  return text;
}

void CheckFormat(const JsonCursor& root, std::string_view wanted) {
  const std::string remedy = "a plan file begins with \"format\": " + QuoteJson(wanted) +
                             ", \"version\": " + std::to_string(kPlanVersion);
  if (!root.IsObject()) root.Fail("is not a plan: must be an object; " + remedy);
  const std::optional<JsonCursor> format = root.Optional("format");
  if (!format) {
    const bool costs = root.Optional("stage") || root.Optional("stages") || root.Optional("unit");
    root.Fail("is not a plan: the key \"format\" is missing; " + remedy +
              (costs ? " (this looks like a cost file)" : ""));
  }
  const std::string& name = format->String("the name " + QuoteJson(wanted));
  if (name != wanted) format->Fail("must be " + QuoteJson(wanted) + ", is " + Excerpt(name));
  const JsonCursor field = root.Required("version");
  const int64_t version = field.Integer("a version", 1, INT32_MAX);
  if (version != kPlanVersion) {
    field.Fail("is " + std::to_string(version) +
               ", from a later contraflow; this one reads version " + std::to_string(kPlanVersion) +
               ": use a newer contraflow, or compile the plan again");
  }
}

Plan ReadPlan(std::string_view document, const std::string& place) {
  return WholePlan(ReadText(document, place), place);
}

RankPlan ReadRankPlan(std::string_view document, const std::string& place) {
  Document read = ReadText(document, place);
  if (!read.rank) {
    throw Error(place +
                ": this file holds a whole plan; give the file of one rank, which has the "
                "key \"rank\"");
  }
  return {*read.rank, std::move(read.plan)};
}

JsonDocument ParsePlanFile(InputFile* file, std::span<const JsonRows> rows,
                           PlanChecksum* checksum) {
  const MoreBytes more = [&](char* to, size_t most) {
    const size_t got = file->Read(to, most);
    if (checksum != nullptr) checksum->Add({to, got});
    return got;
  };
  const std::string_view beginning = file->Beginning();
  if (!LooksLikeCbor(beginning)) {
    // Input that begins as no document does is refused at once, though it may have no end.
    const size_t first = beginning.find_first_not_of(" \t\r\n");
    if (first != std::string_view::npos &&
        std::string_view("{[\xEF").find(beginning[first]) == std::string_view::npos) {
      return ParseJson(beginning.substr(0, first + 1), file->name(), kPlanLimits, rows);
    }
    std::string text;
    file->ReadRest(&text);
    if (checksum != nullptr) checksum->Add(text);
    return ParseJson(text, file->name(), kPlanLimits, rows);
  }
  JsonBuilder builder(file->name(), kPlanLimits, rows);
  ReadCbor("", more, file->name(), &builder);
  return {file->name(), std::make_shared<Json>(builder.Take())};
}

FolderHead ReadFolderHead(const JsonDocument& json) {
  const JsonCursor root = json.Root();
  CheckFormat(root, kPlanFormat);
  root.Keys("an object, the plan", kMembers);
  FolderHead head{ReadHead(root), {}};
  const JsonCursor files = root.Required("files");
  for (const char* key : {"rank", "names", "programs", "slots", "marks"}) {
    if (const auto field = root.Optional(key)) {
      field->Fail("does not belong in the head of a folder, where each rank has its file");
    }
  }
  const auto ranks = static_cast<size_t>(head.plan.ranks);
  if (files.Size("an array with the checksum of every rank's file") != ranks) {
    files.Fail("must have " + std::to_string(ranks) + " entries, one for each rank, has " +
               std::to_string(files.Size("")));
  }
  for (size_t r = 0; r < ranks; ++r) {
    head.checksums.push_back(files.Item(r).String("a checksum", PlanChecksum().Text().size()));
  }
  return head;
}

std::string PlanPath(const std::string& path) {
  if (!IsFolder(path)) return path;
  const std::string file = PathIn(path, "plan.json");
  return FileSize(file) >= 0 ? file : path;
}

Plan ReadPlanFile(const std::string& given) {
  const std::string path = PlanPath(given);
  if (IsFolder(path)) return ReadRankFiles(path);
  if (path.ends_with(".csv")) {
    throw Error(path +
                ": is a schedule as PyTorch writes it, not a plan; contraflow import makes a "
                "plan of it");
  }
  InputFile file(path, kMaxPlanBytes);
  return ReadPlanFile(&file);
}

Plan ReadPlanFile(InputFile* file) {
  return WholePlan(ReadDocument(file->name(),
                                [&](std::span<const JsonRows> rows) {
                                  return ParsePlanFile(file, rows, nullptr);
                                }),
                   file->name());
}

}  // namespace contraflow
