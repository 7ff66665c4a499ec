// Every allocation and every system call of the tools fails once: they end with one error and exit
// code 1, or as if nothing had happened, and nothing is left half written. One process of a job
// fails; the others may also end with 75.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/runtime/launch/job.h"

namespace contraflow::injection_test {
namespace {

namespace fs = std::filesystem;

constexpr long kMost = 20'000;
constexpr auto kPatience = std::chrono::seconds(60);
constexpr int kRanks = 4, kLost = 75;

/// How a command has ended; 128 + N after signal N, -1 where it did not.
struct Outcome {
  int code = -1;
  std::string out, err;
};

/// Runs a tool in a folder, or, with a `process`, a job of it; then something fails in that one.
/// Its code is the greatest of all.
Outcome Run(const Words& words, const std::string& folder, const std::string& inject,
            int process = -1) {
  const std::string out = folder + "/../out", err = folder + "/../err";
  for (const std::string& path : {out, err}) WriteText(path, "");
  Words plain = {"OPENBLAS_NUM_THREADS=1", "LC_ALL=C"};
  if (process >= 0) {
    static std::mutex mutex;
    const std::lock_guard lock(mutex);  // a port is given to one at a time
    // The name of a host, so that it is looked up.
    plain.insert(plain.end(), {"WORLD_SIZE=" + std::to_string(kRanks), "MASTER_ADDR=localhost",
                               "MASTER_PORT=" + std::to_string(FreePort())});
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addchdir_np(&actions, folder.c_str());
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, out.c_str(), O_WRONLY | O_APPEND, 0);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, err.c_str(), O_WRONLY | O_APPEND, 0);
  const auto pointers = [](Words& texts) {
    std::vector<char*> result;
    for (std::string& text : texts) result.push_back(text.data());
    result.push_back(nullptr);
    return result;
  };
  std::vector<pid_t> living;
  for (int p = 0; p < (process < 0 ? 1 : kRanks); ++p) {
    Words arguments = words, environment = plain;
    if (process >= 0) environment.push_back("RANK=" + std::to_string(p));
    if (process < 0 || p == process) {
      environment.insert(environment.end(), {"LD_PRELOAD=" CF_INJECT, "CONTRAFLOW_INJECT=" + inject,
                                             "CONTRAFLOW_INJECT_COUNT=" + folder + "/../count"});
    }
    if (posix_spawn(&living.emplace_back(), words[0].c_str(), &actions, nullptr,
                    pointers(arguments).data(), pointers(environment).data()) != 0) {
      throw std::runtime_error("cannot start " + words[0]);
    }
  }
  posix_spawn_file_actions_destroy(&actions);
  Outcome outcome;
  const auto end = std::chrono::steady_clock::now() + kPatience;
  const auto ended = [&](pid_t pid) {
    int status = 0;
    if (waitpid(pid, &status, WNOHANG) != pid) return false;
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    outcome.code = std::max(outcome.code, code);
    return true;
  };
  while (std::erase_if(living, ended), !living.empty()) {
    if (std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      continue;
    }
    for (const pid_t pid : living) kill(pid, SIGKILL), waitpid(pid, nullptr, 0);
    return {};
  }
  outcome.out = ReadText(out);
  outcome.err = ReadText(err);
  return outcome;
}

/// Something that a tool does.
struct Scenario {
  std::string name;
  Words words;
  /// Makes what has to be there before; may be empty.
  std::function<void(const std::string& folder)> prepare;
  /// Why what is there afterwards is wrong; "": it is right. The tool has `failed` or not.
  std::function<std::string(const std::string& folder, bool failed)> flaw;
  /// Process of a job that fails; -1: the tool is alone.
  int process = -1;
};

std::string WeightsIn(const std::string& report) {
  const size_t at = report.find("SHA-256 ");
  return at == std::string::npos ? "" : report.substr(at + 8, 64);
}

/// Names in a folder that are not in the list, and not the lock of one of checkpoints.
std::string OtherNames(const std::string& folder, const std::vector<std::string>& names) {
  std::string others;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (name != ".lock" && std::ranges::count(names, name) == 0) others += " " + name;
  }
  return others.empty() ? "" : "leaves" + others;
}

