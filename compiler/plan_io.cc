#include "compiler/plan_io.h"

#include <algorithm>
#include <utility>

#include "compiler/cost_io.h"
#include "compiler/error.h"
#include "compiler/file.h"
#include "compiler/json.h"
#include "compiler/json_builder.h"
#include "compiler/plan_limits.h"

namespace contraflow {
namespace {

/// Bytes: room for a hundred million instructions. Values: for the head, not the rows.
constexpr JsonLimits kLimits = {.bytes = size_t{4} << 30, .values = size_t{1} << 22};
constexpr size_t kMaxName = 64;

/// "/programs" or "/slots" as it streams in, a row for each rank. Only the form of its entries is
/// checked here: the head may follow later.
template <typename Entry>
struct Rows {
  std::string place;  ///< file and path
  std::string noun;   ///< of an entry
  Entry (*parse)(std::string_view text);
  std::vector<std::vector<Entry>> done = {};
  std::vector<Entry> open = {};
  /// The first entry that does not parse. It is reported after the head was found good, because a
  /// document of another format or version has other entries.
  std::string error = {};

  JsonRows Named(const char* key) {
    return {key, [this](size_t row) { Begin(row); },
            [this](size_t row, size_t index, std::string_view text) { Take(row, index, text); }};
  }

  void Begin(size_t row) {
    Finish();
    if (row >= size_t{kMaxRanks}) {
      throw Error(place + ": more than " + std::to_string(kMaxRanks) +
                  (noun == "slot" ? " lists" : " programs"));
    }
    done.emplace_back();
  }

  void Take(size_t row, size_t index, std::string_view text) {
    if (!error.empty()) return;
    try {
      open.push_back(parse(text));
    } catch (const Error& wrong) {
      std::string what = wrong.what();
      // A terminal gets no control characters and no broken UTF-8 from a file.
      const auto plain = [](char c) { return c >= ' ' && c <= '~'; };
      if (!std::all_of(what.begin(), what.end(), plain)) {
        what = noun + " " + Excerpt(text) + ": has characters other than plain ASCII";
      }
      error = place + "/" + std::to_string(row) + "/" + std::to_string(index) + ": " + what;
    }
  }

