#include "tools/contraflow-run/train.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "compiler/files/file.h"
#include "compiler/files/plan_io.h"
#include "compiler/plan/error.h"
#include "kernels/gpu/stream.h"
#include "runtime/launch/address.h"
#include "runtime/launch/control.h"
#include "runtime/launch/meeting.h"
#include "runtime/launch/process_run.h"
#include "runtime/launch/signals.h"
#include "runtime/launch/threaded_run.h"
#include "runtime/launch/world.h"
#include "tools/cli/exit.h"
#include "tools/cli/terminal.h"
#include "tools/contraflow-run/custom.h"
#include "tools/contraflow-run/input.h"
#include "tools/contraflow-run/job.h"
#include "tools/contraflow-run/training.h"

namespace contraflow {

namespace {

constexpr int64_t kMaxSecretBytes = 4096;

/// Without a secret only processes of this machine and user can join, and only where they name the
/// same job.
void SetSecret(const RunOptions& options, const World& world, MeetingPoint* point) {
  std::string secret;
  if (!options.secret_file.empty()) {
    secret = ReadFile(options.secret_file, kMaxSecretBytes);
    while (!secret.empty() && (secret.back() == '\n' || secret.back() == '\r')) secret.pop_back();
    if (secret.empty()) throw Error("`secret_file` " + options.secret_file + ": is empty");
  } else if (const char* value = std::getenv("CONTRAFLOW_SECRET"); value != nullptr) {
    secret = value;
    if (secret.empty()) throw Error("CONTRAFLOW_SECRET: is empty; unset it or give it a value");
  }
  if (!secret.empty()) {
    point->secret = secret;
    return;
  }
  if (world.one_machine) {
    point->address.host = "127.0.0.1";
  } else if (!IsLoopback(world.master_address)) {
    throw Error("MASTER_ADDR " + world.master_address +
                " can be reached from other machines, and this job has no secret to keep strangers "
                "out: set CONTRAFLOW_SECRET to the same random text on all processes (openssl "
                "rand -hex 16 makes one), or use `secret_file`");
  }
  point->job = world.job;
  point->user = geteuid();
}

/// `host:port` or `[v6]:port`.
Address AddressOf(const std::string& text) {
  const size_t colon = text.rfind(':');
  Address address;
  const char* const end = text.data() + text.size();
  const auto read = colon == std::string::npos
                        ? std::from_chars_result{end, std::errc::invalid_argument}
                        : std::from_chars(text.data() + colon + 1, end, address.port);
  if (read.ec != std::errc() || read.ptr != end || colon == 0) {
    throw UsageError("`ask` " + text + ": must be HOST:PORT, as of MASTER_ADDR and MASTER_PORT");
  }
  address.host = text.substr(0, colon);
  if (address.host.front() == '[' && address.host.back() == ']') {
    address.host = address.host.substr(1, address.host.size() - 2);
  }
  return address;
}

Membership MeetOthers(const RunOptions& options, const World& world) {
  if (world.master_address.empty() || world.master_port == 0) {
    throw Error(std::string(world.master_address.empty() ? "MASTER_ADDR" : "MASTER_PORT") +
                " is not set: the processes of the job do not know where to meet; set MASTER_ADDR "
                "to the host of rank 0 and MASTER_PORT to a free port there (mpirun: -x "
                "MASTER_ADDR=... -x MASTER_PORT=...)");
  }
  MeetingPoint point;
  point.rank = world.rank;
  point.size = world.size;
  point.timeout = Milliseconds(options.rendezvous_timeout);
  point.address = {world.master_address, world.master_port};
  SetSecret(options, world, &point);
  return Meet(point);
}

/// A device that the host computes.
class ShmRun : public LaunchedRun {
 public:
  ShmRun(const RunOptions& options, const RunInput& input, const HostProcess& process)
      : run_(input.plan, input.model, input.dataset, options.seed, process) {
    if (!options.check) return;
    check_.emplace(input, options.seed, [&moved = process.progress] { moved.Move(); });
  }
  Run& run() override { return run_; }
  RunCheck* check() override { return check_ ? &*check_ : nullptr; }

 private:
  ProcessRun run_;
  std::optional<HostCheck> check_;
};

/// Everything a process of a job has. The watch over the job is the last member: its thread asks
/// what the process does until the very end.
class Member {
 public:
  Member(const RunOptions& options, const World& world, const MakeLaunched& make)
      : options_(options),
        world_(world),
        make_(make),
        control_(MeetOthers(options, world), progress_, ControlOptions()) {}

  int Train();

 private:
  Control::Options ControlOptions();
  std::string NameOfProcess(int process) const;
  void CheckSize() const;
  void Prepare(Job& job);
  void GatherPrograms(Job& job);

