#include "runtime/launch/world.h"

#include <doctest/doctest.h>

#include <array>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "compiler/files/json.h"
#include "compiler/plan/error.h"
#include "runtime/core/devices.h"
#include "runtime/core/rank_order.h"
#include "tests/support/failure.h"

namespace contraflow::world_test {
namespace {

using Variables = std::map<std::string, std::string>;

World Read(const Variables& variables) {
  return ReadWorld([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

Variables With(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

/// A world in one line.
std::string Text(const World& world) {
  const char* const names[] = {"none", "mpirun", "srun", "torchrun"};
  std::string text = names[static_cast<int>(world.launcher)];
  text += " " + std::to_string(world.rank) + " of " + std::to_string(world.size) + ", local " +
          std::to_string(world.local_rank);
  if (world.master_port != 0 || !world.master_address.empty()) {
    text += ", at " + world.master_address + ":" + std::to_string(world.master_port);
  }
  if (!world.job.empty()) text += ", job " + world.job;
  return text + (world.one_machine ? ", one machine" : "");
}

std::string Refusal(const Variables& variables) {
  return Failure([&] { Read(variables); });
}

const Variables kTorchrun = {{"RANK", "5"},
                             {"WORLD_SIZE", "8"},
                             {"LOCAL_RANK", "1"},
                             {"MASTER_ADDR", "node-1"},
                             {"MASTER_PORT", "29400"},
                             {"TORCHELASTIC_RUN_ID", "run"}};
const Variables kMpirun = {{"OMPI_COMM_WORLD_RANK", "3"},
                           {"OMPI_COMM_WORLD_SIZE", "4"},
                           {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                           {"PMIX_NAMESPACE", "3211"}};
const Variables kSrun = {{"SLURM_PROCID", "6"},
                         {"SLURM_STEP_NUM_TASKS", "7"},
                         {"SLURM_NTASKS", "9"},
                         {"SLURM_LOCALID", "4"},
                         {"SLURM_JOB_ID", "1000"},
                         {"SLURM_STEP_ID", "2"},
                         {"SLURM_JOB_NODELIST", "gpu[007-010,12],login1"}};

TEST_SUITE("unit") {
  TEST_CASE("world: the variables of each launcher") {
    const std::string alone = "none 0 of 1, local 0";
    const std::string torchrun = "torchrun 5 of 8, local 1, at node-1:29400, job run";
    const struct {
      Variables variables;
      std::string world;
    } cases[] = {
        // Neither a shell's leftovers nor a batch script that starts no tasks make a job.
        {{}, alone},
        {{{"MASTER_ADDR", "x"}, {"MASTER_PORT", "garbage"}}, alone},
        {{{"LOCAL_RANK", "3"}}, alone},
        {{{"SLURM_NTASKS", "4"}}, alone},
        {{{"RANK", ""}, {"WORLD_SIZE", ""}, {"SLURM_PROCID", ""}}, alone},
        {kTorchrun, torchrun},
        {With(kTorchrun, {{"LOCAL_WORLD_SIZE", "8"}}), torchrun + ", one machine"},
        {With(kTorchrun, {{"LOCAL_WORLD_SIZE", "4"}}), torchrun},
        {kMpirun, "mpirun 3 of 4, local 2, job 3211"},
        {With(kMpirun, {{"MASTER_ADDR", "::1"}, {"MASTER_PORT", "1"}}),
         "mpirun 3 of 4, local 2, at ::1:1, job 3211"},
        {With(kMpirun, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}}), "mpirun 3 of 4, local 2, job 3211"},
        {With(kMpirun, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}, {"MASTER_PORT", "1"}}),
         "mpirun 3 of 4, local 2, at 127.0.0.1:1, job 3211, one machine"},
        {With(kSrun, {{"MASTER_PORT", "1234"}}),
         "srun 6 of 7, local 4, at gpu007:1234, job 1000.2"},
        {With(kSrun, {{"SLURM_STEP_NODELIST", "login1"}, {"MASTER_PORT", "1234"}}),
         "srun 6 of 7, local 4, at login1:1234, job 1000.2"},
        {With(kSrun, {{"MASTER_ADDR", "there"}, {"MASTER_PORT", "1234"}}),
         "srun 6 of 7, local 4, at there:1234, job 1000.2"},
        {With(kSrun,
              {{"SLURM_STEP_NUM_TASKS", ""}, {"MASTER_PORT", "1234"}, {"SLURM_NNODES", "1"}}),
         "srun 6 of 9, local 4, at gpu007:1234, job 1000.2, one machine"},
        // Which device of its machine a process has is asked for only where that matters.
        {With(kTorchrun, {{"LOCAL_RANK", ""}}),
         "torchrun 5 of 8, local -1, at node-1:29400, job run"},
        {With(kMpirun, {{"OMPI_COMM_WORLD_LOCAL_RANK", ""}}), "mpirun 3 of 4, local -1, job 3211"},
        {With(kSrun, {{"SLURM_LOCALID", ""}, {"MASTER_PORT", "1234"}}),
         "srun 6 of 7, local -1, at gpu007:1234, job 1000.2"},
    };
    for (const auto& c : cases) CHECK(Text(Read(c.variables)) == c.world);
    // A step may have fewer nodes than its job.
    for (const auto& [nodes, one] : {std::pair("1", true), std::pair("2", false)}) {
      const Variables step = {{"SLURM_NNODES", "4"}, {"SLURM_STEP_NUM_NODES", nodes}};
      CHECK(Read(With(kSrun, step)).one_machine == one);
    }
    CHECK_FALSE(Read(With(kSrun, {{"SLURM_NNODES", "4"}})).one_machine);
  }

  TEST_CASE("world: steps of srun that may run at the same time have different ports") {
    const auto port = [](int job, const std::string& step) {
      return Read(With(kSrun, {{"SLURM_JOB_ID", std::to_string(job)}, {"SLURM_STEP_ID", step}}))
          .master_port;
    };
    std::set<int> ports;
    for (int job = 1000; job < 1010; ++job) {
      for (int step = 0; step < 10; ++step) ports.insert(port(job, std::to_string(step)));
    }
    CHECK(ports.count(Read(kSrun).master_port) == 1);
    CHECK(ports.size() == 100);
    // The system gives none of them to connections.
    CHECK(*ports.begin() >= 1024);
    CHECK(*ports.rbegin() < 32'768);
    CHECK(port(1000, "4294967290") >= 1024);
  }

  TEST_CASE("world: several launchers at once") {
    CHECK(Read(With(With(kSrun, kMpirun), kTorchrun)).launcher == Launcher::kTorchrun);
    CHECK(Read(With(kSrun, kMpirun)).launcher == Launcher::kMpirun);
    CHECK(Read(With(kSrun, kMpirun)).rank == 3);
    CHECK(Read(With(kSrun, kTorchrun)).rank == 5);
    // mpirun may start torchrun, and torchrun this process.
    CHECK(Read(With(kMpirun, kTorchrun)).rank == 5);
    Variables by_hand = kTorchrun;
    by_hand.erase("TORCHELASTIC_RUN_ID");
    by_hand["RANK"] = kMpirun.at("OMPI_COMM_WORLD_RANK");
    by_hand["WORLD_SIZE"] = kMpirun.at("OMPI_COMM_WORLD_SIZE");
    CHECK(Read(With(kMpirun, by_hand)).launcher == Launcher::kTorchrun);
    // Left over from elsewhere.
    by_hand["RANK"] = "0";
    by_hand["WORLD_SIZE"] = "1";
    by_hand["LOCAL_RANK"] = "0";
    CHECK(Refusal(With(kMpirun, by_hand)).find("RANK and WORLD_SIZE say 0 of 1, but mpirun's") ==
          0);
    CHECK(Read(With(kMpirun, {{"WORLD_SIZE", "1"}})).launcher == Launcher::kMpirun);
    CHECK(Read(With(kSrun, {{"WORLD_SIZE", "1"}})).launcher == Launcher::kSrun);
    CHECK(Refusal({{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}}).find("PMI_SIZE is set") == 0);
    CHECK(Read({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}).size == 1);
  }

  TEST_CASE("world: torchrun keeps MASTER_PORT for itself") {
    const struct {
      const char *store, *port;
      int expected;
    } cases[] = {{"True", "29400", 29'401},
                 {"1", "29400", 29'401},
                 {"False", "29400", 29'400},
                 {"True", "65535", 65'534},
                 {"True", "", 0}};
    for (const auto& [store, port, expected] : cases) {
      const Variables more = {{"TORCHELASTIC_USE_AGENT_STORE", store}, {"MASTER_PORT", port}};
      CHECK(Read(With(kTorchrun, more)).master_port == expected);
    }
  }

  TEST_CASE("world: what is missing") {
    struct Case {
      Variables variables;
      const char* missing;
      const char* there;
    };
    for (const Case& c :
         {Case{kTorchrun, "RANK", "WORLD_SIZE"}, Case{kTorchrun, "WORLD_SIZE", "RANK"},
          Case{kMpirun, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
          Case{kMpirun, "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"}}) {
      const std::string text = std::string(c.missing) + " is not set, but " + c.there +
                               " is; a launcher sets both: set what is missing, or unset the other";
      CHECK(Refusal(With(c.variables, {{c.missing, ""}})) == text);
      Variables without = c.variables;
      without.erase(c.missing);
      CHECK(Refusal(without) == text);
    }
    CHECK(Refusal({{"SLURM_PROCID", "0"}}).find("SLURM_NTASKS is not set") == 0);
  }

  TEST_CASE("world: garbage in each variable") {
    const std::vector<std::string> garbage = {
        "x",    "-1",        "1x", " 1", "1 ", "0x1", "1.0", "+1", "99999999999999999999999",
        "\xff", "4294967296"};
    for (const Variables& launcher : {kTorchrun, kMpirun, kSrun}) {
      for (const auto& [name, value] : With(launcher, {{"MASTER_PORT", ""}})) {
        // Hosts and names of jobs are any text.
        const bool number = Contains(name, "RANK") || Contains(name, "SIZE") ||
                            Contains(name, "PORT") || name == "SLURM_PROCID" ||
                            name == "SLURM_STEP_NUM_TASKS" || name == "SLURM_LOCALID" ||
                            name == "SLURM_JOB_ID" || name == "SLURM_STEP_ID";
        if (!number) continue;
        for (const std::string& text : garbage) {
          CAPTURE(name);
          CAPTURE(text);
          const std::string failure = Refusal(With(launcher, {{name, text}}));
          CHECK(failure.find(name + ": must be a number from ") == 0);
          CHECK(Contains(failure, "is " + Excerpt(text)));
        }
      }
    }
    CHECK(Refusal(With(kTorchrun, {{"RANK", "8"}})) ==
          "RANK: must be a number from 0 to 7, is \"8\"");
    CHECK(Refusal(With(kTorchrun, {{"WORLD_SIZE", "0"}})) ==
          "WORLD_SIZE: must be a number from 1 to 1048576, is \"0\"");
    CHECK(Refusal(With(kTorchrun, {{"MASTER_PORT", "65536"}})) ==
          "MASTER_PORT: must be a number from 1 to 65535, is \"65536\"");
    CHECK(Refusal(With(kMpirun, {{"MASTER_PORT", "0"}})) ==
          "MASTER_PORT: must be a number from 1 to 65535, is \"0\"");
    CHECK(Refusal(With(kSrun, {{"SLURM_STEP_NODELIST", "gpu[1"}})) ==
          "SLURM_STEP_NODELIST: \"gpu[1\" is no list of hosts such as gpu[003-010,12],login1");
  }

  TEST_CASE("world: the first host of a node list") {
    const std::map<std::string, std::string> lists = {{"gpu[003-010,12],login1", "gpu003"},
                                                      {"a", "a"},
                                                      {"a,b", "a"},
                                                      {"a-1,b[2-3]", "a-1"},
                                                      {"n[7]", "n7"},
                                                      {"n[9,1-3].rack", "n9.rack"},
                                                      {"r[1-2]n[03-04]", "r1n03"},
                                                      {"10.0.0.7", "10.0.0.7"}};
    for (const auto& [list, host] : lists) {
      CAPTURE(list);
      CHECK(FirstHost(list) == host);
    }
    for (const std::string& list : std::vector<std::string>{
             "",      ",",      ",a",    "a,",    "n[",      "n[]",     "n[1",
             "n]1[",  "n[a-b]", "n[1-]", "n[-1]", "n[,]",    "n[1,,2]", "n[1--2]",
             "n[1-2", "-n",     "a b",   "a;b",   "n[1[2]]", "n\xff",   "[]"}) {
      CAPTURE(list);
      CHECK(Failure([&] { FirstHost(list); }) ==
            Excerpt(list) + " is no list of hosts such as gpu[003-010,12],login1");
    }
    // However much an environment holds, little of it is shown.
    const std::string much(100'000, 'x');
    for (const Variables& more : {Variables{{"MASTER_ADDR", much}},
                                  {{"RANK", much}},
                                  {{"WORLD_SIZE", much}},
                                  {{"MASTER_PORT", much}}}) {
      CHECK(Refusal(With(kTorchrun, more)).size() < 200);
    }
    CHECK(Refusal(With(kSrun, {{"SLURM_JOB_NODELIST", much + "["}})).size() < 200);
    for (const char* const host : {"a\nb", "a\x1B[2J", "a\xC2\x9B", "a\xE2\x80\xAE"}) {
      CHECK(Refusal(With(kTorchrun, {{"MASTER_ADDR", host}})) ==
            "MASTER_ADDR: must be a host of at most 255 bytes, is " + Excerpt(host));
    }
  }
}

Plan PlanOf(int ranks, int replicas, int members) {
  Plan plan;
  plan.ranks = ranks;
  plan.data_parallel = replicas;
  plan.expert_parallel = members;
  return plan;
}

TEST_SUITE("unit") {
  TEST_CASE("rank order: every process is one device and every device one process") {
    for (const char* name :
         {"ep-dp-pp", "ep-pp-dp", "dp-ep-pp", "dp-pp-ep", "pp-ep-dp", "pp-dp-ep"}) {
      for (const Plan& plan :
           {PlanOf(1, 1, 1), PlanOf(4, 3, 2), PlanOf(2, 1, 5), PlanOf(1, 7, 1), PlanOf(3, 2, 1)}) {
        CAPTURE(name);
        const RankOrder order(name, plan);
        CHECK(order.processes() == plan.ranks * plan.data_parallel * plan.expert_parallel);
        std::set<std::array<int, 3>> devices;
        for (int process = 0; process < order.processes(); ++process) {
          const Device device = order.DeviceOf(process);
          CHECK(order.ProcessOf(device) == process);
          CHECK(device.rank < plan.ranks);
          CHECK(device.replica < plan.data_parallel);
          CHECK(device.member < plan.expert_parallel);
          devices.insert({device.replica, device.member, device.rank});
        }
        CHECK(devices.size() == static_cast<size_t>(order.processes()));
      }
    }
  }

  TEST_CASE("rank order: from the dimension that changes fastest") {
    const Plan plan = PlanOf(4, 3, 2);
    using D = Device;
    CHECK(RankOrder(RankOrder::kDefault, plan).DeviceOf(1) ==
          D{.replica = 0, .member = 1, .rank = 0});
    CHECK(RankOrder(RankOrder::kDefault, plan).DeviceOf(2) ==
          D{.replica = 1, .member = 0, .rank = 0});
    CHECK(RankOrder(RankOrder::kDefault, plan).DeviceOf(6) ==
          D{.replica = 0, .member = 0, .rank = 1});
    CHECK(RankOrder("pp-ep-dp", plan).DeviceOf(1) == D{.replica = 0, .member = 0, .rank = 1});
    CHECK(RankOrder("pp-ep-dp", plan).DeviceOf(4) == D{.replica = 0, .member = 1, .rank = 0});
    CHECK(RankOrder("pp-ep-dp", plan).DeviceOf(8) == D{.replica = 1, .member = 0, .rank = 0});
    CHECK(RankOrder("dp-pp-ep", plan).DeviceOf(12) == D{.replica = 0, .member = 1, .rank = 0});
  }

  TEST_CASE("rank order: what is none") {
    const Plan plan = PlanOf(2, 1, 1);
    const std::string known =
        "; known are: ep-dp-pp, ep-pp-dp, dp-ep-pp, dp-pp-ep, pp-ep-dp, pp-dp-ep";
    CHECK(Failure([&] { RankOrder("ep-dp-tp", plan); }) ==
          "unknown rank order \"ep-dp-tp\" (did you mean \"ep-dp-pp\"?)" + known);
    for (const std::string order :
         {"", "ep", "ep-dp", "ep-ep-pp", "EP-DP-PP", "ep-dp-pp-ep", "ep,dp,pp", "ep-dp-pp "}) {
      CAPTURE(order);
      const std::string failure = Failure([&] { RankOrder(order, plan); });
      CHECK(failure.find("unknown rank order \"" + order + "\"") == 0);
      CHECK(Contains(failure, known));
    }
    CHECK(Failure([] { RankOrder("ep-dp-pp", PlanOf(kMaxRanks, kMaxDataParallel, 2)); }) ==
          "a plan of 16384 ranks, 16384 replicas and 2 members needs more than 1048576 processes, "
          "the most that one job can have");
  }

  TEST_CASE("a device's name leaves out what there is only one of") {
    const Device device{.replica = 0, .member = 1, .rank = 2};
    CHECK(NameOf(PlanOf(4, 3, 2), device) == "replica 0 member 1 rank 2");
    CHECK(NameOf(PlanOf(4, 1, 2), device) == "member 1 rank 2");
    CHECK(NameOf(PlanOf(4, 3, 1), device) == "replica 0 rank 2");
    CHECK(NameOf(PlanOf(4, 1, 1), device) == "rank 2");
  }
}

}  // namespace
}  // namespace contraflow::world_test