  /// Moves the open row to its place, without the slack of a vector that grew.
  void Finish() {
    if (!done.empty()) done.back().assign(open.begin(), open.end());
    open.clear();
  }
};

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
        microbatches.Item(i).Fail("must be ascending, " + std::to_string(m) + " stands behind " +
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

CostModel ReadPlanCosts(const JsonCursor& field, const Plan& plan) {
  CostModel costs = ReadCosts(field);
  try {
    CheckCosts(costs, plan.stages, plan.microbatches);
  } catch (const Error& error) {
    field.Fail(error.what());
  }
  return costs;
}

/// "format" and "version": what decides whether any other key means anything.
void CheckPlanFormat(const JsonCursor& root) {
  const std::string remedy = "a plan file begins with \"format\": " + QuoteJson(kPlanFormat) +
                             ", \"version\": " + std::to_string(kPlanVersion);
  if (!root.IsObject()) root.Fail("is not a plan: must be an object; " + remedy);
  const std::optional<JsonCursor> format = root.Optional("format");
  if (!format) {
    const bool costs = root.Optional("stage") || root.Optional("stages") || root.Optional("unit");
    root.Fail("is not a plan: the key \"format\" is missing; " + remedy +
              (costs ? " (this looks like a cost file)" : ""));
  }
  const std::string& name = format->String("the name " + QuoteJson(kPlanFormat));
  if (name != kPlanFormat)
    format->Fail("must be " + QuoteJson(kPlanFormat) + ", is " + Excerpt(name));
  const JsonCursor field = root.Required("version");
  const int64_t version = field.Integer("a version", 1, INT32_MAX);
  if (version != kPlanVersion) {
    field.Fail("is " + std::to_string(version) +
               ", from a later contraflow; this one reads version " + std::to_string(kPlanVersion) +
               ": use a newer contraflow, or compile the plan again");
  }
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

/// Everything but "rank", "programs" and "slots".
Plan ReadHead(const JsonCursor& root) {
  Plan plan;
  plan.schedule = ReadName(root.Required("schedule"));
  const JsonCursor level = root.Required("level");
  const std::string& level_name = level.String("a level");
  try {
    plan.level = ParseLevel(level_name);
  } catch (const Error& error) {
    level.Fail(error.what());
  }
  plan.ranks = ReadSize(root, "ranks", "a number of ranks", kMaxRanks);
  plan.stages = ReadSize(root, "stages", "a number of stages", kMaxStages);
  plan.microbatches = ReadSize(root, "microbatches", "a number of micro-batches", kMaxMicrobatches);
  if (int64_t{plan.stages} * plan.microbatches > kMaxChunks) {
    root.Fail("\"stages\" * \"microbatches\" is " +
              std::to_string(int64_t{plan.stages} * plan.microbatches) + ", must be at most " +
              std::to_string(kMaxChunks));
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
  plan.routes = ReadRoutes(root.Required("routes"), plan);
  if (const auto costs = root.Optional("costs")) plan.costs = ReadPlanCosts(*costs, plan);
  if (plan.layers > 0 && plan.costs && plan.costs->moe &&
      plan.costs->moe->layers_per_stage != plan.layers) {
    root.Required("layers").Fail("is " + std::to_string(plan.layers) + ", but the costs are for " +
                                 std::to_string(plan.costs->moe->layers_per_stage) +
                                 " layers of a stage");
  }
  return plan;
}

struct Document {
  Plan plan;  ///< programs and slots as they stand in the document
  std::optional<int> rank;
};

/// Refuses a member with another number of rows than the document has ranks.
void CheckRows(const JsonCursor& field, size_t rows, const Document& document,
               const std::string& noun) {
  const size_t wanted = document.rank ? 1 : static_cast<size_t>(document.plan.ranks);
  if (rows == wanted) return;
  field.Fail("must have " + std::to_string(wanted) + " " + noun + ", " +
             (document.rank ? "that of the rank" : "one for each rank") + ", has " +
             std::to_string(rows));
}

Document ReadDocument(std::string_view text, const std::string& place) {
  Rows<Instruction> programs{place + ": /programs", "instruction", ParseInstruction};
  Rows<Slot> slots{place + ": /slots", "slot", ParseSlot};
  const JsonRows rows[] = {programs.Named("programs"), slots.Named("slots")};
  const JsonDocument json = ParseJson(text, place, kLimits, rows);
  programs.Finish();
  slots.Finish();
  const JsonCursor root = json.Root();
  CheckPlanFormat(root);
  root.Keys("an object, the plan",
            {"format", "version", "schedule", "level", "ranks", "rank", "stages", "microbatches",
             "data_parallel", "expert_parallel", "layers", "routes", "costs", "programs", "slots"});
  Document document{ReadHead(root), {}};
  Plan& plan = document.plan;
  if (const auto rank = root.Optional("rank")) {
    document.rank = static_cast<int>(rank->Integer("a rank", 0, plan.ranks - 1));
  }
  CheckRows(root.Required("programs"), programs.done.size(), document, "programs");
  if (plan.level == Level::kBuffer) {
    CheckRows(root.Required("slots"), slots.done.size(), document, "lists of slots");
  } else if (const auto field = root.Optional("slots")) {
    field->Fail("only a plan of level buffer has slots, this one is of level " +
                std::string(Name(plan.level)));
  }
  if (!programs.error.empty()) throw Error(programs.error);
  if (!slots.error.empty()) throw Error(slots.error);
  PlanLimits limits(plan, place);
  for (size_t r = 0; r < programs.done.size(); ++r) {
    const bool placed = r < slots.done.size();
    limits.Check(programs.done[r], r, placed ? slots.done[r].size() : 0);
    if (placed) limits.Check(slots.done[r], r, programs.done[r]);
  }
  plan.programs = std::move(programs.done);
  plan.slots = std::move(slots.done);
  return document;
}

/// The only row of a rank's document in its place, the other ranks' empty.
template <typename Row>
void Spread(int rank, int ranks, std::vector<Row>* rows) {
  Row own = std::move(rows->front());
  rows->assign(static_cast<size_t>(ranks), {});
  (*rows)[static_cast<size_t>(rank)] = std::move(own);
}

}  // namespace

Plan ReadPlan(std::string_view document, const std::string& place) {
  Document read = ReadDocument(document, place);
  if (read.rank) {
    throw Error(place + ": /rank: this file holds the program of rank " +
                std::to_string(*read.rank) + " only; give the file with the whole plan");
  }
  return std::move(read.plan);
}

RankPlan ReadRankPlan(std::string_view document, const std::string& place) {
  Document read = ReadDocument(document, place);
  if (!read.rank) {
    throw Error(place +
                ": this file holds a whole plan; give the file of one rank, which has the "
                "key \"rank\"");
  }
  RankPlan result{*read.rank, std::move(read.plan)};
  Spread(result.rank, result.plan.ranks, &result.plan.programs);
  if (!result.plan.slots.empty()) Spread(result.rank, result.plan.ranks, &result.plan.slots);
  return result;
}

Plan ReadPlanFile(const std::string& path) {
  return ReadPlan(ReadFile(path, int64_t{kLimits.bytes}), path == "-" ? "standard input" : path);
}

}  // namespace contraflow
