#pragma once

#include <sys/types.h>

#include <chrono>
#include <csignal>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/test_folder.h"

namespace contraflow {

/// In seconds: long enough for anything that is not stuck, however busy the machine.
constexpr double kPatience = 200;

/// Whole file; "" if it cannot be read.
std::string ReadText(const std::string& path);
void WriteText(const std::string& path, std::string_view text);

/// Starters of the processes of a job. The last two are what their environments look like; the
/// programs themselves are not needed.
enum class JobStyle { kMpirun, kSrun, kTorchrun };

using Variables = std::map<std::string, std::string>;
using Words = std::vector<std::string>;

/// Processes of contraflow-run that are to train together.
struct JobSpec {
  JobStyle style = JobStyle::kTorchrun;
  int processes = 0;
  Words words;                              ///< the command line of every process
  std::map<int, Words> words_of;            ///< of single processes, instead
  Variables environment;                    ///< besides what the style gives; "" removes a variable
  std::map<int, Variables> environment_of;  ///< of single processes, besides
  std::set<int> absent;                     ///< processes that are never started
};

/// How a process has ended.
struct Ending {
  bool ended = false;
  int code = -1;   ///< exit code, or -1
  int signal = 0;  ///< the signal that ended it, or 0
  std::chrono::steady_clock::time_point when;
};

/// One process without a launcher.
JobSpec Alone(Words words);

/// A running job, or one that ran. Its processes have a clean environment and their outputs go to
/// files. Under mpirun all of them are one (mpirun's), but for Signal.
class LaunchedJob {
 public:
  /// Starts the processes.
  explicit LaunchedJob(const JobSpec& spec);
  LaunchedJob(const LaunchedJob&) = delete;
  /// Kills what is left of it.
  ~LaunchedJob();

  /// Waits until all have ended; false if some have not after this many seconds.
  bool Wait(double seconds);
  /// Waits until the outputs of all together have this many lines that begin with `start`; false if
  /// they have not after this many seconds, or when all processes have ended without it.
  bool WaitForLines(std::string_view start, int count, double seconds);
  /// Sends a signal to the process with this number. False if it has ended.
  bool Signal(int process, int signal);
  /// Processes of the job that live, whoever started them.
  std::vector<pid_t> Living() const;

  int processes() const { return static_cast<int>(members_.size()); }
  const Ending& ending(int process) const { return At(process).ending; }
  std::string Out(int process) const;
  std::string Err(int process) const;
  /// The outputs and errors of all.
  std::string Everything() const;
  /// Like Everything, with the end of each process, for failed checks.
  std::string Story() const;

 private:
  struct Member {
    bool started = false;
    pid_t pid = 0;
    Ending ending;
  };

  const Member& At(int process) const { return members_[static_cast<size_t>(process)]; }
  std::string OutputName(const char* kind, size_t process) const;
  void Start(size_t process, const Words& words, const Variables& variables);
  bool Reap();
  void End();

  TestFolder folder_;
  std::string mark_;  // in the environment of all that belongs to the job
  std::vector<Member> members_;
};

/// A TCP port that this process keeps from all others, until it ends, but for those who listen
/// there as contraflow-run does. Neither the system nor contraflow-run takes one of these of its
/// own accord, and no README names one.
int FreePort();

/// Runs the built tool `contraflow`, which must end well.
void RunTool(const TestFolder& folder, const std::string& words);
/// Compiles a plan with it: `words` without --output. Returns the file's name.
std::string CompilePlan(const TestFolder& folder, const std::string& name,
                        const std::string& words);

/// How often `part` is in `text`.
int CountOf(std::string_view text, std::string_view part);

/// Result of a training, as --json tells it: digest of its weights and all losses, digit by digit.
struct Trained {
  std::string weights;
  std::vector<std::string> losses;

  bool operator==(const Trained&) const = default;
};

/// Reads it from the one JSON document that is in the output; empty if there is none.
Trained TrainedBy(const std::string& output);

/// Trains with --transport threads in one process.
Trained TrainWithThreads(const Words& words);

}  // namespace contraflow
