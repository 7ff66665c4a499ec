// contraflow-run as processes of mpirun, srun and torchrun: whoever starts it, whatever carries the
// messages, the same plan trains the same weights, bit for bit.

#include <doctest/doctest.h>

#include <filesystem>
#include <string>

#include "tests/runtime/launch/job.h"
#include "tests/support/failure.h"

namespace contraflow::job_run_test {
namespace {

/// A plan, and how many processes it takes.
struct Case {
  std::string name;  ///< of the file
  int processes;
  std::string compile;
};

constexpr const char* kModelWithFourLayers =
    R"({"name": "four", "layers": 4, "width": 16, "heads": 2, "experts": 4, "expert_width": 16,
        "sequence": 8, "batch": 2})";

/// Runs the job, which must end well, and gives what it trained.
Trained CheckJob(const JobSpec& spec) {
  LaunchedJob job(spec);
  CAPTURE(job.Story());
  CHECK(job.Wait(kPatience));
  for (int p = 0; p < job.processes(); ++p) {
    CHECK(job.ending(p).code == 0);
    CHECK(job.Err(p) == "");
    // One process speaks for all.
    if (p > 0) CHECK(job.Out(p) == "");
  }
  CHECK(job.Living().empty());
  return TrainedBy(job.Out(0));
}

void CheckSame(const Trained& trained, const Trained& expected) {
  CHECK(trained.weights == expected.weights);
  CHECK(trained.losses == expected.losses);
}

/// The plan in every way: strict or not, compared with one rank or not.
void CheckPlan(JobStyle style, const Case& plan, const Words& variants) {
  CAPTURE(plan.name);
  const TestFolder folder;
  const std::string file = CompilePlan(folder, plan.name, plan.compile);
  const Words words = {file, "--model", "tiny", "--steps", "2"};
  const Trained expected = TrainWithThreads(words);
  REQUIRE(expected.weights.size() == 64);
  REQUIRE(expected.losses.size() == 2);
  for (const std::string& variant : variants) {
    CAPTURE(variant);
    JobSpec spec;
    spec.style = style;
    spec.processes = plan.processes;
    spec.words = words;
    spec.words.push_back("--json");
    if (!variant.empty()) spec.words.push_back(variant);
    CheckSame(CheckJob(spec), expected);
  }
}

const Case kTwo = {"1f1b-2", 2, "--schedule 1f1b --ranks 2 --microbatches 4"};
const Case kFour = {"dualpipe-4", 4, "--schedule dualpipe --ranks 4 --microbatches 8"};
const Case kGroups = {"groups", 8,
                      "--schedule dualpipe --ranks 4 --microbatches 8 --expert-parallel 2 "
                      "--costs moe-unit --level component"};

}  // namespace

