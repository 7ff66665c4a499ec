#pragma once

// What the files that read and write plan documents share, and nobody else includes.

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/files/file.h"
#include "compiler/files/json.h"
#include "compiler/plan/plan.h"

namespace contraflow {

/// Bytes: room for a hundred million instructions. Values: for the head, not the rows.
inline constexpr JsonLimits kPlanLimits = {.bytes = size_t{4} << 30, .values = size_t{1} << 22};

/// "format" of a rank's file in a folder.
inline constexpr std::string_view kRankFormat = "contraflow-rank";

/// FNV-1a, 64 bits (Fowler, Noll and Vo): tells files of two plans apart, and damage. No protection
/// against who wants to deceive; that is Verify's.
class Checksum {
 public:
  void Add(std::string_view bytes) {
    for (const char byte : bytes) {
      sum_ = (sum_ ^ static_cast<unsigned char>(byte)) * uint64_t{0x100000001B3};
    }
  }
  /// 16 hexadecimal digits.
  std::string Text() const;

 private:
  uint64_t sum_ = uint64_t{0xCBF29CE484222325};
};

/// Parses a plan document in a file, the binary form piece by piece. The checksum, if there is one,
/// gets all bytes of a document that parses.
JsonDocument ParsePlanFile(InputFile* file, std::span<const JsonRows> rows, Checksum* checksum);

/// Holds "format" and "version" against what is wanted.
void CheckFormat(const JsonCursor& root, std::string_view format);

/// The head of a folder with a file for each rank: a plan without programs, and their checksums.
struct FolderHead {
  Plan plan;
  std::vector<std::string> checksums;
};
FolderHead ReadFolderHead(const JsonDocument& json);

/// Everything but programs and slots, in the order of the file.
JsonObject HeadToJson(const Plan& plan, std::optional<int> rank);

/// The binary form of a map with these members, then names, programs and slots of ranks [first,
/// last).
void WriteBinaryRanks(const JsonObject& head, const Plan& plan, int first, int last,
                      const PutBytes& put);

}  // namespace contraflow
