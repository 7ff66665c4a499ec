// Checkpoints as a user of contraflow-run has them: who may go on from which, and that it makes no
// difference.

#include <doctest/doctest.h>

#include <filesystem>
#include <string>

#include "tests/runtime/launch/job.h"

namespace contraflow::job_resume_test {
namespace {

namespace fs = std::filesystem;

/// Eight layers, so that 1, 2, 4 and 8 ranks can train it.
constexpr const char* kModel =
    R"({"name": "eight", "layers": 8, "width": 16, "heads": 2, "experts": 4, "expert_width": 16,
        "sequence": 8, "batch": 2})";

/// Trainings of two ranks with checkpoints in one folder.
struct Bench {
  Bench() : checkpoints(folder.File("checkpoints")), model(folder.File("eight-layers.json")) {
    WriteText(model, kModel);
    plan = Plan(2);
  }

  std::string Plan(int ranks, const std::string& schedule = "1f1b") const {
    const std::string number = std::to_string(ranks);
    return CompilePlan(folder, schedule + number,
                       "--schedule " + schedule + " --microbatches 4 --ranks " + number);
  }

  JobSpec Spec(int steps, const Words& more = {}) const {
    JobSpec spec;
    spec.processes = 2;
    spec.words = {plan,           "--model",  model, "--steps", std::to_string(steps),
                  "--checkpoint", checkpoints};
    spec.words.insert(spec.words.end(), more.begin(), more.end());
    return spec;
  }

  /// Trains this many steps with a checkpoint after each second one.
  void Train(int steps) const {
    LaunchedJob job(Spec(steps, {"--checkpoint-every", "2"}));
    CAPTURE(job.Story());
    CHECK(job.Wait(kPatience));
    REQUIRE(job.ending(0).code == 0);
    REQUIRE(job.ending(1).code == 0);
  }

  TestFolder folder;
  std::string checkpoints, model, plan;
};

/// The job's one JSON document.
Trained Finish(const JobSpec& spec) {
  LaunchedJob job(spec);
  CAPTURE(job.Story());
  CHECK(job.Wait(kPatience));
  for (int p = 0; p < job.processes(); ++p) CHECK(job.ending(p).code == 0);
  return TrainedBy(job.Out(0));
}

/// All processes end with 1, and one error has all these parts.
void CheckRefused(const JobSpec& spec, const Words& parts) {
  LaunchedJob job(spec);
  CAPTURE(job.Story());
  CHECK(job.Wait(kPatience));
  for (int p = 0; p < job.processes(); ++p) CHECK(job.ending(p).code == 1);
  const std::string all = job.Everything();
  CHECK(CountOf(all, "error: ") == 1);
  for (const std::string& part : parts) {
    CAPTURE(part);
    CHECK(CountOf(all, part) >= 1);
  }
  CHECK(CountOf("\n" + all, "\nstep ") == 0);
}

/// The folder of a step, whatever its number is padded with.
fs::path FolderOf(const std::string& checkpoints, int step) {
  for (const fs::directory_entry& entry : fs::directory_iterator(checkpoints)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with("step-")) continue;
    if (std::stoi(name.substr(5)) == step) return entry.path();
  }
  return {};
}

/// The largest file of a folder that is not the manifest.
fs::path ShardIn(const fs::path& folder) {
  fs::path shard;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename() == "manifest") continue;
    if (shard.empty() || entry.file_size() > fs::file_size(shard)) shard = entry.path();
  }
  return shard;
}

void FlipByte(const fs::path& file, size_t at) {
  std::string bytes = ReadText(file);
  REQUIRE(at < bytes.size());
  bytes[at] = static_cast<char>(bytes[at] ^ 1);
  WriteText(file, bytes);
}

}  // namespace