TEST_SUITE("jobs") {
  TEST_CASE("threads: a schedule of PyTorch's that adds micro-batches last first") {
    const TestFolder folder;
    const std::string plan = folder.File("plan.json");
    RunTool(folder,
            "import " CF_TEST_DIR "/reference/torch_LoopedBFS.csv --from torch-csv -o " + plan);
    RunTool(folder, "verify " + plan);
    const Words words = {plan, "--model", "tiny", "--steps", "2", "--check"};
    CHECK(TrainWithThreads(words).losses.size() == 2);
  }

  TEST_CASE("torchrun: a process needs the head of a plan folder and its own rank's file only") {
    const TestFolder folder;
    const std::string compile =
        "compile --schedule 1f1b --ranks 2 --data-parallel 2 --costs moe-unit --model tiny "
        "--level buffer --microbatches ";
    const std::string whole = folder.File("whole/"), other = folder.File("other/");
    RunTool(folder, compile + "4 -o " + whole);
    RunTool(folder, compile + "8 -o " + other);
    const Words rest = {"--model", "tiny", "--steps", "2"};
    const auto words = [&](const std::string& plan) {
      Words all = {plan};
      all.insert(all.end(), rest.begin(), rest.end());
      return all;
    };
    const auto part = [&](const std::string& from, int process) {
      // Two replicas of each rank are neighbours.
      const std::string rank = "rank-000" + std::to_string(process / 2) + ".cbor";
      const std::string own = folder.File("of-" + std::to_string(process) + "/");
      std::filesystem::create_directories(own);
      WriteText(own + "plan.cbor", ReadText(from + "plan.cbor"));
      WriteText(own + rank, ReadText(from + rank));
      return own;
    };
    JobSpec spec;
    spec.processes = 4;
    for (int p = 0; p < 4; ++p) {
      spec.words_of[p] = words(part(whole, p));
      spec.words_of[p].push_back("--json");
    }
    CheckSame(CheckJob(spec), TrainWithThreads(words(whole)));
    // With the head of another plan its program fits too, but not to the others'.
    part(other, 3);
    LaunchedJob job(spec);
    CAPTURE(job.Story());
    CHECK(job.Wait(kPatience));
    CHECK(job.ending(0).code != 0);
    CHECK(Contains(job.Err(0), "has a different plan than"));
  }

#ifdef CF_HAVE_MPI
  TEST_CASE("mpirun: two processes equal the threads of one") {
    CheckPlan(JobStyle::kMpirun, kTwo, {"", "--check", "--strict"});
    CheckPlan(JobStyle::kMpirun, {"zb-2", 2, "--schedule zb-1p --ranks 2 --microbatches 4"},
              {"--strict"});
  }

  TEST_CASE("mpirun: four processes equal the threads of one") {
    CheckPlan(JobStyle::kMpirun, {"1f1b-4", 4, "--schedule 1f1b --ranks 4 --microbatches 8"},
              {"--check"});
    CheckPlan(JobStyle::kMpirun, {"zb-4", 4, "--schedule zb-1p --ranks 4 --microbatches 8"},
              {"--strict"});
    CheckPlan(JobStyle::kMpirun, kFour, {"", "--strict"});
    CheckPlan(JobStyle::kMpirun,
              {"replicas", 4, "--schedule 1f1b --ranks 2 --microbatches 4 --data-parallel 2"},
              {""});
  }

  TEST_CASE("mpirun: eight processes equal the threads of one") {
    CheckPlan(JobStyle::kMpirun, {"1f1b-8", 8, "--schedule 1f1b --ranks 8 --microbatches 8"},
              {"--strict"});
    CheckPlan(JobStyle::kMpirun,
              {"dualpipe-8", 8, "--schedule dualpipe --ranks 8 --microbatches 16"}, {""});
  }

  TEST_CASE("mpirun: expert groups equal the threads of one") {
    CheckPlan(JobStyle::kMpirun, kGroups, {"--check", "--strict"});
    CheckPlan(JobStyle::kMpirun,
              {"buffers", 8,
               "--schedule 1f1b --ranks 4 --microbatches 8 --expert-parallel 2 --costs moe-unit "
               "--model tiny --level buffer"},
              {"--strict"});
  }
#endif

  TEST_CASE("torchrun: its environment starts the same training") {
    CheckPlan(JobStyle::kTorchrun, kTwo, {"", "--strict"});
    CheckPlan(JobStyle::kTorchrun, kFour, {"--check", "--strict"});
    CheckPlan(JobStyle::kTorchrun, kGroups, {"--strict"});
  }

  TEST_CASE("srun: its environment starts the same training") {
    CheckPlan(JobStyle::kSrun, kTwo, {"--check"});
    CheckPlan(JobStyle::kSrun, kFour, {"", "--strict"});
  }

  TEST_CASE("srun: with an address and a secret of its own") {
    const TestFolder folder;
    const std::string file = CompilePlan(folder, kTwo.name, kTwo.compile);
    const Words words = {file, "--model", "tiny", "--steps", "2"};
    JobSpec spec;
    spec.style = JobStyle::kSrun;
    spec.processes = 2;
    spec.words = words;
    spec.words.push_back("--json");
    spec.environment = {{"MASTER_ADDR", "127.0.0.1"},
                        {"MASTER_PORT", std::to_string(FreePort())},
                        {"SLURM_STEP_NODELIST", "elsewhere[7-9]"},
                        {"CONTRAFLOW_SECRET", "known to this job alone"}};
    const Trained expected = TrainWithThreads(words);
    CheckSame(CheckJob(spec), expected);
    // On one node without either, whatever its name.
    spec.environment = {{"SLURM_STEP_NODELIST", "node-17"}, {"SLURM_STEP_NUM_NODES", "1"}};
    CheckSame(CheckJob(spec), expected);
    // An address of nobody, as of a host whose name is another machine's.
    spec.environment["MASTER_ADDR"] = "192.0.2.1";
    CheckSame(CheckJob(spec), expected);
  }

  TEST_CASE("torchrun: however the processes stand for the devices") {
    const TestFolder folder;
    const std::string file = CompilePlan(
        folder, "cube",
        "--schedule 1f1b --ranks 2 --microbatches 2 --data-parallel 2 --expert-parallel 2 --costs "
        "moe-unit --level component");
    const Words words = {file, "--model", "tiny", "--steps", "2"};
    const Trained expected = TrainWithThreads(words);
    for (const char* const order : {"ep-dp-pp", "pp-ep-dp", "dp-pp-ep"}) {
      CAPTURE(order);
      JobSpec spec;
      spec.processes = 8;
      spec.words = words;
      spec.words.insert(spec.words.end(), {"--json", "--rank-order", order});
      CheckSame(CheckJob(spec), expected);
    }
  }

  TEST_CASE("any number of ranks trains the weights that one rank trains") {
    const TestFolder folder;
    const std::string model = folder.File("four-layers.json");
    WriteText(model, kModelWithFourLayers);
    const auto train = [&](int ranks) {
      const std::string number = std::to_string(ranks);
      const std::string file = CompilePlan(folder, "ranks-" + number,
                                           "--schedule 1f1b --microbatches 4 --ranks " + number);
      JobSpec spec;
      spec.processes = ranks;
      spec.words = {file, "--model", model, "--steps", "2", "--json"};
      return CheckJob(spec);
    };
    const Trained expected = train(1);
    CHECK(expected.weights.size() == 64);
    CHECK(expected.losses.size() == 2);
    // They are not the same whatever is trained.
    CHECK(
        TrainWithThreads({CompilePlan(folder, "one", "--schedule 1f1b --microbatches 4 --ranks 1"),
                          "--model", model, "--steps", "2", "--seed", "2"})
            .weights != expected.weights);
    CheckSame(train(2), expected);
    CheckSame(train(4), expected);
  }
}

}  // namespace contraflow::job_run_test
