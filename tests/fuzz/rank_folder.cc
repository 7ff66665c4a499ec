// Any bytes are a folder with a plan in it, a file for each rank, or an Error. A line "--" stands
// between two files: the head first, then the ranks.

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "compiler/files/plan_io.h"
#include "compiler/plan/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace contraflow;
  namespace fs = std::filesystem;
  static const fs::path folder =
      fs::temp_directory_path() / ("contraflow-fuzz-folder-" + std::to_string(getpid()));
  fs::create_directory(folder);
  constexpr std::string_view kBetween = "\n--\n";
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  size_t begin = 0;
  for (int file = -1; file < 4 && begin <= bytes.size(); ++file) {
    const size_t end = std::min(bytes.find(kBetween, begin), bytes.size());
    std::ofstream(folder / (file < 0 ? "plan.cbor" : RankFileName(file)), std::ios::binary)
        << bytes.substr(begin, end - begin);
    begin = end + kBetween.size();
  }
  try {
    const RankPlan part = ReadRankFile(folder.string(), 0);
    const Plan plan = ReadRankFiles(folder.string());
    CF_ASSERT(plan.programs[0] == part.plan.programs[0]);
    CF_ASSERT(ReadPlan(WritePlan(plan), "again") == plan);
  } catch (const Error&) {
  }
  fs::remove_all(folder);
  return 0;
}
