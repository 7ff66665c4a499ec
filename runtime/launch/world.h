#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace contraflow {

/// The program that started the processes of a job.
enum class Launcher { kNone, kMpirun, kSrun, kTorchrun };

/// This process among those of its job, as its launcher says in the environment.
struct World {
  Launcher launcher = Launcher::kNone;
  int rank = 0, size = 1;
  int local_rank = 0;          ///< among those of this machine; -1 if the launcher does not say
  bool one_machine = false;    ///< the launcher says that all processes are on this one
  std::string master_address;  ///< where rank 0 can be reached; "" if the launcher does not say
  int master_port = 0;         ///< 0 if the launcher does not say
  std::string job;             ///< the launcher's name of the job; "" if it has none
};

/// The value of a variable, null if it is not set; std::getenv is one.
using Environment = std::function<const char*(const char* name)>;

/// Reads, in this order, RANK/WORLD_SIZE/LOCAL_RANK (torchrun), OMPI_COMM_WORLD_RANK/_SIZE/
/// _LOCAL_RANK (mpirun), SLURM_PROCID/SLURM_STEP_NUM_TASKS or SLURM_NTASKS/SLURM_LOCALID (srun);
/// the first whose rank is there counts, and none of them means one process on its own. If
/// torchrun's agent holds MASTER_PORT itself (TORCHELASTIC_USE_AGENT_STORE), the port is the next
/// one. MASTER_ADDR and MASTER_PORT belong to any launcher; srun without them gives the first host
/// of its node list, mpirun on one machine that machine, and both a port that follows from the name
/// of the job. Throws Error with the name of a variable that is missing, no number, or out of
/// range.
World ReadWorld(const Environment& get);

/// The first host of a SLURM node list such as `gpu[003-010,12],login1`: gpu003. Throws Error if it
/// is none.
std::string FirstHost(std::string_view node_list);

}  // namespace contraflow
