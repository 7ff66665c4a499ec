// Plans as folders: what is written is what is read, and what does not belong together is refused.

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>

#include "compiler/files/file.h"
#include "compiler/files/json_builder.h"
#include "compiler/files/plan_document.h"
#include "compiler/files/plan_io.h"
#include "compiler/plan/cost.h"
#include "schedules/registry.h"
#include "tests/support/failure.h"
#include "tests/support/random_plan.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"
#include "tests/support/test_folder.h"

namespace contraflow::rank_files_test {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kLimit = 1 << 24;

Plan SomePlan(int microbatches = 6) {
  return Compile(MakeSpec("1f1b", 3, microbatches, UniformCosts(3, 4, 2, 1)));
}

/// Returns the error of the folder "plan" in the place, whose own name is left out of it.
std::string Read(const TestFolder& place) {
  std::string text = Failure([&] { ReadPlanFile(place.File("plan")); });
  const std::string name = place.File("");
  for (size_t at; (at = text.find(name)) != std::string::npos;) text.erase(at, name.size());
  return text;
}

/// Replaces a rank's file, and its checksum in the head as if it had been written so.
void Forge(const std::string& folder, int rank, const std::string& content) {
  WriteFile(PathIn(folder, RankFileName(rank)), content);
  PlanChecksum sum;
  sum.Add(content);
  const std::string path = PathIn(folder, "plan.cbor");
  InputFile file(path, kLimit);
  JsonDocument head = ParsePlanFile(&file, {}, nullptr);
  head.value->at("files").at(static_cast<size_t>(rank)) = sum.Text();
  std::string document;
  WriteCbor(*head.value, &document);
  WriteFile(path, document);
}

TEST_SUITE("unit") {
  TEST_CASE("a plan as a folder has the head and a file for each rank") {
    const TestFolder place;
    const Plan plan = SomePlan();
    WritePlanFile(place.File("plan/"), plan);
    CHECK(NamesInFolder(place.File("plan")) ==
          std::vector<std::string>{"plan.cbor", "rank-0000.cbor", "rank-0001.cbor",
                                   "rank-0002.cbor"});
    CHECK(NamesInFolder(place.path.string()) == std::vector<std::string>{"plan"});
    CHECK(ReadPlanFile(place.File("plan")) == plan);
    CHECK(ReadPlanFile(place.File("plan/")) == plan);
    CHECK(RankFileName(12345) == "rank-12345.cbor");
  }

  TEST_CASE("a rank needs the head and its own file") {
    const TestFolder place;
    const Plan plan = SomePlan();
    WriteRankFiles(place.File("plan"), plan);
    fs::remove(place.File("plan/rank-0000.cbor"));
    fs::remove(place.File("plan/rank-0002.cbor"));
    const RankPlan own = ReadRankFile(place.File("plan"), 1);
    CHECK(own == ReadRankPlan(WriteRankPlan(plan, 1), "r.json"));
    // The head tells that they have parts of the same plan.
    const std::string head = ReadRankFilesHead(place.File("plan"));
    WriteRankFiles(place.File("again"), plan);
    WriteRankFiles(place.File("other"), SomePlan(7));
    CHECK(ReadRankFilesHead(place.File("again")) == head);
    CHECK(ReadRankFilesHead(place.File("other")) != head);
    CHECK(Failure([&] { ReadRankFile(place.File("plan"), 3); }) ==
          (place.File("plan")) + ": has no rank 3, ranks are 0..2");
    CHECK(Read(place) == "plan/rank-0000.cbor: cannot be read: No such file or directory");
  }

  TEST_CASE("a folder is replaced as a whole") {
    const TestFolder place;
    WriteRankFiles(place.File("plan"), SomePlan(9));
    const Plan plan = Compile(MakeSpec("1f1b", 2, 4, UniformCosts(1, 1, 1)));
    WriteRankFiles(place.File("plan"), plan);
    CHECK(ReadPlanFile(place.File("plan")) == plan);
    CHECK(NamesInFolder(place.File("plan")).size() == 3);
    CHECK(NamesInFolder(place.path.string()).size() == 1);
  }

  TEST_CASE("a folder of something else is not replaced") {
    const TestFolder place;
    fs::create_directory(place.File("plan"));
    WriteFile(place.File("plan/thesis.tex"), "five years");
    CHECK(Failure([&] { WriteRankFiles(place.File("plan"), SomePlan()); }) ==
          (place.File("plan")) +
              ": cannot be written: it is a folder that holds other files than a plan's; name a "
              "new folder");
    CHECK(ReadFile(place.File("plan/thesis.tex"), kLimit) == "five years");
    CHECK(Read(place) ==
          "plan: is a folder without a plan: there is neither plan.json nor plan.cbor in it");
  }

  TEST_CASE("what cannot be written leaves nothing") {
    const TestFolder place;
    WriteFile(place.File("plan"), "a file");
    CHECK(Failure([&] { WriteRankFiles(place.File("plan"), SomePlan()); }) ==
          (place.File("plan")) + ": cannot be written: Not a directory");
    CHECK(ReadFile(place.File("plan"), kLimit) == "a file");
    CHECK(Failure([&] { WriteRankFiles(place.File("no/plan"), SomePlan()); }) ==
          (place.File("no/plan")) +
              ": cannot be written: No such file or directory; does the folder that it is to be in "
              "exist?");
    CHECK(NamesInFolder(place.path.string()).size() == 1);
  }

  TEST_CASE("files that do not belong together are refused") {
    const TestFolder place;
    const Plan plan = SomePlan();
    WriteRankFiles(place.File("plan"), plan);
    const std::string own = place.File("plan/rank-0001.cbor");
    const std::string kept = ReadFile(own, kLimit);
    SUBCASE("of another plan with the same head") {
      Plan other = plan;
      std::swap(other.programs[1][0], other.programs[1][1]);
      WriteRankFiles(place.File("other"), other);
      fs::copy_file(place.File("other/rank-0001.cbor"), own, fs::copy_options::overwrite_existing);
      const std::string text = Read(place);
      CAPTURE(text);
      CHECK(text.find("plan/rank-0001.cbor: has the checksum ") == 0);
      CHECK(Contains(text, ": it is damaged, or belongs to another plan; write the folder again"));
    }
    SUBCASE("of another rank") {
      fs::copy_file(place.File("plan/rank-0002.cbor"), own, fs::copy_options::overwrite_existing);
      CHECK(Read(place) ==
            "plan/rank-0001.cbor: /rank: is 2, but by its name this is the file of rank 1");
    }
    SUBCASE("one too many") {
      WriteFile(place.File("plan/rank-0003.cbor"), kept);
      CHECK(Read(place) ==
            "plan: \"rank-0003.cbor\" does not belong to the plan, which has 3 ranks; remove it, "
            "or write the folder again");
    }
    SUBCASE("cut off anywhere") {
      for (size_t size = 0; size < kept.size(); size += 1 + size / 16) {
        WriteFile(own, std::string_view(kept).substr(0, size));
        CAPTURE(size);
        CHECK(Read(place).find("plan/rank-0001.cbor: ") == 0);
      }
    }
    SUBCASE("a bit of it changed") {
      std::mt19937_64 random(5);
      for (int i = 0; i < 50; ++i) {
        std::string changed = kept;
        changed[random() % changed.size()] ^= static_cast<char>(1U << random() % 8);
        WriteFile(own, changed);
        CHECK(Read(place) != "accepted");
      }
    }
    WriteFile(own, kept);
    fs::remove(place.File("plan/rank-0003.cbor"));
    CHECK(ReadPlanFile(place.File("plan")) == plan);
  }

  TEST_CASE("a folder with a plan.json is that plan") {
    const TestFolder place;
    fs::create_directory(place.File("plan"));
    CHECK(PlanPath(place.File("plan")) == place.File("plan"));
    WritePlanFile(place.File("plan/plan.json"), SomePlan());
    WriteFile(place.File("plan/costs.json"), "{}");
    CHECK(PlanPath(place.File("plan")) == place.File("plan/plan.json"));
    CHECK(ReadPlanFile(place.File("plan")) == SomePlan());
    CHECK(PlanPath(place.File("absent")) == place.File("absent"));
  }

  TEST_CASE("a pipe in a folder is not waited for") {
    for (const char* const name : {"plan.cbor", "rank-0001.cbor"}) {
      CAPTURE(name);
      const TestFolder place;
      const std::string folder = place.File("plan");
      WritePlanFile(folder + "/", SomePlan());
      const std::string file = PathIn(folder, name);
      fs::remove(file);
      REQUIRE(mkfifo(file.c_str(), 0600) == 0);
      CHECK(Failure([&] { ReadPlanFile(folder); }) == file + ": is not a regular file");
    }
  }

  TEST_CASE("parts of a folder are not taken for plans") {
    const TestFolder place;
    WriteRankFiles(place.File("plan"), SomePlan());
    const std::string head = place.File("plan/plan.cbor"), rank = place.File("plan/rank-0000.cbor");
    CHECK(Failure([&] { ReadPlanFile(head); }) == head +
                                                      ": /files: this file is the head of a folder "
                                                      "with a file for each rank; give the folder");
    CHECK(Failure([&] { ReadPlanFile(rank); }) ==
          rank + ": /format: must be \"contraflow-plan\", is \"contraflow-rank\"");
    WritePlanFile(head, SomePlan());
    CHECK(Read(place) == "plan/plan.cbor: the key \"files\" is missing; add it");
  }

  TEST_CASE("what a rank file lacks is said") {
    const TestFolder place;
    WriteRankFiles(place.File("plan"), SomePlan());
    const auto forged = [&](const std::string& text) {
      Forge(place.File("plan"), 0, text);
      return Read(place);
    };
    const std::string begin = R"({"format": "contraflow-rank", "version": 1, "rank": 0)";
    const std::string at = "plan/rank-0000.cbor: ";
    CHECK(forged(begin + "}") == at + "the key \"programs\" is missing; add it");
    CHECK(forged(begin + R"(, "programs": []})") ==
          at + "/programs: must have 1 program, that of the rank, has 0");
    CHECK(forged(begin + R"(, "programs": [[], []]})") ==
          at + "/programs: must have 1 program, that of the rank, has 2");
    CHECK(forged(begin + R"(, "programs": [["F s9 m0"]]})") ==
          at + "/programs/0/0: instruction \"F s9 m0\": the stage must be in 0..2, is 9");
    CHECK(forged(begin + R"(, "programs": [[]], "slots": [[]]})") ==
          at + "/slots: only a plan of level buffer has slots, this one is of level comm");
    CHECK(forged(begin + R"(, "programs": [[]], "ranks": 3})").find(at + "unknown key \"ranks\"") ==
          0);
    CHECK(forged(begin + R"(, "programs": [[]]})") == "accepted");
  }
}

TEST_SUITE("property") {
  TEST_CASE("random plans survive a folder") {
    const TestFolder place;
    std::mt19937_64 random(7);
    for (int i = 0; i < 15; ++i) {
      CAPTURE(i);
      const Plan plan = RandomPlan(&random);
      WriteRankFiles(place.File("plan"), plan);
      CHECK(ReadPlanFile(place.File("plan")) == plan);
      const int rank = static_cast<int>(random() % static_cast<uint64_t>(plan.ranks));
      CHECK(ReadRankFile(place.File("plan"), rank) ==
            ReadRankPlan(WriteRankPlan(plan, rank), "r.json"));
    }
  }

  TEST_CASE("a damaged rank file with the right checksum gives a plan or an Error") {
    const TestFolder place;
    WriteRankFiles(place.File("plan"), SomePlan());
    const std::string whole = ReadFile(place.File("plan/rank-0001.cbor"), kLimit);
    std::mt19937_64 random(13);
    int accepted = 0, refused = 0;
    for (int i = 0; i < CasesToDraw(120); ++i) {
      std::string damaged = whole;
      const size_t at = random() % damaged.size();
      if (random() % 2 == 0) {
        damaged[at] = static_cast<char>(damaged[at] + (random() % 2 == 0 ? 1 : -1));
      } else {
        damaged.erase(at, 1 + random() % 4);
      }
      Forge(place.File("plan"), 1, damaged);
      const std::string text = Read(place);
      CAPTURE(text);
      if (text == "accepted") {
        ++accepted;
        const Plan read = ReadPlanFile(place.File("plan"));
        CHECK(ReadPlan(WritePlan(read), "p") == read);
      } else {
        ++refused;
        CHECK(text.find("plan/rank-0001.cbor:") == 0);
      }
    }
    CHECK(accepted > 1);
    CHECK((kSanitized || refused > 40));
  }
}

}  // namespace
}  // namespace contraflow::rank_files_test