  const RunOptions& options_;
  const World& world_;
  const MakeLaunched& make_;
  Progress progress_;
  std::optional<RunInput> input_;
  std::optional<RankOrder> order_;
  // Set once there is something to point to; read by the watch.
  std::atomic<const Plan*> known_plan_ = nullptr;
  std::atomic<const RankOrder*> known_order_ = nullptr;
  Control control_;
};

Control::Options Member::ControlOptions() {
  Control::Options options;
  options.timeout = Milliseconds(options_.timeout);
  // A user who allows for long pauses allows a single process one too, in a debugger perhaps.
  options.silence = std::min(std::max(options.silence, options.timeout / 4), options.timeout);
  options.grace = options_.grace;
  options.name = [this](int process) { return NameOfProcess(process); };
  options.waiting = [this](int process) { progress_.WaitFor(process); };
  options.describe = [this](const Progress::Snapshot& at) {
    return DescribeProgress(known_plan_, known_order_, world_.rank, at);
  };
  return options;
}

/// The device, once it is known which it is.
std::string Member::NameOfProcess(int process) const {
  const Plan* plan = known_plan_;
  const RankOrder* order = known_order_;
  if (plan == nullptr || order == nullptr) return "rank " + std::to_string(process);
  return NameOf(*plan, order->DeviceOf(process));
}

void Member::CheckSize() const {
  const Plan& plan = input_->plan;
  if (order_->processes() == world_.size) return;
  std::string devices = std::to_string(plan.ranks) + " ranks";
  if (plan.data_parallel > 1) devices += " x " + std::to_string(plan.data_parallel) + " replicas";
  if (plan.expert_parallel > 1) {
    devices += " x " + std::to_string(plan.expert_parallel) + " devices of an expert group";
  }
  throw JobError(options_.plan + ": needs " + std::to_string(order_->processes()) + " processes (" +
                 devices + "), but " + std::to_string(world_.size) + " were launched; launch " +
                 std::to_string(order_->processes()) + ", or compile a plan for " +
                 std::to_string(world_.size));
}

/// Reads what the options name, and makes sure that all processes read the same.
void Member::Prepare(Job& job) {
  input_.emplace(ReadInputOf(options_, world_.rank));
  progress_.Move();
  job.Agree(FactsOf(options_, *input_));
  order_.emplace(options_.rank_order, input_->plan);
  CheckSize();
  known_order_ = &*order_;
  if (ReadsOwnFile(options_)) GatherPrograms(job);
  known_plan_ = &input_->plan;
}

/// If every process has read its own rank's program only: the one that leads gets all of them,
/// proves the plan for all, and can tell what the devices of a step did.
void Member::GatherPrograms(Job& job) {
  Plan& plan = input_->plan;
  const Device self = order_->DeviceOf(world_.rank);
  const bool tells = !job.leads() && self.replica == 0 && self.member == 0;
  const std::vector<std::string> parts = job.Gather(tells ? WriteRankPlan(plan, self.rank) : "");
  for (size_t process = 0; process < parts.size(); ++process) {
    if (parts[process].empty()) continue;
    const std::string what = "program of process " + std::to_string(process);
    RankPlan part = ReadRankPlan(parts[process], what);
    const Device device = order_->DeviceOf(static_cast<int>(process));
    const auto rank = static_cast<size_t>(device.rank);
    if (part.rank != device.rank || part.plan.programs.size() != plan.programs.size() ||
        part.plan.slots.size() != plan.slots.size()) {
      throw Error(what + ": is not that of rank " + std::to_string(device.rank));
    }
    plan.programs[rank] = std::move(part.plan.programs[rank]);
    if (!plan.slots.empty()) plan.slots[rank] = std::move(part.plan.slots[rank]);
  }
  if (job.leads()) RequireSoundPlan(plan, options_.plan);
  job.Barrier();  // nobody executes what is not proven
}

int Member::Train() {
  try {
    Job job(
        &control_, [this](int process) { return NameOfProcess(process); },
        [this] { progress_.Move(); });
    if (job.leads()) RequireWritable(options_);
    Prepare(job);
    const HostProcess process = {*order_, control_, progress_,
                                 [this](int p) { return NameOfProcess(p); }, options_.strict};
    if (!options_.stages.empty()) {
      const bool on_gpu = make_.custom != nullptr;
      const int code = TrainCustom(options_, *input_, on_gpu ? make_.custom : OnHost(options_),
                                   on_gpu, &process, job);
      control_.Finish();
      return code;
    }
    const std::unique_ptr<LaunchedRun> launched =
        make_.run ? make_.run(*input_, *order_, control_, progress_)
                  : std::make_unique<ShmRun>(options_, *input_, process);
    const int code = Training(options_, *input_, launched->run(), launched->check(), job,
                              {nullptr, [this] { progress_.Move(); }})
                         .Train();
    launched->Close();
    control_.Finish();
    return code;
  } catch (const Aborted&) {
    control_.Fail(FaultKind::kError, "", kExitInput);
  } catch (const JobError& error) {
    control_.Fail(FaultKind::kJob, Legible(error.what()), kExitInput);
  } catch (const gpu::GpuError& error) {
    control_.Fail(FaultKind::kError, Legible(error.what()), kExitInput);
  } catch (...) {
    const ExitError error = ExitErrorOf(std::current_exception());
    control_.Fail(error.code == kExitBug ? FaultKind::kBug : FaultKind::kError, error.text,
                  error.code);
  }
  // Not reached: Fail ends the process. A process that lives on must not end the job in order.
  std::abort();
}

}  // namespace

int Ask(const RunOptions& options) {
  MeetingPoint point;
  point.address = AddressOf(options.ask);
  point.timeout = std::chrono::seconds(5);
  World world;
  world.master_address = point.address.host;
  SetSecret(options, world, &point);
  WriteFile("-", AskJob(point));
  return kExitFine;
}

int TrainLaunched(const RunOptions& options, const World& world, const MakeLaunched& make) {
  // A reader that closes its pipe is an error for all processes to know of, not the loss of one.
  std::signal(SIGPIPE, SIG_IGN);
  std::unique_ptr<Member> member;
  try {
    member = std::make_unique<Member>(options, world, make);
  } catch (const MeetingOver& over) {
    return over.lost ? kExitLost : kExitInput;  // Process 0 says why, for all.
  } catch (const MeetingLost& error) {
    PrintReport(std::string("contraflow-run: error: ") + error.what() + "\n");
    return kExitLost;
  }
  return member->Train();
}

std::atomic<int> stop_signal = 0;

void EndBySignal(int) {
  const int signal = stop_signal;
  std::signal(signal, SIG_DFL);
  kill(getpid(), signal);
}

namespace {

timer_t grace_timer;
itimerspec grace = {};

/// Two signals may come to two threads at once.
void AskToStop(int signal) {
  static_assert(std::atomic<int>::is_always_lock_free);
  const int error = errno;
  int none = 0;
  if (stop_signal.compare_exchange_strong(none, signal) && signal != SIGINT) {
    timer_settime(grace_timer, 0, &grace, nullptr);
  }
  errno = error;
}

}  // namespace

void CatchSignals(std::chrono::milliseconds period) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(period);
  grace.it_value = {seconds.count(), std::chrono::nanoseconds(period - seconds).count() + 1};
  struct sigaction action = {};
  sigemptyset(&action.sa_mask);
  action.sa_handler = EndBySignal;
  sigaction(SIGALRM, &action, nullptr);
  if (timer_create(CLOCK_MONOTONIC, nullptr, &grace_timer) != 0) {
    throw Error("no timer for `grace`: " + std::generic_category().message(errno));
  }
  action.sa_handler = AskToStop;
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGHUP, SIGXCPU}) {
    // Signals that a process was started to ignore (nohup, the background of a script) stay
    // ignored.
    struct sigaction before = {};
    if (sigaction(signal, nullptr, &before) != 0 || before.sa_handler == SIG_IGN) continue;
    action.sa_flags = signal == SIGINT ? static_cast<int>(SA_RESETHAND) : 0;
    sigaction(signal, &action, nullptr);
  }
}

