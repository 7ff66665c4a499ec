#include "tools/contraflow-run/supervisor.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <map>
#include <numeric>
#include <optional>
#include <system_error>
#include <utility>

#include "compiler/files/file.h"
#include "compiler/files/json.h"
#include "compiler/files/plan_io.h"
#include "compiler/plan/error.h"
#include "runtime/checkpoint/folder.h"
#include "runtime/checkpoint/memory.h"
#include "runtime/launch/world.h"
#include "runtime/model/model_json.h"
#include "tools/cli/exit.h"
#include "tools/contraflow-run/children.h"
#include "tools/contraflow-run/elastic.h"
#include "tools/contraflow-run/output.h"
#include "tools/report/report.h"

namespace contraflow {
namespace {

using Words = std::vector<std::string>;

std::string SystemReason() { return std::generic_category().message(errno); }

/// The words without an option and, where it takes one, its value.
Words Without(const Words& words, const std::string& option, bool takes_value) {
  Words rest;
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i].starts_with(option + "=")) continue;
    if (words[i] != option) {
      rest.push_back(words[i]);
    } else if (takes_value) {
      ++i;
    }
  }
  return rest;
}

uint64_t Random() {
  uint64_t number = 0;
  if (getrandom(&number, sizeof number, 0) != sizeof number) {
    throw Error("the system has no random numbers: " + SystemReason());
  }
  return number;
}

/// A port of this machine that nobody listens at, and that the system gives no connection of its
/// own accord.
int FreePort() {
  for (int tries = 0; tries < 100; ++tries) {
    const int port = static_cast<int>(15'000 + Random() % 15'000);
    const Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (socket.get() < 0) throw Error("no socket: " + SystemReason());
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const auto* generic = reinterpret_cast<const sockaddr*>(&address);
    if (bind(socket.get(), generic, sizeof address) == 0) return port;
  }
  throw Error("of 100 ports of this machine none is free");
}

class Supervisor {
 public:
  Supervisor(const RunOptions& options, const Words& words);
  int Run();

 private:
  void Start(bool resume);
  void Shrink(const std::string& why);
  /// Of the newest checkpoint on disk, or in memory where the last start wrote one; 0: none.
  int NewestStep() const;
  std::string NameOfProcess(int process) const;

  RunOptions options_;
  Words words_;  // of every process, but for --resume
  const World world_;
  const bool alone_;          // no launcher
  std::optional<Plan> plan_;  // where it is alone
  Children children_;
  std::optional<NewFolder> folder_;  // for the files of a smaller job
};

Supervisor::Supervisor(const RunOptions& options, const Words& words)
    : options_(options),
      words_(Without(Without(words, "--restarts", true), "--elastic", false)),
      world_(ReadWorld([](const char* name) { return std::getenv(name); })),
      alone_(world_.launcher == Launcher::kNone),
      children_(options.grace) {
  if (alone_) {
    plan_ = ReadPlanFile(options.plan);
  } else if (options.elastic) {
    throw Error(
        "--elastic: starts fewer processes, but here a launcher has started them; leave it out, or "
        "start contraflow-run without the launcher");
  }
}

int Supervisor::NewestStep() const {
  // Under a launcher this node may have only its own part.
  std::vector<int> processes(static_cast<size_t>(std::max(children_.count(), 1)));
  std::iota(processes.begin(), processes.end(), alone_ ? 0 : world_.rank);
  int newest = 0;
  try {
    if (!options_.memory_checkpoint.empty() && children_.count() > 0) {
      newest = NewestInMemory(options_.memory_checkpoint, processes, children_.pid(0));
    }
    const std::map<int, std::string> steps = CompleteSteps(options_.checkpoint);
    if (!steps.empty()) newest = std::max(newest, steps.rbegin()->first);
  } catch (const std::exception&) {
    // Who needs them says what is wrong with them.
  }
  return newest;
}

std::string Supervisor::NameOfProcess(int process) const {
  if (!alone_) return "process " + std::to_string(world_.rank);
  return NameOf(*plan_, RankOrder(options_.rank_order, *plan_).DeviceOf(process));
}

