#include "tools/contraflow-run/memory.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <sstream>
#include <utility>

#include "compiler/plan/plan.h"
#include "runtime/core/run.h"
#include "tools/contraflow-run/job.h"
#include "tools/contraflow/table.h"

namespace contraflow {
namespace {

using Bytes = std::array<int64_t, kArenaCount>;

int64_t Sum(const Bytes& bytes) { return std::accumulate(bytes.begin(), bytes.end(), int64_t{0}); }

Json ToJson(const Bytes& bytes) {
  auto object = std::make_unique<JsonObject>();
  for (size_t a = 0; a < kArenaCount; ++a) {
    object->Add(std::string(Name(static_cast<Arena>(a))), {bytes[a]});
  }
  return {std::move(object)};
}

}  // namespace

std::vector<RankArenas> ArenasOf(const Plan& plan, Run& run, Job& job) {
  // A record for each device: its rank, and the bytes of its arenas.
  std::string records;
  for (const Device& device : run.devices()) {
    records += std::to_string(device.rank);
    for (const int64_t bytes : run.ArenasAt(device)) records += " " + std::to_string(bytes);
    records += "\n";
  }
  std::vector<RankArenas> ranks;
  for (int rank = 0; rank < plan.ranks; ++rank) {
    ranks.push_back({ArenaBytes(plan.slots[static_cast<size_t>(rank)]), {}});
  }
  for (const std::string& text : job.Gather(records)) {
    std::istringstream lines(text);
    int rank = 0;
    while (lines >> rank) {
      Bytes bytes{};
      for (int64_t& arena : bytes) lines >> arena;
      Bytes& most = ranks.at(static_cast<size_t>(rank)).allocated;
      if (Sum(bytes) > Sum(most)) most = bytes;
    }
  }
  return ranks;
}

std::string FormatArenas(const std::vector<RankArenas>& ranks) {
  Table table;
  table.columns = {"bytes"};
  for (size_t a = 0; a < kArenaCount; ++a) {
    table.columns.push_back(">" + std::string(Name(static_cast<Arena>(a))));
  }
  table.columns.insert(table.columns.end(), {">predicted", ">allocated"});
  for (size_t r = 0; r < ranks.size(); ++r) {
    std::vector<std::string> row = {"rank " + std::to_string(r)};
    for (const int64_t bytes : ranks[r].allocated) row.push_back(FormatCount(bytes));
    row.push_back(FormatCount(Sum(ranks[r].predicted)));
    row.push_back(FormatCount(Sum(ranks[r].allocated)));
    table.rows.push_back(std::move(row));
  }
  return FormatTable(table);
}

void ArenasToJson(const std::vector<RankArenas>& ranks, JsonObject* document) {
  Json::Array rows;
  for (size_t r = 0; r < ranks.size(); ++r) {
    auto row = std::make_unique<JsonObject>();
    row->Add("rank", {static_cast<int64_t>(r)});
    row->Add("predicted", ToJson(ranks[r].predicted));
    row->Add("allocated", ToJson(ranks[r].allocated));
    rows.push_back({std::move(row)});
  }
  document->Add("arenas", {std::move(rows)});
}

}  // namespace contraflow