namespace {

int TrainThreaded(const RunOptions& options) {
  RequireWritable(options);
  const RunInput input = ReadInput(options);
  ThreadedRun run(input.plan, input.model, input.dataset, options.seed,
                  {options.strict, Milliseconds(options.timeout), EndOfHang});
  std::optional<HostCheck> check;
  if (options.check) check.emplace(input, options.seed, std::function<void()>());
  return TrainAlone(options, input, run, check ? &*check : nullptr);
}

}  // namespace

void RequireAlone(const RunOptions& options, const World& world) {
  // The script of a SLURM job has the variables of a task, but only srun starts steps.
  const bool script = world.launcher == Launcher::kSrun && std::getenv("SLURM_STEP_ID") == nullptr;
  if (world.size == 1 || script) {
    if (!options.secret_file.empty()) {
      throw Error("`secret_file`: is for processes that meet, and this one is alone; leave it out");
    }
    static_cast<void>(RankOrder(options.rank_order, Plan()));  // even if it changes nothing
    return;
  }
  throw Error("`transport` threads: " + std::to_string(world.size) +
              " processes were launched, and each would train on its own; use `transport` " +
              (options.device == "cuda" ? "nccl" : "shm") + ", or launch one");
}

void EndOfHang(const std::exception_ptr& error) { EndAtOnce("contraflow-run", error); }

int TrainAlone(const RunOptions& options, const RunInput& input, Run& run, RunCheck* check) {
  Job job;
  Training training(options, input, run, check, job, {&stop_signal, {}});
  CatchSignals(options.grace);
  const int code = training.Train();
  if (stop_signal == SIGINT) EndBySignal(SIGINT);
  return code;
}

int TrainCustomAlone(const RunOptions& options, const MakeCustomTraining& make, bool on_gpu) {
  RequireWritable(options);
  const RunInput input = ReadInput(options);
  Job job;
  return TrainCustom(options, input, make, on_gpu, nullptr, job);
}

int Train(RunOptions options) {
  const World world = ReadWorld([](const char* name) { return std::getenv(name); });
  if (options.transport.empty()) options.transport = world.size == 1 ? "threads" : "shm";
  if (options.transport != "threads") return TrainLaunched(options, world);
  RequireAlone(options, world);
  if (!options.stages.empty()) return TrainCustomAlone(options, OnHost(options), false);
  return TrainThreaded(options);
}

}  // namespace contraflow