void Supervisor::Start(bool resume) {
  Words words = words_;
  if (resume && std::ranges::count(words, "--resume") == 0) words.push_back("--resume");
  children_.Clear();
  if (!alone_) return children_.Start(words);
  // What torchrun would say; this process has read its own environment already.
  const auto set = [](const char* name, const std::string& value) {
    setenv(name, value.c_str(), /*overwrite=*/1);
  };
  const int count = RankOrder(options_.rank_order, *plan_).processes();
  set("WORLD_SIZE", std::to_string(count));
  set("MASTER_ADDR", "127.0.0.1");
  set("MASTER_PORT", std::to_string(FreePort()));
  unsetenv("TORCHELASTIC_USE_AGENT_STORE");
  unsetenv("TORCHELASTIC_RUN_ID");
  if (options_.secret_file.empty() && std::getenv("CONTRAFLOW_SECRET") == nullptr) {
    set("CONTRAFLOW_SECRET", std::to_string(Random()) + "-" + std::to_string(Random()));
  }
  for (int process = 0; process < count; ++process) {
    for (const char* const name : {"RANK", "LOCAL_RANK"}) set(name, std::to_string(process));
    children_.Start(words);
  }
}

/// Goes on with fewer ranks.
void Supervisor::Shrink(const std::string& why) {
  const SmallerJob job = ShrinkJob(*plan_, options_);
  if (!folder_)
    folder_.emplace((std::filesystem::temp_directory_path() / "contraflow-run").string());
  const std::string plan = folder_->path() + "/plan.json";
  WritePlanFile(plan, job.plan);
  *std::ranges::find(words_, options_.plan) = plan;
  options_.plan = plan;
  if (ReadModel(options_.model).layers == 0) {
    // As many layers as there were, not as suit so many stages.
    options_.model = folder_->path() + "/model.json";
    std::string text;
    WriteJson(ModelToJson(job.model), &text);
    WriteFile(options_.model, text + "\n");
    words_ = Without(words_, "--model", true);
    words_.insert(words_.end(), {"--model", options_.model});
  }
  plan_ = job.plan;
  SayNow(why + "; going on with " + Counted(plan_->ranks, "rank") + ": " + plan_->schedule + ", " +
         Counted(plan_->stages, "stage") + ", " + Counted(plan_->microbatches, "micro-batch"));
}

int Supervisor::Run() {
  int restarts = 0;
  int newest = NewestStep();
  int suspect = -1;  // who was lost at every start since the last checkpoint
  for (bool resume = false;; resume = true) {
    Start(resume);
    const ChildrenEnding ending = children_.Wait();
    // Nobody may meet the job of before, which other supervisors watch over.
    if (ending.lost && !alone_) children_.Pause();
    if (children_.asked() != 0 && ending.code != kExitStopped && ending.code != kExitFine) {
      children_.EndAsAsked();  // as if there were no supervisor
    }
    if (children_.asked() != 0 || !ending.lost) return ending.code;
    const std::string what = ending.process < 0 ? "a rank was lost or hung"
                                                : NameOfProcess(ending.process) + " " + ending.how;
    // Who was lost at the start has not shown what there is.
    const int step = std::max(newest, NewestStep());
    if (step > newest) restarts = 0;
    newest = step;
    if (restarts == 0) suspect = ending.process;
    if (suspect != ending.process) suspect = -1;
    const std::string from =
        step == 0 ? "from the beginning" : "after step " + std::to_string(step);
    if (restarts < options_.restarts) {
      ++restarts;
      SayNow(what + "; restart " + std::to_string(restarts) + " of " +
             std::to_string(options_.restarts) + ", " + from);
    } else if (options_.elastic && suspect >= 0) {
      const std::string often =
          what + " at each of " + std::to_string(restarts + 1) + " starts " + from;
      try {
        Shrink(often);
      } catch (const Error& error) {
        SayNow("error: " + often + "; " + WithFlags(error.what()));
        return kExitLost;
      }
      restarts = newest = 0;  // Copies in memory fit the same ranks only.
    } else {
      SayNow("error: " + what + "; " + std::to_string(restarts) +
             " restarts brought no new checkpoint" +
             (options_.elastic ? ", and it is not always the same rank that is lost" : ""));
      return kExitLost;
    }
  }
}

}  // namespace

int Supervise(const RunOptions& options, const std::vector<std::string>& words) {
  return Supervisor(options, words).Run();
}

}  // namespace contraflow
