#include "runtime/launch/world.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <optional>

#include "compiler/files/json.h"
#include "compiler/plan/error.h"
#include "compiler/plan/text.h"
#include "runtime/core/rank_order.h"

namespace contraflow {
namespace {

/// Names of one launcher's variables.
struct Variables {
  Launcher launcher;
  const char* rank;
  std::array<const char*, 2> size;  // the first that is set counts
  const char* local_rank;
  const char* job;
};

constexpr std::array<Variables, 3> kLaunchers = {{
    {Launcher::kTorchrun,
     "RANK",
     {"WORLD_SIZE", "WORLD_SIZE"},
     "LOCAL_RANK",
     "TORCHELASTIC_RUN_ID"},
    {Launcher::kMpirun,
     "OMPI_COMM_WORLD_RANK",
     {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"},
     "OMPI_COMM_WORLD_LOCAL_RANK",
     "PMIX_NAMESPACE"},
    {Launcher::kSrun,
     "SLURM_PROCID",
     {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"},
     "SLURM_LOCALID",
     "SLURM_JOB_ID"},
}};

/// "" where it is not set; a variable that is empty counts as not set.
std::string Variable(const Environment& get, const char* name) {
  const char* value = get(name);
  return value == nullptr ? "" : value;
}

/// The number a variable holds, nothing where it is not set.
std::optional<int64_t> Number(const Environment& get, const char* name, int64_t least,
                              int64_t most) {
  const std::string text = Variable(get, name);
  if (text.empty()) return std::nullopt;
  int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, number);
  if (result.ec != std::errc() || result.ptr != end || number < least || number > most) {
    throw Error(std::string(name) + ": must be a number from " + std::to_string(least) + " to " +
                std::to_string(most) + ", is " + Excerpt(text));
  }
  return number;
}

int Required(const Environment& get, const char* name, int64_t most, const char* because) {
  if (const std::optional<int64_t> number = Number(get, name, 0, most)) {
    return static_cast<int>(*number);
  }
  throw Error(std::string(name) + " is not set, but " + because +
              " is; a launcher sets both: set what is missing, or unset the other");
}

/// A place at which the processes of a job can meet if nobody says: all of them find the same, and
/// the next job another port. Below the ports that the system gives to connections.
int PortOf(int64_t job) { return static_cast<int>(15'000 + job % 15'000); }

void AskSlurm(const Environment& get, World* world) {
  if (world->master_address.empty()) {
    for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"}) {
      const std::string list = Variable(get, name);
      if (list.empty()) continue;
      try {
        world->master_address = FirstHost(list);
      } catch (const Error& error) {
        throw Error(std::string(name) + ": " + error.what());
      }
      break;
    }
  }
  if (world->master_port == 0) {
    const int64_t job = Number(get, "SLURM_JOB_ID", 0, INT32_MAX).value_or(0);
    // Steps that are no numbered ones have numbers from the top of 32 bits.
    const int64_t number = Number(get, "SLURM_STEP_ID", 0, UINT32_MAX).value_or(0);
    world->master_port = PortOf(job * 101 + number);
  }
  const std::string step = Variable(get, "SLURM_STEP_ID");
  if (!world->job.empty() && !step.empty()) world->job += "." + step;
}

/// Whether the launcher says that all processes are on one machine.
bool OnOneMachine(const Environment& get, const World& world) {
  if (world.launcher != Launcher::kSrun) {
    const bool mpirun = world.launcher == Launcher::kMpirun;
    const char* const here = mpirun ? "OMPI_COMM_WORLD_LOCAL_SIZE" : "LOCAL_WORLD_SIZE";
    return Number(get, here, 1, kMaxProcesses) == world.size;
  }
  const auto nodes = Number(get, "SLURM_STEP_NUM_NODES", 1, kMaxProcesses);
  return (nodes ? nodes : Number(get, "SLURM_NNODES", 1, kMaxProcesses)) == 1;
}

/// On one machine mpirun's processes need no help to meet.
void AskMpirun(World* world) {
  if (!world->one_machine) return;
  if (world->master_address.empty()) world->master_address = "127.0.0.1";
  if (world->master_port != 0) return;
  int64_t job = 0;
  for (const char c : world->job) job = (job * 31 + static_cast<unsigned char>(c)) % INT32_MAX;
  world->master_port = PortOf(job);
}

const char* FirstSet(const Environment& get, std::array<const char*, 2> names) {
  return Variable(get, names[0]).empty() ? names[1] : names[0];
}

World ReadLauncher(const Environment& get, const Variables& names) {
  World world;
  world.launcher = names.launcher;
  const char* const size_name = FirstSet(get, names.size);
  const std::optional<int64_t> size = Number(get, size_name, 1, kMaxProcesses);
  if (!size) Required(get, size_name, 0, names.rank);
  world.size = static_cast<int>(*size);
  world.rank = Required(get, names.rank, world.size - 1, size_name);
  world.local_rank =
      static_cast<int>(Number(get, names.local_rank, 0, world.size - 1).value_or(-1));
  world.master_address = Variable(get, "MASTER_ADDR");
  if (world.master_address.size() > 255 || PlainLine(world.master_address) != world.master_address)
    throw Error("MASTER_ADDR: must be a host of at most 255 bytes, is " +
                Excerpt(world.master_address));
  world.master_port = static_cast<int>(Number(get, "MASTER_PORT", 1, 65535).value_or(0));
  world.job = Variable(get, names.job);
  // torchrun's own store listens at MASTER_PORT; the next port is as good.
  const std::string store = Variable(get, "TORCHELASTIC_USE_AGENT_STORE");
  if (names.launcher == Launcher::kTorchrun && (store == "True" || store == "1") &&
      world.master_port > 0) {
    world.master_port += world.master_port < 65535 ? 1 : -1;
  }
  world.one_machine = OnOneMachine(get, world);
  if (names.launcher == Launcher::kSrun) AskSlurm(get, &world);
  if (names.launcher == Launcher::kMpirun) AskMpirun(&world);
  return world;
}

/// Refuses RANK and WORLD_SIZE that contradict mpirun: they may be left over in the environment.
/// They may differ only if mpirun started torchrun, which started this process.
void RequireOneLauncher(const Environment& get, const World& world) {
  const Variables& mpirun = kLaunchers[1];
  if (Variable(get, mpirun.rank).empty() || !world.job.empty()) return;
  const World other = ReadLauncher(get, mpirun);
  if (other.rank == world.rank && other.size == world.size) return;
  throw Error("RANK and WORLD_SIZE say " + std::to_string(world.rank) + " of " +
              std::to_string(world.size) + ", but mpirun's " + mpirun.rank + " and " +
              mpirun.size[0] + " " + std::to_string(other.rank) + " of " +
              std::to_string(other.size) + "; unset the stale ones");
}

bool IsHostCharacter(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
         c == '.' || c == '_';
}

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

/// The first number of `[003-010,12]`, whose "[" is gone already; takes all of it from the list.
std::string FirstNumber(std::string_view* list, const Error& broken) {
  const size_t end = list->find(']');
  if (end == std::string_view::npos) throw Error(broken);
  const std::string_view inside = list->substr(0, end);
  list->remove_prefix(end + 1);
  for (size_t i = 0; i < inside.size(); ++i) {
    // Digits, and between them single commas and hyphens.
    const bool separator = inside[i] == ',' || inside[i] == '-';
    const bool between = i > 0 && IsDigit(inside[i - 1]) && i + 1 < inside.size();
    if (!IsDigit(inside[i]) && !(separator && between)) throw Error(broken);
  }
  if (inside.empty()) throw Error(broken);
  return std::string(inside.substr(0, inside.find_first_of(",-")));
}

}  // namespace

World ReadWorld(const Environment& get) {
  for (const Variables& names : kLaunchers) {
    if (Variable(get, names.rank).empty()) continue;
    const World world = ReadLauncher(get, names);
    if (names.launcher == Launcher::kTorchrun) RequireOneLauncher(get, world);
    return world;
  }
  for (const Variables& names : kLaunchers) {
    // A shell of SLURM has the number of tasks too; only tasks have numbers of their own.
    const bool sized = !Variable(get, FirstSet(get, names.size)).empty();
    if (sized && names.launcher != Launcher::kSrun) return ReadLauncher(get, names);
  }
  if (Number(get, "PMI_SIZE", 0, kMaxProcesses).value_or(1) > 1) {
    throw Error(
        "PMI_SIZE is set, so an MPI launcher that is not Open MPI's started this process; use Open "
        "MPI's mpirun, or set RANK and WORLD_SIZE to what PMI_RANK and PMI_SIZE say");
  }
  return {};
}

std::string FirstHost(std::string_view node_list) {
  const Error broken(Excerpt(node_list) + " is no list of hosts such as gpu[003-010,12],login1");
  std::string host;
  for (std::string_view rest = node_list; !rest.empty() && rest.front() != ',';) {
    const char c = rest.front();
    rest.remove_prefix(1);
    if (c == '[') {
      host += FirstNumber(&rest, broken);
    } else if (IsHostCharacter(c)) {
      host += c;
    } else {
      throw Error(broken);
    }
  }
  if (host.empty() || host.front() == '-' || node_list.back() == ',') throw Error(broken);
  return host;
}

}  // namespace contraflow
