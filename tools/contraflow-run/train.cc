#include "tools/contraflow-run/train.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "compiler/files/file.h"
#include "compiler/files/plan_io.h"
#include "compiler/plan/error.h"
#include "runtime/launch/control.h"
#include "runtime/launch/process_run.h"
#include "runtime/launch/rendezvous.h"
#include "runtime/launch/threaded_run.h"
#include "runtime/launch/world.h"
#include "runtime/transport/mpi.h"
#include "runtime/transport/process_transport.h"
#include "runtime/transport/socket.h"
#include "runtime/transport/tcp_wire.h"
#include "tools/cli/exit.h"
#include "tools/contraflow-run/input.h"
#include "tools/contraflow-run/job.h"
#include "tools/contraflow-run/training.h"

namespace contraflow {

namespace {

constexpr int64_t kMaxSecretBytes = 4096;

void RefuseSecret(const RunOptions& options, const std::string& why) {
  if (options.secret_file.empty()) return;
  throw Error("--secret-file: is for processes that meet over TCP, " + why + "; leave it out");
}

/// Without a secret only processes of this machine and user can join, and only where they name the
/// same job.
void SetSecret(const RunOptions& options, const World& world, MeetingPoint* point) {
  std::string secret;
  if (!options.secret_file.empty()) {
    secret = ReadFile(options.secret_file, kMaxSecretBytes);
    while (!secret.empty() && (secret.back() == '\n' || secret.back() == '\r')) secret.pop_back();
    if (secret.empty()) throw Error("--secret-file " + options.secret_file + ": is empty");
  } else if (const char* value = std::getenv("CONTRAFLOW_SECRET"); value != nullptr) {
    secret = value;
    if (secret.empty()) throw Error("CONTRAFLOW_SECRET: is empty; unset it or give it a value");
  }
  if (!secret.empty()) {
    point->secret = "secret:" + secret;
    return;
  }
  if (!IsLoopback(world.master_address)) {
    throw Error("MASTER_ADDR " + world.master_address +
                " can be reached from other machines, and this job has no secret to keep strangers "
                "out: set CONTRAFLOW_SECRET to the same random text on all processes (openssl "
                "rand -hex 16 makes one), or use --secret-file");
  }
  point->secret = "job:" + world.job;
  point->user = geteuid();
}

MeetingPoint PointOf(const RunOptions& options, const World& world) {
  MeetingPoint point;
  point.rank = world.rank;
  point.size = world.size;
  point.timeout = Milliseconds(options.rendezvous_timeout);
  point.mesh = options.transport == "tcp";
  return point;
}

Membership MeetOverTcp(const RunOptions& options, const World& world) {
  if (world.master_address.empty() || world.master_port == 0) {
    throw Error(std::string(world.master_address.empty() ? "MASTER_ADDR" : "MASTER_PORT") +
                " is not set: the processes of the job do not know where to meet; set MASTER_ADDR "
                "to the host of rank 0 and MASTER_PORT to a free port there (mpirun: -x "
                "MASTER_ADDR=... -x MASTER_PORT=...)");
  }
  MeetingPoint point = PointOf(options, world);
  point.address = {world.master_address, world.master_port};
  SetSecret(options, world, &point);
  return Meet(point);
}

/// A device that the host computes.
class HostRun : public LaunchedRun {
 public:
  HostRun(const RunOptions& options, const RunInput& input, const RankOrder& order,
          Transport& transport, Control& control, Progress& progress)
      : run_(input.plan, input.model, input.dataset, options.seed, order, transport, control,
             progress) {
    if (options.check) check_.emplace(input, options.seed, [&progress] { progress.Move(); });
  }
  Run& run() override { return run_; }
  RunCheck* check() override { return check_ ? &*check_ : nullptr; }

