// contraflow-run as its users see it.

#include <doctest/doctest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "compiler/files/file.h"
#include "compiler/files/plan_io.h"
#include "compiler/lower/lower.h"
#include "compiler/simulate/memory.h"
#include "schedules/registry.h"
#include "tests/support/failure.h"
#include "tests/support/run_support.h"
#include "tests/support/support.h"
#include "tests/support/test_folder.h"

namespace contraflow::run_tool_test {
namespace {

namespace fs = std::filesystem;

/// With plans in it.
struct PlanFolder : TestFolder {
  /// Writes a small plan with the costs it was compiled with.
  std::string PlanFile(const std::string& schedule, int ranks, int microbatches) const {
    const std::string file = File(schedule + ".json");
    WritePlanFile(file, Compile(MakeSpec(schedule, ranks, microbatches, UniformCosts(3, 4, 2, 1))));
    return file;
  }

  /// Writes a plan for expert groups of a model, four ranks and eight micro-batches.
  std::string GroupFile(const Model& model, const std::string& schedule, int members,
                        Level level) const {
    const std::string file = File(schedule + "-" + std::string(Name(level)) + ".json");
    WritePlanFile(file, PlanFor(model, schedule, 4, 8, members, level, 6));
    return file;
  }
};

struct Outcome {
  int code = 0;
  std::string out, err;
};

Outcome RunTool(const PlanFolder& folder, const std::string& arguments,
                const std::string& before = "") {
  const std::string command = before + std::string(CF_RUN_TOOL) + " " + arguments + " >" +
                              folder.File("out") + " 2>" + folder.File("err");
  const int status = std::system(command.c_str());
  REQUIRE(WIFEXITED(status));
  return {WEXITSTATUS(status), ReadFile(folder.File("out"), 1 << 20),
          ReadFile(folder.File("err"), 1 << 20)};
}

/// The tool fails with the code and this error alone.
void CheckError(const PlanFolder& folder, const std::string& arguments, int code,
                const std::string& error) {
  CAPTURE(arguments);
  const Outcome run = RunTool(folder, arguments);
  CHECK(run.code == code);
  CHECK(run.out == "");
  CHECK(run.err == "contraflow-run: error: " + error + "\n");
}

TEST_SUITE("cli") {
  TEST_CASE("contraflow-run: trains checks and reports") {
    const PlanFolder folder;
    const std::string plan = folder.PlanFile("dualpipe", 2, 4);
    const Outcome run = RunTool(folder, plan + " --model tiny --steps 3 --check --strict --trace " +
                                            folder.File("trace.json"));
    CHECK(run.code == 0);
    CHECK(run.err == "");
    CHECK(run.out.starts_with("dualpipe: 2 ranks, 2 stages, 4 micro-batches; 2 threads, strict\n"));
    for (const char* text :
         {"\nstep 1  loss 5.", "\nstep 3  loss 5.", " tokens/s\n", "\nREDUCE ", "\nbubble ratio ",
          "gradients and weights equal those without a pipeline, bit for bit\n"}) {
      CAPTURE(text);
      CHECK(Contains(run.out, text));
    }
    const auto trace = nlohmann::json::parse(ReadFile(folder.File("trace.json"), 1 << 20));
    CHECK(trace["traceEvents"].size() > 40);
  }

  TEST_CASE("contraflow-run: --json is one document") {
    const PlanFolder folder;
    const std::string plan = folder.PlanFile("zb-1p", 2, 4);
    const Outcome run = RunTool(folder, plan + " --model tiny --steps 2 --check --json");
    CHECK(run.code == 0);
    CHECK(run.err == "");
    const auto document = nlohmann::json::parse(run.out);
    CHECK(document["schedule"] == "zb-1p");
    REQUIRE(document["steps"].size() == 2);
    CHECK(document["steps"][1]["loss"].get<double>() < 6);
    CHECK(document["check"]["ok"] == true);
    CHECK(document["check"]["compared"].get<int64_t>() > 10'000);
    double shares[2] = {};
    for (const auto& kind : document["kinds"]) {
      if (kind["kind"] == "F") CHECK(kind["count"] == 8);
      shares[0] += kind.value("measured_share", 0.0);
      shares[1] += kind.value("predicted_share", 0.0);
    }
    CHECK(shares[0] == doctest::Approx(1));
    CHECK(shares[1] == doctest::Approx(1));
    CHECK(document["bubble_ratio"]["predicted"].get<double>() > 0);
    CHECK(document["bubble_ratio"]["predicted"].get<double>() < 1);
  }

  TEST_CASE("contraflow-run: expert groups equal the run without a pipeline") {
    const PlanFolder folder;
    const Model tiny = ReadModel("tiny");
    const std::string plan = folder.GroupFile(tiny, "dualpipe", 2, Level::kComponent);
    for (const std::string options : {"", " --strict", " --capacity 0.75"}) {
      CAPTURE(options);
      const Outcome run = RunTool(folder, plan + " --model tiny --steps 2 --check" + options);
      CHECK(run.code == 0);
      CHECK(run.err == "");
      const std::string strict = options == " --strict" ? ", strict" : "";
      const std::string devices = "; 8 threads (4 ranks x 2 devices)" + strict + "\nmodel tiny: ";
      for (const std::string& text :
           {devices, std::string(" equal those without a pipeline, bit for bit\n"),
            std::string("\nATTN_F "), std::string("\nDISPATCH_B "), std::string("\nREDUCE ")}) {
        CHECK(Contains(run.out, text));
      }
      CHECK(Contains(run.out, " % dropped\n") == (options == " --capacity 0.75"));
    }
  }

  TEST_CASE("contraflow-run: placed buffers take the bytes that the plan says") {
    const PlanFolder folder;
    Model model = ReadModel("tiny");
    model.capacity_factor = 0.75;
    const std::string file = folder.GroupFile(model, "dualpipe", 2, Level::kBuffer);
    const std::string arguments = file + " --model tiny --capacity 0.75 --steps 2 --check";
    const auto document = nlohmann::json::parse(RunTool(folder, arguments + " --json").out);
    CHECK(document["expert_parallel"] == 2);
    CHECK(document["check"]["ok"] == true);
    CHECK(document["dropped"].get<int64_t>() > 0);
    CHECK(document["dropped"] == document["steps"][0]["dropped"].get<int64_t>() +
                                     document["steps"][1]["dropped"].get<int64_t>());
    REQUIRE(document["arenas"].size() == 4);
    const Plan plan = ReadPlanFile(file);
    for (size_t r = 0; r < 4; ++r) {
      const auto& arenas = document["arenas"][r];
      CHECK(arenas["rank"] == r);
      CHECK(arenas["predicted"] == arenas["allocated"]);
      const MemoryFigures figures = MemoryOf(plan, *plan.costs)[r];
      for (size_t a = 0; a < kArenaCount; ++a) {
        const std::string name(Name(static_cast<Arena>(a)));
        CHECK(arenas["predicted"][name].get<int64_t>() == figures.arenas[a]);
        CHECK(figures.arenas[a] > 0);
      }
    }
    const Outcome run = RunTool(folder, arguments + " --strict");
    CHECK(run.code == 0);
    CHECK(Contains(run.out, "\n\nbytes   activation "));
    CHECK(Contains(run.out, "\nrank 3  "));
  }

  TEST_CASE("contraflow-run: plans that do not fit the model") {
    const PlanFolder folder;
    const Model tiny = ReadModel("tiny");
    const auto expect = [&](const std::string& arguments, const std::string& error, int code = 1) {
      CheckError(folder, arguments, code, error);
    };
    const std::string plan = folder.GroupFile(tiny, "1f1b", 2, Level::kComponent);
    for (const char* capacity : {"0", "-1", "0.009", "65"}) {
      expect(plan + " --model tiny --capacity " + capacity,
             "--capacity: must be in 0.01..64, such as 1.25; leave it out for the "
             "model's own, which by default serves every token",
             2);
    }
    WriteFile(folder.File("odd.json"), R"({"name": "odd", "experts": 5})");
    expect(plan + " --model " + folder.File("odd.json"),
           "model \"odd\": /experts: must be a multiple of the 2 devices of an expert group, is "
           "5; use --model with such a number, or a plan with another --expert-parallel");
    WriteFile(folder.File("five.json"), R"({"name": "five", "layers": 5})");
    const Outcome layers = RunTool(folder, plan + " --model " + folder.File("five.json"));
    CHECK(layers.code == 1);
    CHECK(layers.err.starts_with(
        "contraflow-run: error: model \"five\": /layers: the plan's 4 stages have "));

    const std::string buffers = folder.GroupFile(tiny, "1f1b", 2, Level::kBuffer);
    const Outcome other = RunTool(folder, buffers + " --model default");
    CHECK(other.code == 1);
    CHECK(other.out == "");
    CHECK(other.err.starts_with(
        "contraflow-run: error: this plan was compiled for another model or device: value "));
    // The same sizes but for what an expert takes.
    CHECK(Contains(RunTool(folder, buffers + " --model tiny --capacity 1").err,
                   "compiled for another model"));

    CostModel opaque = UniformCosts(3, 4, 2, 1);
    opaque.memory = MemoryCost{.activation_bytes = 128, .w_stash_bytes = 64};
    opaque.memory->values.assign(kValueCount, 64);
    WritePlanFile(folder.File("opaque.json"), Lower(GeneratePlan(MakeSpec("1f1b", 2, 4, opaque)),
                                                    opaque, {.target = Level::kBuffer}));
    expect(folder.File("opaque.json"),
           folder.File("opaque.json") +
               ": this plan places the buffers of stages without components, which cannot be "
               "executed; compile it with \"moe\" costs, or with --level comm");
  }

  TEST_CASE("contraflow-run: checkpoints on disk") {
    const PlanFolder folder;
    const std::string plan = folder.PlanFile("dualpipe", 2, 4) + " --model tiny";
    const std::string disk = folder.File("disk"), newest = disk + "/step-00000006/manifest";
    const auto weights = [](const Outcome& run) {
      const size_t at = run.out.find("weights after");
      return at == std::string::npos ? run.err : run.out.substr(at, run.out.find('\n', at) - at);
    };
    const std::string expected = weights(RunTool(folder, plan + " --steps 6"));
    CHECK(RunTool(folder, plan + " --steps 2 --checkpoint " + disk).code == 0);
    const std::string resume = " --resume --steps 6 --checkpoint " + disk;
    Outcome run = RunTool(folder, plan + resume);
    CHECK(Contains(run.out, "\nresuming after step 2\n"));
    CHECK(weights(run) == expected);
    run = RunTool(folder, plan + resume);
    CHECK(Contains(run.out, "\nresuming after step 6: nothing is left to do, "));
    CHECK(weights(run) == expected);
    WriteFile(newest, "no manifest");
    CHECK(RunTool(folder, plan + resume).code == 1);
    // If there is no room for the last checkpoint, the training ends with an error after its
    // report; if there is none for one before, with a warning.
    const std::string full = folder.File("full");
    const Outcome last = RunTool(
        folder, plan + " --steps 4 --checkpoint-every 3 --checkpoint " + full, "ulimit -f 64; ");
    CHECK(last.code == 1);
    CHECK(weights(last).starts_with("weights after step 4: "));
    const std::string why = " was not made: process 0: " + full;
    CHECK(Contains(last.err, "warning: the checkpoint of step 3" + why));
    CHECK(Contains(last.err, "error: the checkpoint of step 4" + why));
    CHECK(!Contains(last.err, "warning: the checkpoint of step 4"));
    CHECK(Contains(last.err, "File too large; make room, or use another --checkpoint folder"));
    for (const auto& entry : fs::directory_iterator(full)) {
      CHECK(entry.path().filename() == ".lock");
    }
  }

#ifndef __SANITIZE_ADDRESS__
#ifndef __SANITIZE_THREAD__
  TEST_CASE("contraflow-run: too little address space is an error and no wait") {
    const PlanFolder folder;
    const std::string run = folder.PlanFile("1f1b", 4, 8) + " --model tiny --steps 1";
    for (const char* const limit : {"250000", "400000", "560000"}) {
      CAPTURE(limit);
      const Outcome outcome =
          RunTool(folder, run, std::string("ulimit -v ") + limit + "; timeout 30 ");
      CHECK(outcome.code == 1);
      CHECK(outcome.err.starts_with("contraflow-run: error: out of memory: "));
    }
    CHECK(RunTool(folder, run, "ulimit -v 2000000; timeout 30 ").code == 0);
    // Nor for threads of OpenBLAS that nobody makes use of, also not at the end.
    for (const char* const limit : {"180000", "200000", "220000", "300000"}) {
      CAPTURE(limit);
      const std::string one = folder.PlanFile("gpipe", 1, 2) + " --model tiny --steps 1";
      const std::string before =
          "export OPENBLAS_NUM_THREADS=4; ulimit -v " + std::string(limit) + "; timeout 30 ";
      const Outcome outcome = RunTool(folder, one, before);
      CHECK(outcome.code <= 1);
      CHECK((outcome.code == 0) == outcome.err.empty());
    }
  }
#endif
#endif

  TEST_CASE("contraflow-run: names of files stay on their line and steer no terminal") {
    const PlanFolder folder;
    const std::string plan = folder.PlanFile("1f1b", 2, 2),
                      odd = folder.File("a\n::warning ::\x1B[2J");
    fs::rename(plan, odd);
    const auto check = [&](const std::string& arguments, int code) {
      CAPTURE(arguments);
      const Outcome run = RunTool(folder, arguments);
      CHECK(run.code == code);
      for (const std::string& text : {run.out, run.err}) {
        CHECK(!Contains(text, "\n::warning"));
        CHECK(!Contains(text, "\x1B"));
      }
      CHECK((run.out + run.err).find(R"(a\n::warning ::\u001b[2J)") != std::string::npos);
    };
    const auto quoted = [](const std::string& name) { return " '" + name + "' "; };
    check(quoted(odd + ".none"), 1);
    check(quoted(odd) + "--model tiny --steps 1 --data" + quoted(odd), 0);
    check(quoted(odd) + "--model" + quoted(odd), 1);
    check(quoted(odd) + "--stages" + quoted(odd), 1);
    check(quoted(odd) + "--model tiny --steps 1 --calibrate=" + quoted(odd).substr(1), 1);
    check(quoted(odd) + "--model tiny --steps 1 --checkpoint" + quoted(odd), 1);
  }

  TEST_CASE("contraflow-run: errors and their exit codes") {
    const PlanFolder folder;
    const std::string plan = folder.PlanFile("1f1b", 2, 4);
    const auto expect = [&](const std::string& arguments, int code, const std::string& error) {
      CheckError(folder, arguments, code, error);
    };
    expect("", 2, "PLAN is required; see contraflow-run --help");
    expect(plan + " --stepz 3", 2,
           "unknown option \"--stepz\" (did you mean \"--steps\"?); see contraflow-run --help");
    expect(plan + " --steps 0", 2, "--steps: must be at least 1, is 0");
    expect(plan + " --timeout 0", 2, "--timeout: must be above 0 and at most 1000000 seconds");
    for (const std::string value : {"nan", "-inf"}) {
      expect(plan + " --timeout " + value, 2,
             "--timeout: must be a time up to 7 days, such as 500ms, 1s, 2m or 1h, is \"" + value +
                 "\"");
      for (const std::string flag : {"--lr", "--clip", "--peak-flops", "--capacity"}) {
        expect(plan + " " + flag + " " + value, 2,
               flag + ": must be a finite number, is \"" + value + "\"; see contraflow-run --help");
      }
    }
    expect(plan + " --transport nccl", 2,
           "--transport nccl: links GPUs; leave it out, or add --device cuda");
    for (const std::string flag : {"--graph", "--no-graph", "--stamps 2", "--partition-sms 8",
                                   "--one-sided", "--matmul-choices f"}) {
      expect(
          plan + " " + flag, 2,
          flag.substr(0, flag.find(' ')) + ": for a GPU only; leave it out, or add --device cuda");
    }
    const std::string cuda = plan + " --device cuda ";
    for (const std::string transport : {"shm", "tcp", "mpi"}) {
      expect(cuda + "--transport " + transport, 2,
             "--transport shm"
             ": connects CPUs; GPUs are connected by nccl, virtual ranks on one GPU by "
             "threads; leave it out to let the launcher decide");
    }
    expect(cuda + "--strict", 2, "--strict: for --device cpu only; leave it out");
    expect(cuda + "--graph --no-graph", 2, "--graph and --no-graph exclude each other");
    expect(cuda + "--stamps 0 --trace " + folder.File("t"), 2,
           "--trace: needs times, and with --stamps 0 no step is timed");
    expect(cuda + "--transport threads --one-sided", 2,
           "--one-sided: is for GPUs connected by nccl; with --transport threads leave it out");
    for (const std::string sms : {"0", "12"}) {
      expect(cuda + "--partition-sms " + sms, 2,
             "--partition-sms: must be a multiple of 8, at least 8, is " + sms);
    }
    for (const std::string flag :
         {"--validate-every 2", "--validate-batches 2", "--checkpoint-every 2",
          "--checkpoint-keep 2", "--resume", "--resume-step 2"}) {
      expect(
          plan + " --stages ./mine.so " + flag, 2,
          flag.substr(0, flag.find(' ')) + ": is not for custom stages; leave it out, or --stages");
    }
    // No build or no machine trains with this plan on a GPU; nothing is written before it says so.
    const Outcome no_gpu = RunTool(folder, cuda + "--trace " + folder.File("trace.json"));
    CHECK(no_gpu.code == 1);
    CHECK(no_gpu.out == "");
    CHECK(no_gpu.err.starts_with("contraflow-run: error: "));
    CHECK(!std::filesystem::exists(folder.File("trace.json")));
    expect(plan + " --resume", 2, "--resume needs --checkpoint DIR, the folder of the checkpoints");
    expect(plan + " --checkpoint " + folder.File("c") + " --checkpoint-every 0", 2,
           "--checkpoint-every: must be in 1..1000000000, is 0");
    expect(plan + " --checkpoint " + folder.File("c") + " --checkpoint-keep 0", 2,
           "--checkpoint-keep: must be at least 1, is 0");
    expect(plan + " --checkpoint " + folder.File("c") + " --resume-step 0", 2,
           "--resume-step: must be in 1..1000000000, is 0");
    expect(plan + " --checkpoint " + folder.File("c") + " --resume-step 7", 1,
           "--resume-step: " + folder.File("c") + " has no checkpoint of step 7");
    expect(plan + " --rendezvous-timeout 0", 2,
           "--rendezvous-timeout: must be above 0 and at most 1000000 seconds");
    expect(plan + " --trace " + folder.File("no/trace.json"), 1,
           folder.File("no/trace.json") +
               ": cannot be written: No such file or directory; does its folder exist?");
    expect(
        plan + " --calibrate " + plan, 1,
        "--calibrate " + plan + ": is also the plan, which it would overwrite; name another file");
    expect(plan + " --calibrate " + folder.File("both") + " --trace " + folder.File("./both"), 1,
           "--trace " + folder.File("./both") +
               ": is also --calibrate, which it would overwrite; name another file");
    expect(plan + " --calibrate " + folder.File(""), 1,
           folder.File("") + ": cannot be written: is a folder; name a file");
    expect(plan + " --calibrate ''", 2, "--calibrate: must be a file, is empty");

    Plan compute = ReadPlanFile(plan);
    const Plan sound = compute;
    compute.level = Level::kCompute;
    WritePlanFile(folder.File("compute.json"), compute);
    expect(folder.File("compute.json"), 1,
           folder.File("compute.json") +
               ": a plan of level compute has no messages and cannot be executed; compile it with "
               "--level comm");

    Plan unsound = sound;
    unsound.programs[0].pop_back();
    unsound.programs[1].pop_back();
    WritePlanFile(folder.File("unsound.json"), unsound);
    const Outcome refused = RunTool(folder, folder.File("unsound.json"));
    CHECK(refused.code == 1);
    CHECK(refused.out == "");
    CHECK(refused.err.starts_with("contraflow-run: error: " + folder.File("unsound.json") +
                                  ": the plan is not sound and is not executed:\n  rank 0"));
    CHECK(Contains(refused.err, "\n  rank 1"));  // All findings, not the first.
  }

  TEST_CASE("contraflow-run: help version and an interruption") {
    const PlanFolder folder;
    const Outcome help = RunTool(folder, "--help");
    CHECK(help.code == 0);
    CHECK(Contains(help.out, "--transport threads|shm|tcp|mpi|nccl"));
    CHECK(RunTool(folder, "--version").out.starts_with("contraflow-run "));

    // The first Ctrl-C ends the training after the step under way, with its report; the shell sees
    // that a signal ended it.
    const std::string plan = folder.PlanFile("gpipe", 2, 4);
    const std::string script = std::string(CF_RUN_TOOL) + " " + plan +
                               " --model tiny --steps 1000000 >" + folder.File("out") +
                               " & run=$!; until grep -q \"^step  *3 \" " + folder.File("out") +
                               "; do sleep 0.05; done; kill -INT $run; wait $run";
    const int status = std::system(("bash -c 'set -m; " + script + "' 2>/dev/null").c_str());
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 130);
    const std::string out = ReadFile(folder.File("out"), 1 << 24);
    CHECK(Contains(out, "\nstopped after step "));
    CHECK(Contains(out, "\nbubble ratio "));
  }
}

}  // namespace
}  // namespace contraflow::run_tool_test