/// Why this is not how a tool may end; "": it is.
std::string FlawOf(const Scenario& scenario, const Outcome& outcome, const Outcome& undisturbed,
                   const std::string& folder) {
  const bool alone = scenario.process < 0;
  if (outcome.code == -1) return "hangs";
  if (outcome.code > 1 && (alone || outcome.code != kLost)) {
    return "exit code " + std::to_string(outcome.code);
  }
  const int errors = CountOf(outcome.err, ": error: ");
  if (outcome.code > 0 && (errors == 0 || (alone && errors > 1))) return "says nothing, or twice";
  const bool whole = outcome.code == 0 && CountOf(outcome.err, " dropped: ") == 0;
  const bool same = scenario.words[0] == CF_TOOL
                        ? outcome.out == undisturbed.out
                        : WeightsIn(outcome.out) == WeightsIn(undisturbed.out);
  if (whole && !same) return "prints something else";
  // A job leaves it to the next to remove what it has begun.
  if (alone && fs::exists(folder + "/kept")) {
    const std::string flaw = OtherNames(folder + "/kept", {"step-00000002", "step-00000003"});
    if (!flaw.empty()) return flaw;
  }
  return scenario.flaw(folder, outcome.code > 0);
}

/// Fails the calls of a kind, some at a time. CONTRAFLOW_INJECT_STRIDE is every how many calls one
/// does, 1 are all; without it a few do. For allocations in jobs, which take long, it is every
/// twentieth of those.
void Inject(const TestFolder& root, const Scenario& scenario, const std::string& kind) {
  const bool alone = scenario.process < 0;
  const auto make = [&](size_t thread) {
    const std::string folder = root.File(std::to_string(thread)) + "/work";
    fs::remove_all(folder);
    fs::create_directories(folder);
    if (scenario.prepare) scenario.prepare(folder);
    return folder;
  };
  const auto run = [&](const std::string& folder, long n) {
    return Run(scenario.words, folder, kind + ":" + std::to_string(n), scenario.process);
  };
  const Outcome undisturbed = run(make(0), 0);
  REQUIRE_MESSAGE(undisturbed.code == 0, scenario.name, ": ", undisturbed.err);
  const long calls = std::min(std::stol(ReadText(root.File("0/count"))), kMost);
  REQUIRE(calls > 0);
  const char* const given = std::getenv("CONTRAFLOW_INJECT_STRIDE");
  const long some = calls / (alone ? 8 : 4) + 1, rare = !alone && kind == "memory" ? 20 : 1;
  const long stride = given == nullptr ? some : rare * std::max(std::atol(given), 1L);
  std::atomic<long> next{(stride + 1) / 2};
  std::mutex mutex;
  std::map<int, long> codes;
  std::string flaws;
  long flawed = 0;
  const auto work = [&](size_t thread) {
    for (long n = 0; (n = next.fetch_add(stride)) <= calls;) {
      const std::string folder = make(thread);
      const Outcome outcome = run(folder, n);
      const std::string flaw = FlawOf(scenario, outcome, undisturbed, folder);
      const std::lock_guard lock(mutex);
      ++codes[outcome.code];
      if (flaw.empty() && !(kind == "signal" && outcome.code != 0)) continue;
      ++flawed;
      flaws += "\n" + kind + ":" + std::to_string(n) + " " + flaw + "\n  " + outcome.err;
    }
  };
  std::vector<std::jthread> threads;
  for (size_t thread = 0; thread < 6; ++thread) threads.emplace_back(work, thread);
  threads.clear();
  if (given != nullptr) {
    std::printf("%s, %s: of %ld calls, by exit code:", scenario.name.c_str(), kind.c_str(), calls);
    for (const auto& [code, count] : codes) std::printf(" %d: %ld", code, count);
    std::printf("; %ld flawed\n", flawed);
    std::fflush(stdout);
  }
  CHECK_MESSAGE(flaws == "", scenario.name, flaws);
}