TEST_SUITE("jobs") {
  TEST_CASE("resumed: by other ranks and launchers to the same weights") {
    const Bench bench;
    const Words words = {bench.plan, "--model", bench.model, "--steps"};
    Words five = words, two = words;
    five.push_back("5");
    const Trained expected = TrainWithThreads(five);
    REQUIRE(expected.losses.size() == 5);
    bench.Train(2);
    // Step 3 on four ranks of torchrun, step 4 on eight, step 5 on one in threads.
    JobSpec spec = bench.Spec(3, {"--resume", "--json"});
    spec.words[0] = bench.Plan(4);
    spec.processes = 4;
    CHECK(Finish(spec).losses == Words{expected.losses[2]});
    spec = bench.Spec(4, {"--resume", "--json", "--strict"});
    spec.words[0] = bench.Plan(8, "zb-1p");
    spec.processes = 8;
#ifdef CF_HAVE_MPI
    spec.style = JobStyle::kMpirun;
#endif
    CHECK(Finish(spec).losses == Words{expected.losses[3]});
    spec = bench.Spec(5, {"--resume"});
    spec.words[0] = bench.Plan(1);
    const Trained last = TrainWithThreads(spec.words);
    CHECK(last.losses == Words{expected.losses[4]});
    CHECK(last.weights == expected.weights);
  }

  TEST_CASE("resumed: a finished training has nothing left to do") {
    const Bench bench;
    bench.Train(2);
    const Trained again = Finish(bench.Spec(2, {"--resume", "--json"}));
    CHECK(again.losses.empty());
    CHECK(again.weights ==
          TrainWithThreads({bench.plan, "--model", bench.model, "--steps", "2"}).weights);
  }

  TEST_CASE("resumed: an empty folder begins with step 1 and says so") {
    const Bench bench;
    LaunchedJob job(bench.Spec(2, {"--resume"}));
    CAPTURE(job.Story());
    CHECK(job.Wait(kPatience));
    CHECK(job.ending(0).code == 0);
    CHECK(CountOf(job.Out(0), "no checkpoint in " + bench.checkpoints +
                                  " yet: starting at step 1\nstep 1 ") == 1);
    CHECK(CountOf(job.Out(0), "\nstep 2 ") == 1);
    CheckRefused(bench.Spec(2, {"--resume-step", "7"}), {"has no checkpoint of step 7"});
  }

  TEST_CASE("refused: a damaged checkpoint but not the one before when asked for") {
    const Bench bench;
    bench.Train(4);
    const fs::path newest = FolderOf(bench.checkpoints, 4), shard = ShardIn(newest);
    REQUIRE(fs::exists(shard));
    REQUIRE(fs::exists(FolderOf(bench.checkpoints, 2)));
    const JobSpec resume = bench.Spec(5, {"--resume", "--json"});

    const std::string sound = ReadText(shard);
    FlipByte(shard, sound.size() / 2);
    CheckRefused(resume, {shard.filename(), "damaged", "--resume-step 2"});
    WriteText(shard, sound.substr(0, sound.size() / 2));
    CheckRefused(resume, {shard.filename(), " bytes", "--resume-step 2"});
    fs::remove(shard);
    CheckRefused(resume, {shard.filename(), "is missing", "--resume-step 2"});
    WriteText(shard, sound);
    const fs::path manifest = newest / "manifest";
    FlipByte(manifest, fs::file_size(manifest) / 2);
    CheckRefused(resume, {"manifest", "damaged", "--resume-step 2"});

    const Trained trained = Finish(bench.Spec(5, {"--resume-step", "2", "--json"}));
    const Trained expected = TrainWithThreads({bench.plan, "--model", bench.model, "--steps", "5"});
    CHECK(trained.weights == expected.weights);
    CHECK(trained.losses == Words(expected.losses.begin() + 2, expected.losses.end()));
  }

  TEST_CASE("refused: the checkpoint of another training") {
    const Bench bench;
    bench.Train(2);
    CheckRefused(bench.Spec(3, {"--resume", "--seed", "2"}),
                 {"was made with seed 1, here it is 2; "});
    JobSpec spec = bench.Spec(3, {"--resume"});
    spec.words[2] = bench.folder.File("other-model.json");
    WriteText(spec.words[2], R"({"name": "eight", "layers": 8, "width": 32, "heads": 2,
        "experts": 4, "expert_width": 16, "sequence": 8, "batch": 2})");
    CheckRefused(spec, {"was made with another model: width 16, here 32; "});
    const std::string text = bench.folder.File("text");
    WriteText(text, std::string(3000, 'x'));
    CheckRefused(bench.Spec(3, {"--resume", "--data", text}), {"was made with another text: "});
    // Not to be mixed with those of another training either.
    CheckRefused(bench.Spec(3), {"--checkpoint " + bench.checkpoints, "--resume"});
    // Still as it was.
    CHECK(Finish(bench.Spec(3, {"--resume", "--json"})).losses.size() == 1);
  }

  TEST_CASE("refused: checkpoints that cannot be written") {
    const Bench bench;
    JobSpec spec = bench.Spec(2);
    WriteText(bench.folder.File("file"), "no folder");
    spec.words[6] = bench.folder.File("file") + "/checkpoints";
    CheckRefused(spec, {bench.folder.File("file")});
  }
}

}  // namespace contraflow::job_resume_test
