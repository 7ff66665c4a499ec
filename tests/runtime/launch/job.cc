#include "tests/runtime/launch/job.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <list>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "tests/support/failure.h"
#include "tests/support/held_port.h"
#include "tests/support/mpirun_ports.h"

namespace contraflow {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kGlance{2};

Clock::time_point After(double seconds) {
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

/// Environment of every process, whoever runs the tests.
Variables CleanEnvironment(const std::string& mark, const std::string& folder) {
  // mpirun keeps its files in TMPDIR, and those of its shared memory outlive ranks that are killed.
  // Threads that OpenBLAS starts are never used, and spin for longer than some processes live.
  Variables clean = {{"LC_ALL", "C"},
                     {"OPENBLAS_NUM_THREADS", "1"},
                     {"TMPDIR", folder},
                     {"OMPI_MCA_btl_vader_backing_directory", folder},
                     {"CONTRAFLOW_TEST_JOB", mark}};
  for (const char* const name :
       {"PATH", "HOME", "ASAN_OPTIONS", "LSAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS"}) {
    if (const char* const value = std::getenv(name)) clean[name] = value;
  }
  return clean;
}

void Put(const Variables& from, Variables* to) {
  for (const auto& [name, value] : from) {
    if (value.empty()) {
      to->erase(name);
    } else {
      (*to)[name] = value;
    }
  }
}

/// Variables that a launcher sets for each process.
Variables LauncherVariables(JobStyle style, int process, int processes, int port) {
  const std::string number = std::to_string(process), size = std::to_string(processes);
  switch (style) {
    case JobStyle::kMpirun:
      // Under sanitizers: OpenMPI leaks what it allocates, and its locks and threads are its own.
      // When one is lost, the others have two seconds for their report, and not one: a busy
      // machine.
      return {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
              {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
              {"OMPI_MCA_odls_base_sigkill_timeout", "2"},
              {"OMPI_MCA_oob_tcp_dynamic_ipv4_ports", MpirunPorts(port)},
              {"OMPI_MCA_oob_tcp_dynamic_ipv6_ports", MpirunPorts(port)},
              {"ASAN_OPTIONS", "detect_leaks=0"},
              {"TSAN_OPTIONS", "ignore_noninstrumented_modules=1:detect_deadlocks=0"}};
    case JobStyle::kSrun:
      return {{"SLURM_PROCID", number},
              {"SLURM_NTASKS", size},
              {"SLURM_STEP_NUM_TASKS", size},
              {"SLURM_LOCALID", number},
              {"SLURM_JOB_ID", std::to_string(port)},
              {"SLURM_STEP_ID", "0"},
              {"SLURM_STEP_NODELIST", "localhost"}};
    case JobStyle::kTorchrun:
      return {{"RANK", number},
              {"WORLD_SIZE", size},
              {"LOCAL_RANK", number},
              {"MASTER_ADDR", "127.0.0.1"},
              {"MASTER_PORT", std::to_string(port)}};
  }
  return {};
}

Words ToolWords(const JobSpec& spec, int process) {
  const auto own = spec.words_of.find(process);
  const Words& more = own != spec.words_of.end() ? own->second : spec.words;
  Words words = {CF_RUN_TOOL};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

/// mpirun takes several programs, with ":" between them.
Words MpirunWords(const JobSpec& spec) {
  Words words = {"mpirun", "--oversubscribe"};
  const auto add = [&](int processes, const Words& more) {
    words.insert(words.end(), {"-n", std::to_string(processes)});
    words.insert(words.end(), more.begin(), more.end());
  };
  if (spec.words_of.empty()) {
    add(spec.processes, ToolWords(spec, 0));
    return words;
  }
  for (int process = 0; process < spec.processes; ++process) {
    if (process > 0) words.push_back(":");
    add(1, ToolWords(spec, process));
  }
  return words;
}

/// The environment of a process, each variable ending in a null; "" if it cannot be read.
std::string EnvironmentOf(const std::string& pid) { return ReadText("/proc/" + pid + "/environ"); }

bool HasVariable(const std::string& environment, const std::string& variable) {
  return Contains('\0' + environment, '\0' + variable + '\0');
}

/// The processes of this machine that have all these variables.
std::vector<pid_t> ProcessesWith(const Words& variables) {
  std::vector<pid_t> found;
  DIR* const proc = opendir("/proc");
  if (proc == nullptr) throw std::runtime_error("cannot read /proc");
  while (const dirent* const entry = readdir(proc)) {
    const std::string pid = entry->d_name;
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string environment = EnvironmentOf(pid);
    if (std::ranges::all_of(variables, [&](const std::string& variable) {
          return HasVariable(environment, variable);
        })) {
      found.push_back(static_cast<pid_t>(std::stol(pid)));
    }
  }
  closedir(proc);
  return found;
}

std::vector<char*> Pointers(Words* words) {
  std::vector<char*> pointers;
  for (std::string& word : *words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

/// In the child: becomes the program. Only what may be called after fork in a program with threads.
[[noreturn]] void Become(const char* out, const char* err, char* const* words,
                         char* const* environment) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // also where the test itself is killed
  const int null = open("/dev/null", O_RDONLY);
  const int files[] = {null, open(out, O_WRONLY | O_CREAT | O_APPEND, 0600),
                       open(err, O_WRONLY | O_CREAT | O_APPEND, 0600)};
  for (int i = 0; i < 3; ++i) {
    if (files[i] < 0 || dup2(files[i], i) < 0) _exit(127);
  }
  execvpe(words[0], words, environment);
  _exit(127);
}

}  // namespace

std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void WriteText(const std::string& path, std::string_view text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  if (!file.flush()) throw std::runtime_error("cannot write " + path);
}

JobSpec Alone(Words words) {
  JobSpec spec;
  spec.processes = 1;
  spec.words = std::move(words);
  for (const char* const name :
       {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}) {
    spec.environment[name] = "";
  }
  return spec;
}

LaunchedJob::LaunchedJob(const JobSpec& spec) {
  static int jobs = 0;
  mark_ = std::to_string(getpid()) + "-" + std::to_string(++jobs);
  const Variables clean = CleanEnvironment(mark_, folder_.File(""));
  const int port = FreePort();
  const bool mpirun = spec.style == JobStyle::kMpirun;
  members_.resize(mpirun ? 1 : static_cast<size_t>(spec.processes));
  for (size_t p = 0; p < members_.size(); ++p) {
    const int process = static_cast<int>(p);
    if (spec.absent.contains(process)) continue;
    Variables variables = clean;
    Put(LauncherVariables(spec.style, process, spec.processes, port), &variables);
    Put(spec.environment, &variables);
    if (const auto own = spec.environment_of.find(process); own != spec.environment_of.end()) {
      Put(own->second, &variables);
    }
    Start(p, mpirun ? MpirunWords(spec) : ToolWords(spec, process), variables);
  }
}

LaunchedJob::~LaunchedJob() { End(); }

void LaunchedJob::Start(size_t process, const Words& words, const Variables& variables) {
  Words arguments = words, environment;
  for (const auto& [name, value] : variables) environment.push_back(name + "=" + value);
  const std::vector<char*> argv = Pointers(&arguments), envp = Pointers(&environment);
  const std::string out = OutputName("out", process), err = OutputName("err", process);
  const pid_t pid = fork();
  if (pid < 0) {
    End();
    throw std::runtime_error("cannot start a process");
  }
  if (pid == 0) Become(out.c_str(), err.c_str(), argv.data(), envp.data());
  members_[process].started = true;
  members_[process].pid = pid;
}

bool LaunchedJob::Reap() {
  bool all = true;
  for (Member& member : members_) {
    if (!member.started || member.ending.ended) continue;
    int status = 0;
    if (waitpid(member.pid, &status, WNOHANG) == member.pid) {
      member.ending = {true, WIFEXITED(status) ? WEXITSTATUS(status) : -1,
                       WIFSIGNALED(status) ? WTERMSIG(status) : 0, Clock::now()};
    } else {
      all = false;
    }
  }
  return all;
}

bool LaunchedJob::Wait(double seconds) {
  const Clock::time_point deadline = After(seconds);
  while (!Reap()) {
    if (Clock::now() > deadline) return false;
    std::this_thread::sleep_for(kGlance);
  }
  return true;
}

bool LaunchedJob::WaitForLines(std::string_view start, int count, double seconds) {
  const Clock::time_point deadline = After(seconds);
  const std::string line = "\n" + std::string(start);
  while (true) {
    const bool ended = Reap();
    int lines = 0;
    for (int p = 0; p < processes(); ++p) lines += CountOf("\n" + Out(p), line);
    if (lines >= count) return true;
    if (ended || Clock::now() > deadline) return false;
    std::this_thread::sleep_for(kGlance);
  }
}

bool LaunchedJob::Signal(int process, int signal) {
  Reap();
  const std::string mark = "CONTRAFLOW_TEST_JOB=" + mark_;
  const std::vector<pid_t> under_mpirun =
      ProcessesWith({mark, "OMPI_COMM_WORLD_RANK=" + std::to_string(process)});
  if (!under_mpirun.empty()) return kill(under_mpirun[0], signal) == 0;
  if (process >= processes() || !At(process).started || At(process).ending.ended) return false;
  return kill(At(process).pid, signal) == 0;
}

std::vector<pid_t> LaunchedJob::Living() const {
  return ProcessesWith({"CONTRAFLOW_TEST_JOB=" + mark_});
}

void LaunchedJob::End() {
  const Clock::time_point deadline = After(kPatience);
  while (Clock::now() < deadline) {
    const std::vector<pid_t> living = Living();
    for (const pid_t pid : living) kill(pid, SIGKILL);
    if (Reap() && living.empty()) return;
    std::this_thread::sleep_for(kGlance);
  }
}

std::string LaunchedJob::OutputName(const char* kind, size_t process) const {
  return folder_.File(kind + std::to_string(process));
}

std::string LaunchedJob::Out(int process) const {
  return ReadText(OutputName("out", static_cast<size_t>(process)));
}

std::string LaunchedJob::Err(int process) const {
  return ReadText(OutputName("err", static_cast<size_t>(process)));
}

std::string LaunchedJob::Everything() const {
  std::string text;
  for (int p = 0; p < processes(); ++p) text += Out(p) + Err(p);
  return text;
}

std::string LaunchedJob::Story() const {
  std::string story;
  for (int p = 0; p < processes(); ++p) {
    const Ending& end = ending(p);
    story += "\n--- process " + std::to_string(p) + ": " +
             (!At(p).started    ? "not started"
              : !end.ended      ? "lives"
              : end.signal != 0 ? "ended by signal " + std::to_string(end.signal)
                                : "exit code " + std::to_string(end.code)) +
             "\n" + Out(p) + Err(p);
  }
  return story;
}

int FreePort() {
  static std::list<HeldPort> held;
  // Numbers by process, so that tests at the same time seldom try the same.
  static unsigned next = static_cast<unsigned>(getpid()) * 61;
  for (int tries = 0; tries < 1000; ++tries) {
    try {
      return held.emplace_back(static_cast<int>(10'000 + next++ % 5'000)).port();
    } catch (const std::runtime_error&) {
      continue;  // somebody has it
    }
  }
  throw std::runtime_error("no free port");
}

void RunTool(const TestFolder& folder, const std::string& words) {
  const std::string log = folder.File("tool.log");
  const std::string command = std::string(CF_TOOL) + " " + words + " >" + log + " 2>&1";
  if (std::system(command.c_str()) != 0) throw std::runtime_error(command + ": " + ReadText(log));
}

std::string CompilePlan(const TestFolder& folder, const std::string& name,
                        const std::string& words) {
  const std::string file = folder.File(name + ".json");
  RunTool(folder, "compile " + words + " -o " + file);
  return file;
}

int CountOf(std::string_view text, std::string_view part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

Trained TrainedBy(const std::string& output) {
  const auto document = nlohmann::json::parse(output, nullptr, /*allow_exceptions=*/false);
  if (!document.is_object() || !document.contains("weights_sha256")) return {};
  Trained trained = {document["weights_sha256"].get<std::string>(), {}};
  for (const auto& step : document["steps"]) trained.losses.push_back(step["loss"].dump());
  return trained;
}

Trained TrainWithThreads(const Words& words) {
  JobSpec spec;
  spec.processes = 1;
  spec.words = words;
  spec.words.insert(spec.words.end(), {"--transport", "threads", "--json"});
  // No variable tells it that it is one of several.
  for (const char* const name :
       {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}) {
    spec.environment[name] = "";
  }
  LaunchedJob job(spec);
  if (!job.Wait(kPatience) || job.ending(0).code != 0) throw std::runtime_error(job.Story());
  return TrainedBy(job.Out(0));
}

}  // namespace contraflow