class Scenarios {
 public:
  explicit Scenarios(const TestFolder& root) : plan_(root.File("plan.json")) {
    const Words compile = {CF_TOOL, "compile",        "--schedule", "zb-v", "--ranks",
                           "4",     "--microbatches", "4",          "-o"};
    const Words train = {CF_RUN_TOOL, plan_, "--model", "tiny", "--steps"};
    const Words resume = {"3", "--checkpoint", "kept", "--resume"};
    const std::string first = root.File("first/work");
    fs::create_directories(first);
    Run(Plus(compile, {plan_}), first, "none:0");
    weights_[2] = WeightsIn(Run(Plus(train, {"2", "--checkpoint", "kept"}), first, "none:0").out);
    const std::string saved = root.File("saved");
    fs::copy(first + "/kept", saved, fs::copy_options::recursive);
    weights_[3] = WeightsIn(Run(Plus(train, resume), first, "none:0").out);

    const auto nothing = [](const std::string& folder, bool) { return OtherNames(folder, {}); };
    const auto keeps = [this](const std::string& folder, bool failed) {
      const bool kept = fs::exists(folder + "/kept/step-00000002");
      return !failed && !kept ? "no checkpoint" : Resumed(folder, 2);
    };
    const Words keep = Plus(train, {"2", "--checkpoint", "kept"});
    const Words meet = Plus(keep, {"--rendezvous-timeout", "5", "--timeout", "10"});
    all = {{"compile",
            Plus(compile, {"made.json"}),
            {},
            [this](const std::string& folder, bool failed) {
              if (failed) return OtherNames(folder, {});
              const bool same = ReadText(folder + "/made.json") == ReadText(plan_);
              return same ? OtherNames(folder, {"made.json"}) : "another plan";
            }},
           {"verify", {CF_TOOL, "verify", plan_}, {}, nothing},
           {"simulate", {CF_TOOL, "simulate", plan_, "--json"}, {}, nothing},
           {"run",
            Plus(train, {"2", "--trace", "trace.json"}),
            {},
            [](const std::string& folder, bool failed) {
              if (!failed && !fs::exists(folder + "/trace.json")) return std::string("no trace");
              return OtherNames(folder, {"trace.json"});
            }},
           {"checkpoint", keep, {}, keeps},
           {"resume", Plus(train, resume),
            [saved](const std::string& folder) {
              fs::copy(saved, folder + "/kept", fs::copy_options::recursive);
            },
            [this](const std::string& folder, bool) { return Resumed(folder, 3); }},
           {"rank 0 of a job", meet, {}, keeps, 0},
           {"rank 1 of a job", meet, {}, keeps, 1}};
  }

  std::vector<Scenario> all;

 private:
  static Words Plus(Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  /// Returns the fault where a training goes on, undisturbed, from what a disturbed one has left.
  /// A state that went well is not tried again.
  std::string Resumed(const std::string& folder, int steps) {
    std::set<std::string> left = {std::to_string(steps)};
    std::error_code missing;
    for (const auto& entry : fs::recursive_directory_iterator(folder + "/kept", missing)) {
      const std::string path = entry.path().string().substr(folder.size());
      if (path != "/kept/.lock") left.insert(path + " " + ReadText(entry.path()));
    }
    {
      const std::lock_guard lock(mutex_);
      if (sound_.contains(left)) return "";
    }
    std::string flaw = ResumedAnew(folder, steps);
    const std::lock_guard lock(mutex_);
    if (flaw.empty()) sound_.insert(std::move(left));
    return flaw;
  }

  std::string ResumedAnew(const std::string& folder, int steps) const {
    const Outcome outcome = Run({CF_RUN_TOOL, plan_, "--model", "tiny", "--steps",
                                 std::to_string(steps), "--checkpoint", "kept", "--resume"},
                                folder, "none:0");
    if (outcome.code != 0) return "cannot be resumed: " + outcome.err;
    if (WeightsIn(outcome.out) != weights_.at(steps)) return "resumes to other weights";
    std::string flaw = OtherNames(folder, {"kept"});
    if (!flaw.empty()) return flaw;
    return OtherNames(folder + "/kept", {"step-00000002", "step-00000003"});
  }

  const std::string plan_;
  std::map<int, std::string> weights_;  // by number of steps
  std::mutex mutex_;
  std::set<std::set<std::string>> sound_;  // a state that was left and resumed well
};

TEST_SUITE("jobs") {
  TEST_CASE("out of memory once, anywhere") {
    const TestFolder root;
    Scenarios scenarios(root);
    for (const Scenario& scenario : scenarios.all) Inject(root, scenario, "memory");
  }

  TEST_CASE("refused by the system once, anywhere") {
    const TestFolder root;
    Scenarios scenarios(root);
    for (const Scenario& scenario : scenarios.all) Inject(root, scenario, "system");
  }

  TEST_CASE("interrupted by a signal once, anywhere") {
    const TestFolder root;
    Scenarios scenarios(root);
    for (const Scenario& scenario : scenarios.all) Inject(root, scenario, "signal");
  }
}

}  // namespace
}  // namespace contraflow::injection_test
