#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "compiler/files/plan_document.h"
#include "compiler/files/plan_io.h"
#include "compiler/plan/error.h"

namespace contraflow {
namespace {

constexpr std::string_view kHeadName = "plan.cbor";
constexpr std::string_view kPrefix = "rank-", kSuffix = ".cbor";

bool IsRankFileName(std::string_view name) {
  return name.starts_with(kPrefix) && name.ends_with(kSuffix);
}

/// Refuses to replace a folder that holds anything but a plan.
void CheckReplaceable(const std::string& folder) {
  if (!IsFolder(folder)) return;
  for (const std::string& name : NamesInFolder(folder)) {
    if (name == kHeadName || IsRankFileName(name)) continue;
    throw Error(folder +
                ": cannot be written: it is a folder that holds other files than a plan's; name a "
                "new folder");
  }
}

Json RankHead(int rank) {
  return {{"format", kRankFormat}, {"version", kPlanVersion}, {"rank", rank}};
}

/// Path of the head of a folder, which is there if there is such a folder.
std::string HeadPath(const std::string& folder) {
  if (IsFolder(folder)) {
    const std::vector<std::string> names = NamesInFolder(folder);
    if (!std::binary_search(names.begin(), names.end(), kHeadName)) {
      throw Error(folder + ": is a folder without a plan: there is neither plan.json nor " +
                  std::string(kHeadName) + " in it");
    }
  }
  return PathIn(folder, kHeadName);
}

/// A file in a folder. Pipes, which a reader would wait for, are none.
std::string RegularFile(std::string path) {
  static_cast<void>(FileSize(path));
  return path;
}

FolderHead ReadHeadFile(const std::string& folder) {
  InputFile file(RegularFile(HeadPath(folder)), kMaxPlanBytes);
  return ReadFolderHead(ParsePlanFile(&file, {}, nullptr));
}

/// Puts the program, slots and marks of a rank into its place.
void ReadRank(const std::string& folder, int rank, const std::string& checksum, Plan* plan) {
  InputFile file(RegularFile(PathIn(folder, RankFileName(rank))), kMaxPlanBytes);
  PlanRows rows(file.name());
  PlanChecksum sum;
  const JsonDocument json = ParsePlanFile(&file, rows.members(), &sum);
  rows.Finish();
  const JsonCursor root = json.Root();
  CheckFormat(root, kRankFormat);
  root.Keys("an object, a rank's part of a plan",
            {"format", "version", "rank", "names", "programs", "slots", "marks"});
  const JsonCursor field = root.Required("rank");
  if (const int64_t is = field.Integer("a rank", 0, plan->ranks - 1); is != rank) {
    field.Fail("is " + std::to_string(is) + ", but by its name this is the file of rank " +
               std::to_string(rank));
  }
  if (sum.Text() != checksum) {
    throw Error(file.name() + ": has the checksum " + sum.Text() + ", but " +
                PathIn(folder, kHeadName) + " was written with one of " + checksum +
                ": it is damaged, or belongs to another plan; write the folder again");
  }
  rows.MoveTo(plan, root, rank);
}

}  // namespace

std::string RankFileName(int rank) {
  constexpr size_t kDigits = 4;
  const std::string digits = std::to_string(rank);
  return std::string(kPrefix) + std::string(kDigits - std::min(kDigits, digits.size()), '0') +
         digits + std::string(kSuffix);
}

void WriteRankFiles(const std::string& folder, const Plan& plan) {
  CF_ASSERT(plan.programs.size() == static_cast<size_t>(plan.ranks));
  CheckReplaceable(folder);
  NewFolder made(folder);
  std::vector<std::string> checksums;
  for (int rank = 0; rank < plan.ranks; ++rank) {
    PlanChecksum sum;
    WriteFile(PathIn(made.path(), RankFileName(rank)), [&](const PutBytes& put) {
      WriteBinaryRanks(RankHead(rank), plan, rank, rank + 1, [&](std::string_view piece) {
        sum.Add(piece);
        put(piece);
      });
    });
    checksums.push_back(sum.Text());
  }
  Json head = HeadToJson(plan, std::nullopt);
  head["files"] = checksums;
  std::string document;
  WriteCbor(head, &document);
  WriteFile(PathIn(made.path(), kHeadName), document);
  made.Keep();
}

Plan ReadRankFiles(const std::string& folder) {
  FolderHead head = ReadHeadFile(folder);
  Plan plan = std::move(head.plan);
  std::vector<std::string> wanted;
  wanted.reserve(static_cast<size_t>(plan.ranks));
  for (int rank = 0; rank < plan.ranks; ++rank) wanted.push_back(RankFileName(rank));
  std::sort(wanted.begin(), wanted.end());
  for (const std::string& name : NamesInFolder(folder)) {
    if (!IsRankFileName(name) || std::binary_search(wanted.begin(), wanted.end(), name)) continue;
    throw Error(folder + ": " + Excerpt(name) + " does not belong to the plan, which has " +
                std::to_string(plan.ranks) + " ranks; remove it, or write the folder again");
  }
  for (int rank = 0; rank < plan.ranks; ++rank) {
    ReadRank(folder, rank, head.checksums[static_cast<size_t>(rank)], &plan);
  }
  return plan;
}

RankPlan ReadRankFile(const std::string& folder, int rank) {
  FolderHead head = ReadHeadFile(folder);
  RankPlan result{rank, std::move(head.plan)};
  if (rank < 0 || rank >= result.plan.ranks) {
    throw Error(folder + ": has no rank " + std::to_string(rank) + ", ranks are 0.." +
                std::to_string(result.plan.ranks - 1));
  }
  ReadRank(folder, rank, head.checksums[static_cast<size_t>(rank)], &result.plan);
  return result;
}

std::string ReadRankFilesHead(const std::string& folder) {
  return ReadFile(RegularFile(HeadPath(folder)), kMaxPlanBytes);
}

Plan ReadRankFilesPlan(const std::string& folder) { return ReadHeadFile(folder).plan; }

}  // namespace contraflow