 private:
  ProcessRun run_;
  std::optional<HostCheck> check_;
};

/// Everything a process of a job has. The watch over the job is the last member: its thread asks
/// what the process does, and wakes its transport, until the very end.
class Member {
 public:
  Member(const RunOptions& options, const World& world, const MakeLaunchedRun& make)
      : options_(options),
        world_(world),
        make_(make),
        control_(Join(), progress_, ControlOptions()) {}

  int Train();

 private:
  Membership Join();
  Control::Options ControlOptions();
  std::string NameOfProcess(int process) const;
  void CheckSize() const;
  void Prepare(Job& job);
  void GatherPrograms(Job& job);
  std::unique_ptr<LaunchedRun> MakeHostRun();

  const RunOptions& options_;
  const World& world_;
  const MakeLaunchedRun& make_;
  Progress progress_;
  std::unique_ptr<Mpi> mpi_;
  std::optional<RunInput> input_;
  std::optional<RankOrder> order_;
  // Set once there is something to point to; read by the watch.
  std::atomic<const Plan*> known_plan_ = nullptr;
  std::atomic<const RankOrder*> known_order_ = nullptr;
  std::unique_ptr<Wire> wire_;
  std::optional<ProcessTransport> transport_;
  Control control_;
};

Membership Member::Join() {
  // NCCL joins GPUs once processes have met, in whatever way.
  const bool host = !make_;
  if ((host ? options_.transport : HostTransport(world_)) == "mpi") {
    RefuseSecret(options_, "these meet over MPI");
    mpi_ = std::make_unique<Mpi>(world_);
    try {
      Membership membership = mpi_->Meet(world_, PointOf(options_, world_));
      if (host) wire_ = mpi_->MakeWire();
      return membership;
    } catch (...) {
      // The others may never come to the orderly end of MPI, which would wait for them.
      static_cast<void>(mpi_.release());
      throw;
    }
  }
  Membership membership = MeetOverTcp(options_, world_);
  if (!host) return membership;
  wire_ = std::make_unique<TcpWire>(world_.rank, std::move(membership.mesh),
                                    [this](int process) { return NameOfProcess(process); });
  membership.mesh.clear();
  return membership;
}

Control::Options Member::ControlOptions() {
  Control::Options options;
  options.timeout = Milliseconds(options_.timeout);
  // Who allows for long pauses allows a single process one too, in a debugger perhaps.
  options.silence = std::min(std::max(options.silence, options.timeout / 4), options.timeout);
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

/// Where every process has read its own rank's program only: the one that leads gets all of them,
/// proves the plan for all, and can tell what the devices of a step did.
void Member::GatherPrograms(Job& job) {
  Plan& plan = input_->plan;
  const Device self = order_->DeviceOf(world_.rank);
  const bool tells = !job.leads() && self.replica == 0 && self.member == 0;
  const std::vector<std::string> parts = job.Gather(tells ? WriteRankPlan(plan, self.rank) : "");
  for (size_t process = 0; process < parts.size(); ++process) {
    if (parts[process].empty()) continue;
    RankPlan part = ReadRankPlan(parts[process], "program of process " + std::to_string(process));
    const auto rank = static_cast<size_t>(part.rank);
    plan.programs[rank] = std::move(part.plan.programs[rank]);
    if (!plan.slots.empty()) plan.slots[rank] = std::move(part.plan.slots[rank]);
  }
  if (job.leads()) RequireSoundPlan(plan, options_.plan);
  job.Barrier();  // nobody executes what is not proven
}

std::unique_ptr<LaunchedRun> Member::MakeHostRun() {
  transport_.emplace(input_->plan, *order_, *wire_, &progress_,
                     ProcessTransport::Options{options_.strict});
  control_.OnStop([this] { transport_->Abort(); });
  return std::make_unique<HostRun>(options_, *input_, *order_, *transport_, control_, progress_);
}

int Member::Train() {
  try {
    Job job(&control_, [this](int process) { return NameOfProcess(process); });
    if (job.leads()) RequireWritable(options_);
    Prepare(job);
    const std::unique_ptr<LaunchedRun> launched =
        make_ ? make_(*input_, *order_, control_, progress_) : MakeHostRun();
    Training(options_, *input_, launched->run(), launched->check(), job,
             {nullptr, [this] { progress_.Move(); }})
        .Train();
    launched->Close();
    control_.Finish();
    return kExitFine;
  } catch (const Aborted&) {
    control_.Fail(FaultKind::kError, "", kExitInput);
  } catch (const JobError& error) {
    control_.Fail(FaultKind::kJob, error.what(), kExitInput);
  } catch (...) {
    const ExitError error = ExitErrorOf(std::current_exception());
    control_.Fail(error.code == kExitBug ? FaultKind::kBug : FaultKind::kError, error.text,
                  error.code);
  }
  // Not reached: Fail ends the process. A process that lives on must not end the job in order.
  std::abort();
}

}  // namespace

std::string HostTransport(const World& world) {
  const bool started_by_mpi =
      world.launcher == Launcher::kMpirun ||
      (world.launcher == Launcher::kSrun && std::getenv("PMIX_RANK") != nullptr);
  return started_by_mpi && HasMpi() ? "mpi" : "tcp";
}

int TrainLaunched(const RunOptions& options, const World& world, const MakeLaunchedRun& make) {
  // A reader that closes its pipe is an error for all processes to know of, not the loss of one.
  std::signal(SIGPIPE, SIG_IGN);
  std::unique_ptr<Member> member;
  try {
    member = std::make_unique<Member>(options, world, make);
  } catch (const MeetingOver&) {
    return kExitInput;  // Process 0 says why, for all.
  }
  return member->Train();
}

namespace {

/// The signal that asked us to stop, 0 if none has.
volatile std::sig_atomic_t stop_signal = 0;

void AskToStop(int signal) { stop_signal = signal; }

/// From here on the first Ctrl-C ends the training after the step under way, the second at once.
void CatchSignals() {
  struct sigaction action = {};
  action.sa_handler = AskToStop;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

/// Ends as the signal would have ended us, so that a calling shell or script knows.
void EndBySignal() {
  std::signal(stop_signal, SIG_DFL);
  std::raise(stop_signal);
}

int TrainThreaded(const RunOptions& options) {
  RequireWritable(options);
  const RunInput input = ReadInput(options);
  ThreadedRun run(input.plan, input.model, input.dataset, options.seed,
                  {options.strict, Milliseconds(options.timeout)});
  std::optional<HostCheck> check;
  if (options.check) check.emplace(input, options.seed, std::function<void()>());
  return TrainAlone(options, input, run, check ? &*check : nullptr);
}

}  // namespace

void RequireAlone(const RunOptions& options, const World& world) {
  // The script of a SLURM job has the variables of a task, but only srun starts steps.
  const bool script = world.launcher == Launcher::kSrun && std::getenv("SLURM_STEP_ID") == nullptr;
  if (world.size == 1 || script) {
    RefuseSecret(options, "this one is alone");
    static_cast<void>(RankOrder(options.rank_order, Plan()));  // even if it changes nothing
    return;
  }
  throw Error("--transport threads: " + std::to_string(world.size) +
              " processes were launched, and each would train on its own; use --transport " +
              (options.device == "cuda" ? "nccl" : "tcp or mpi") + ", or launch one");
}

int TrainAlone(const RunOptions& options, const RunInput& input, Run& run, RunCheck* check) {
  Job job;
  Training training(options, input, run, check, job, {&stop_signal, {}});
  CatchSignals();
  training.Train();
  if (stop_signal != 0) EndBySignal();
  return kExitFine;
}

int Train(RunOptions options) {
  const World world = ReadWorld([](const char* name) { return std::getenv(name); });
  if (options.transport.empty()) {
    options.transport = world.size == 1 ? "threads" : HostTransport(world);
  }
  if (options.transport != "threads") return TrainLaunched(options, world);
  RequireAlone(options, world);
  return TrainThreaded(options);
}

}  // namespace contraflow
