#include "compiler/plan_io.h"

#include <algorithm>

#include "compiler/cost_io.h"
#include "compiler/error.h"
#include "compiler/file.h"
#include "compiler/json.h"
#include "compiler/json_builder.h"

namespace contraflow {
namespace {

/// Bytes: room for a hundred million instructions. Values: for the head, not the programs.
constexpr JsonLimits kLimits = {.bytes = size_t{4} << 30, .values = size_t{1} << 22};
constexpr size_t kMaxName = 64;

/// Programs as they stream in. Only their form is checked here: the head may follow later.
struct Programs {
  std::string place;
  std::vector<Program> done;
  Program open;
  /// The first instruction that does not parse. It is reported after the head was found good,
  /// because a document of another format or version has other instructions.
  std::string error;

  void Begin(size_t row) {
    Finish();
    if (row >= size_t{kMaxRanks}) {
      throw Error(place + ": /programs: more than " + std::to_string(kMaxRanks) + " programs");
    }
    done.emplace_back();
  }

  void Take(size_t row, size_t index, std::string_view text) {
    if (!error.empty()) return;
    try {
      open.push_back(ParseInstruction(text));
    } catch (const Error& wrong) {
      std::string what = wrong.what();
      // A terminal gets no control characters and no broken UTF-8 from a file.
      const auto plain = [](char c) { return c >= ' ' && c <= '~'; };
      if (!std::all_of(what.begin(), what.end(), plain)) {
        what = "instruction " + Excerpt(text) + ": has characters other than plain ASCII";
      }
      error =
          place + ": /programs/" + std::to_string(row) + "/" + std::to_string(index) + ": " + what;
    }
  }

  /// Moves the open program to its place, without the slack of a vector that grew.
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

/// Everything but "programs" and "rank".
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
  plan.routes = ReadRoutes(root.Required("routes"), plan);
  if (const auto costs = root.Optional("costs")) plan.costs = ReadPlanCosts(*costs, plan);
  return plan;
}

/// Checks instructions against the head of their plan.
class InstructionLimits {
 public:
  InstructionLimits(const Plan& plan, const std::string& place)
      : place_(place), ranks_(plan.ranks), stages_(plan.stages), microbatches_(plan.microbatches) {
    layers_ = plan.costs && plan.costs->moe ? plan.costs->moe->layers_per_stage : kMaxLayers;
    // Of each chunk: F, B, W and four messages, or at the levels below ten components a layer
    // instead; of each stage: REDUCE and STEP.
    const bool coarse = plan.level == Level::kCompute || plan.level == Level::kComm;
    const int64_t per_chunk = 7 + (coarse ? 0 : int64_t{10} * layers_);
    longest_ = int64_t{stages_} * (microbatches_ * per_chunk + 2);
  }

  void Check(const Program& program, size_t row) {
    row_ = row;
    index_ = -1;
    if (static_cast<int64_t>(program.size()) > longest_) {
      Fail("has " + std::to_string(program.size()) + " instructions, more than " +
           std::to_string(longest_) + ", all there can be for " + std::to_string(stages_) +
           " stages and " + std::to_string(microbatches_) + " micro-batches");
    }
    for (const Instruction& instruction : program) {
      ++index_;
      Check(instruction);
    }
  }

 private:
  [[noreturn]] void Fail(const std::string& what) const {
    throw Error(place_ + ": /programs/" + std::to_string(row_) +
                (index_ < 0 ? "" : "/" + std::to_string(index_)) + ": " + what);
  }

  /// `size` values from 0; -1 stands for a field the instruction does not have.
  void Check(const Instruction& instruction, const char* noun, int64_t value, int64_t size) const {
    if (value < size) return;
    Fail("instruction \"" + ToString(instruction) + "\": " + noun + " must be in 0.." +
         std::to_string(size - 1) + ", is " + std::to_string(value));
  }

  void Check(const Instruction& i) const {
    Check(i, "the stage", i.stage, stages_);
    Check(i, "the micro-batch", i.microbatch, microbatches_);
    Check(i, "the backward stage", i.back_stage, stages_);
    Check(i, "the backward micro-batch", i.back_microbatch, microbatches_);
    Check(i, "the peer", i.peer, ranks_);
    Check(i, "the layer", i.layer, layers_);
    Check(i, "the slot", i.slot, longest_);
    Check(i, "the group", i.group, longest_ * ranks_);
    if (i.after_count == 0) return;
    // Ascending, so the last one decides.
    const int last = i.after[static_cast<size_t>(i.after_count - 1)];
    if (last >= index_) {
      Fail("instruction \"" + ToString(i) +
           "\": \"after\" must name earlier instructions of the "
           "same program, " +
           std::to_string(last) + " is not before " + std::to_string(index_));
    }
  }

  const std::string& place_;
  const int ranks_, stages_, microbatches_;
  int layers_ = 0;
  int64_t longest_ = 0;
  size_t row_ = 0;
  int64_t index_ = -1;
};

struct Document {
  Plan plan;  ///< programs as they stand in the document
  std::optional<int> rank;
};

Document ReadDocument(std::string_view text, const std::string& place) {
  Programs programs{place, {}, {}, {}};
  const JsonRows rows = {"programs", [&programs](size_t row) { programs.Begin(row); },
                         [&programs](size_t row, size_t index, std::string_view instruction) {
                           programs.Take(row, index, instruction);
                         }};
  const JsonDocument json = ParseJson(text, place, kLimits, &rows);
  programs.Finish();
  const JsonCursor root = json.Root();
  CheckPlanFormat(root);
  root.Keys("an object, the plan",
            {"format", "version", "schedule", "level", "ranks", "rank", "stages", "microbatches",
             "data_parallel", "routes", "costs", "programs"});
  Document document{ReadHead(root), {}};
  if (const auto rank = root.Optional("rank")) {
    document.rank = static_cast<int>(rank->Integer("a rank", 0, document.plan.ranks - 1));
  }
  const JsonCursor field = root.Required("programs");
  const size_t wanted = document.rank ? 1 : static_cast<size_t>(document.plan.ranks);
  if (programs.done.size() != wanted) {
    field.Fail("must have " + std::to_string(wanted) + " programs, " +
               (document.rank ? "that of the rank" : "one for each rank") + ", has " +
               std::to_string(programs.done.size()));
  }
  if (!programs.error.empty()) throw Error(programs.error);
  InstructionLimits limits(document.plan, place);
  for (size_t r = 0; r < programs.done.size(); ++r) limits.Check(programs.done[r], r);
  document.plan.programs = std::move(programs.done);
  return document;
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
  Program program = std::move(result.plan.programs[0]);
  result.plan.programs.assign(static_cast<size_t>(result.plan.ranks), {});
  result.plan.programs[static_cast<size_t>(result.rank)] = std::move(program);
  return result;
}

Plan ReadPlanFile(const std::string& path) {
  return ReadPlan(ReadFile(path, int64_t{kLimits.bytes}), path == "-" ? "standard input" : path);
}

}  // namespace contraflow
