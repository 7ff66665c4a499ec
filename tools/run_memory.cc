#include "tools/run_memory.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

#include "compiler/plan.h"
#include "runtime/threaded_run.h"
#include "tools/table.h"

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

std::vector<RankArenas> ArenasOf(const Plan& plan, ThreadedRun& run) {
  std::vector<RankArenas> ranks;
  for (int rank = 0; rank < plan.ranks; ++rank) {
    RankArenas arenas = {ArenaBytes(plan.slots[static_cast<size_t>(rank)]), {}};
    for (int replica = 0; replica < plan.data_parallel; ++replica) {
      for (int member = 0; member < plan.expert_parallel; ++member) {
        const Bytes& bytes = run.At({replica, member, rank}).arena_bytes();
        if (Sum(bytes) > Sum(arenas.allocated)) arenas.allocated = bytes;
      }
    }
    ranks.push_back(arenas);
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
