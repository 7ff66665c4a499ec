// Facts that the processes of a job must have alike, and what they tell each other as bytes.

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "runtime/core/bytes.h"
#include "runtime/launch/process_run.h"
#include "tests/support/failure.h"
#include "tests/support/run_support.h"

namespace contraflow::agreement_test {
namespace {

std::string NameOfProcess(int process) { return "rank " + std::to_string(process); }

std::vector<Fact> Facts() {
  return {{"plan", "p1", "a.json (1f1b)"}, {"seed", "1", "1"}, {"text", "t", "licence"}};
}

/// Every proper prefix of the bytes is refused, or reads as something else.
template <typename Read>
void CheckPrefixes(const std::string& bytes, const Read& read) {
  for (size_t size = 1; size < bytes.size(); ++size) {
    CAPTURE(size);
    CHECK(Failure([&] { read(bytes.substr(0, size)); }) != "");
  }
}

TEST_SUITE("unit") {
  TEST_CASE("agreement: equal facts agree whatever is shown") {
    std::vector<std::vector<Fact>> all(4, Facts());
    all[2][0].shown = "elsewhere/a.json (1f1b)";
    CHECK(Disagreement(all, NameOfProcess) == "");
    CHECK(Disagreement(std::vector<std::vector<Fact>>{Facts()}, NameOfProcess) == "");
  }

  TEST_CASE("agreement: the first difference names both sides and who else differs") {
    std::vector<std::vector<Fact>> all(4, Facts());
    all[2][1] = {"seed", "7", "7"};
    CHECK(Disagreement(all, NameOfProcess) ==
          "rank 2 has a different seed than rank 0: 7 against 1; give all processes the same");
    all[2][0] = {"plan", "p2", "b.json (zb-1p)"};
    CHECK(Disagreement(all, NameOfProcess) ==
          "rank 2 has a different plan than rank 0: b.json (zb-1p) against a.json (1f1b); give all "
          "processes the same");
    all[1][2].key = "u";
    CHECK(
        Disagreement(all, NameOfProcess) ==
        "rank 1 has a different text than rank 0: licence against licence; give all processes the "
        "same; also different from rank 0: rank 2");
  }

  TEST_CASE("agreement: processes that list other facts are of another build") {
    std::vector<std::vector<Fact>> all(2, Facts());
    all[1].pop_back();
    CHECK(Disagreement(all, NameOfProcess) ==
          "rank 1 runs another build than rank 0; start the same program everywhere");
    all[1] = Facts();
    all[1][1].noun = "sede";
    CHECK(Disagreement(all, NameOfProcess).starts_with("rank 1 runs another build"));
  }

  TEST_CASE("agreement: facts travel as bytes and nothing else is read as facts") {
    std::vector<Fact> facts = Facts();
    facts.push_back({"", std::string("\0\xff", 2), ""});
    const std::string bytes = WriteFacts(facts);
    CHECK(ReadFacts(bytes) == facts);
    CHECK(ReadFacts("").empty());
    std::string huge = bytes;
    huge[7] = '\x7f';  // The first length, beyond all memory.
    CHECK(Failure([&] { ReadFacts(huge); }) == "the facts of a process are cut off");
    CHECK(Failure([&] { ReadFacts(bytes.substr(0, bytes.size() - 1)); }) ==
          "the facts of a process are cut off");
    CHECK(Failure([&] { ReadFacts(std::string(24 * 1001, '\0')); }) ==
          "a process has more facts than there are");
  }

  TEST_CASE("records: the step of a device travels as bytes") {
    DeviceStep step;
    step.losses = {{3, 1.5f}, {0, -2.25f}};
    step.dropped = 77;
    step.spans = {{1, 2}, {-3, 4}, {5, int64_t{1} << 60}};
    const std::string bytes = WriteDeviceStep(step);
    const DeviceStep read = ReadDeviceStep(bytes);
    CHECK(read.losses == step.losses);
    CHECK(read.dropped == 77);
    REQUIRE(read.spans.size() == 3);
    CHECK(read.spans[1].start == -3);
    CHECK(read.spans[2].end == int64_t{1} << 60);
    CheckPrefixes(bytes, [](const std::string& part) { ReadDeviceStep(part); });
    CHECK(Failure([&] { ReadDeviceStep(bytes + "x"); }) ==
          "the record of a step is followed by bytes that belong to nothing");
    std::string huge = bytes;
    huge[15] = '\x7f';
    CHECK(Failure([&] { ReadDeviceStep(huge); }) == "the record of a step is cut off");
  }

  TEST_CASE("records: digests travel as bytes") {
    std::map<std::string, Digest> digests;
    digests["layer 0 qkv"] = Sha256("a");
    digests["head"] = Sha256("b");
    const std::string bytes = ByteWriter().PutByName(digests).Take();
    CHECK(ByteReader(bytes, "digests are").TakeByName<Digest>() == digests);
    const auto cut = std::string_view(bytes).substr(0, bytes.size() - 1);
    CHECK(Failure([&] { ByteReader(cut, "digests are").TakeByName<Digest>(); }) ==
          "digests are cut off");
  }

  TEST_CASE("progress is described by the plan") {
    const Plan plan = TwoRankPlan();
    const RankOrder order(RankOrder::kDefault, plan);
    Progress progress;
    const auto text = [&] { return DescribeProgress(&plan, &order, 1, progress.Read()); };
    CHECK(DescribeProgress(nullptr, nullptr, 1, progress.Read()) == "before the first step");
    progress.Enter(3, Progress::kStart);
    CHECK(text() == "step 3, at its start");
    progress.Enter(3, 0);
    CHECK(text() == "step 3, instruction 0 (" + ToString(plan.programs[1][0]) + ")");
    progress.WaitFor(0);
    CHECK(text() ==
          "step 3, instruction 0 (" + ToString(plan.programs[1][0]) + "), waits for rank 0");
    progress.WaitFor(0, 1);
    CHECK(text() == "step 3, instruction 0 (" + ToString(plan.programs[1][0]) +
                        "), waits for rank 0 at instruction 1 (" + ToString(plan.programs[1][1]) +
                        ")");
    progress.WaitFor(Progress::kNobody);
    progress.Enter(3, Progress::kEnd);
    CHECK(text() == "step 3, at its end");
    // A state that was torn while it changed is left out.
    progress.Enter(4, 1'000'000);
    progress.WaitFor(99, 1'000'000);
    CHECK(text() == "step 4");
  }
}

}  // namespace
}  // namespace contraflow::agreement_test
