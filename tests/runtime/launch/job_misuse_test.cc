// Jobs that are started wrongly: each is refused with one clear error, in time, by all of its
// processes.

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <thread>

#include "tests/runtime/launch/job.h"

namespace contraflow::job_misuse_test {
namespace {

/// Another program that listens at a port of this machine: answers every connection with a text,
/// or, where that is empty, says nothing.
class Listener {
 public:
  explicit Listener(std::string answer)
      : answer_(std::move(answer)),
        port_(FreePort()),
        fd_(Open(port_)),
        thread_([this] { Serve(); }) {}
  Listener(const Listener&) = delete;
  ~Listener() {
    shutdown(fd_, SHUT_RDWR);  // wakes the thread
    thread_.join();
    close(fd_);
  }

  std::string port() const { return std::to_string(port_); }

 private:
  static int Open(int port) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    const int reuse = 1;  // the test holds it
    REQUIRE(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof reuse) == 0);
    REQUIRE(bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    REQUIRE(listen(fd, 16) == 0);
    return fd;
  }

  void Serve() {
    std::vector<int> connections;
    while (true) {
      const int connection = accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC);
      if (connection < 0) break;
      connections.push_back(connection);
      if (answer_.empty()) continue;
      // A server does this: first what the client says, then the answer.
      pollfd ready = {connection, POLLIN, 0};
      char bytes[512];
      if (poll(&ready, 1, -1) > 0 && recv(connection, bytes, sizeof bytes, 0) >= 0) {
        send(connection, answer_.data(), answer_.size(), MSG_NOSIGNAL);
      }
      shutdown(connection, SHUT_WR);
    }
    for (const int connection : connections) close(connection);
  }

  const std::string answer_;
  const int port_;
  const int fd_;
  std::thread thread_;
};

/// Plans that the tests use, and a job of two processes that would run.
struct Bench {
  Bench() {
    plan = CompilePlan(folder, "plan", "--schedule 1f1b --ranks 2 --microbatches 2");
    other = CompilePlan(folder, "other", "--schedule zb-1p --ranks 2 --microbatches 2");
  }

  /// The words of a short training, with more of them.
  Words Training(const Words& more = {}) const {
    Words words = {plan, "--model", "tiny", "--steps", "2"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  JobSpec Spec(const Words& more = {}) const {
    JobSpec spec;
    spec.processes = 2;
    spec.words = Training(more);
    return spec;
  }

  /// Words of one that waits for the others for this many seconds, and no longer.
  Words Waiting(int seconds) const {
    return {plan, "--model", "tiny", "--rendezvous-timeout", std::to_string(seconds)};
  }

  TestFolder folder;
  std::string plan, other;
};

/// A wait that is to run out, in seconds: long enough for all processes to start in, however busy
/// the machine.
constexpr int kBrief = 4;

/// How often a refusal may say what it says: once for all processes, or once for each that sees it.
enum class Voices { kOne, kSome };

/// Every process of the job that was started ends with the code, nobody trains, and the text is
/// printed.
void CheckRefused(const JobSpec& spec, std::string_view text, Voices voices = Voices::kOne,
                  int code = 1) {
  LaunchedJob job(spec);
  CAPTURE(job.Story());
  CAPTURE(text);
  CHECK(job.Wait(kPatience));
  for (int p = 0; p < job.processes(); ++p) {
    if (!spec.absent.contains(p)) CHECK(job.ending(p).code == code);
  }
  const std::string all = job.Everything();
  const int times = CountOf(all, text);
  CHECK(times >= 1);
  if (voices == Voices::kOne) {
    CHECK(times == 1);
    // Nobody complains of something else besides.
    CHECK(CountOf(all, "error: ") == 1);
  }
  CHECK(CountOf(all, "\nstep ") == 0);
  CHECK(CountOf(all, "bug in contraflow") == 0);
  CHECK(job.Living().empty());
}

}  // namespace

TEST_SUITE("jobs") {
  TEST_CASE("refused: processes that were told different things") {
    const Bench bench;
    const std::string text = bench.folder.File("other.txt");
    WriteText(text, std::string(3000, 'x'));
    JobSpec spec = bench.Spec();
    spec.words_of[1] = bench.Training();
    spec.words_of[1][0] = bench.other;
    CheckRefused(spec, "rank 1 has a different plan than rank 0: " + bench.other + " (zb-1p, ");
    CheckRefused(spec, " against " + bench.plan + " (1f1b, ");

    const auto differ = [&](const Words& more, std::string_view expected) {
      spec.words_of[1] = bench.Training(more);
      CheckRefused(spec, expected);
    };
    differ({"--seed", "2"}, "rank 1 has a different seed than rank 0: 2 against 1; ");
    differ({"--data", text}, "rank 1 has a different text than rank 0: ");
    differ({"--strict"}, "rank 1 has a different --strict than rank 0: ");
    differ({"--check"}, "rank 1 has a different --check than rank 0: ");
    spec.words_of[1] = bench.Training();
    spec.words_of[1][2] = "default";
    CheckRefused(spec, "rank 1 has a different model than rank 0: default ");
    spec.words_of[1] = bench.Training();
    spec.words_of[1][4] = "3";
    CheckRefused(spec,
                 "rank 1 has a different number of steps (--steps) than rank 0: 3 against 2; ");
  }

#ifdef CF_HAVE_MPI
  TEST_CASE("refused: another plan on one rank under mpirun") {
    const Bench bench;
    JobSpec spec = bench.Spec();
    spec.style = JobStyle::kMpirun;
    spec.words_of[1] = bench.Training();
    spec.words_of[1][0] = bench.other;
    CheckRefused(spec, "rank 1 has a different plan than rank 0: " + bench.other + " (zb-1p, ");
    spec.words_of.clear();
    spec.processes = 3;
    CheckRefused(spec, "needs 2 processes (2 ranks), but 3 were launched; ");
  }
#endif

  TEST_CASE("refused: a plan that is not there") {
    const Bench bench;
    JobSpec spec = bench.Spec();
    spec.words_of[1] = bench.Training();
    spec.words_of[1][0] = bench.folder.File("nowhere.json");
    CheckRefused(spec, "nowhere.json: ");
    spec.words[0] = spec.words_of[1][0];
    CheckRefused(spec, "nowhere.json: ");
  }

  TEST_CASE("refused: the wrong number of processes") {
    const Bench bench;
    JobSpec spec = bench.Spec();
    spec.processes = 3;
    CheckRefused(spec, bench.plan + ": needs 2 processes (2 ranks), but 3 were launched; ");
    spec.words[0] = CompilePlan(bench.folder, "four", "--schedule 1f1b --ranks 4 --microbatches 4");
    CheckRefused(spec, "needs 4 processes (4 ranks), but 3 were launched; ");
    spec = bench.Spec();
    spec.words_of[0] = bench.Waiting(kBrief);
    spec.environment_of[1] = {{"WORLD_SIZE", "3"}};
    CheckRefused(spec, "as one of 3", Voices::kSome);
  }

  TEST_CASE("refused: a rank that is missing") {
    const Bench bench;
    JobSpec spec;
    spec.words = bench.Waiting(kBrief);
    spec.processes = 3;
    spec.absent = {1};
    CheckRefused(spec, "rank 1 of 3 did not reach rank 0 at 127.0.0.1:");
    spec.absent = {1, 2};
    CheckRefused(spec, "ranks 1, 2 of 3 did not reach rank 0 at ");
    spec.words = bench.Waiting(1);
    spec.absent = {0};
    CheckRefused(spec, "rank 0 must run there and be reachable", Voices::kSome);
  }

  TEST_CASE("refused: two ranks with the same number") {
    const Bench bench;
    JobSpec spec;
    spec.words = bench.Waiting(60);
    spec.processes = 3;
    spec.environment_of[2] = {{"RANK", "1"}};
    CheckRefused(spec, "two processes claim to be rank 1", Voices::kSome);
    spec.words = bench.Waiting(2);
    spec.environment_of[2] = {{"RANK", "0"}};
    CheckRefused(spec, "address already in use", Voices::kSome);
  }

  TEST_CASE("refused: a port where something else listens") {
    const Bench bench;
    JobSpec spec = bench.Spec();
    spec.words = bench.Waiting(2);
    {
      const Listener silent("");
      spec.environment = {{"MASTER_PORT", silent.port()}};
      CheckRefused(spec, "did not answer within 2 s", Voices::kSome);
      CheckRefused(spec, "address already in use", Voices::kSome);
    }
    const Listener http("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n");
    spec.environment = {{"MASTER_PORT", http.port()}};
    CheckRefused(spec, "does not know the secret of this job, or is another program",
                 Voices::kSome);
  }

  TEST_CASE("refused: a port where an older job waits") {
    const Bench bench;
    const std::string port = std::to_string(FreePort());
    JobSpec older = bench.Spec();
    older.absent = {1};
    older.environment = {{"MASTER_PORT", port}, {"CONTRAFLOW_SECRET", "of the older job"}};
    older.words = bench.Waiting(5);
    LaunchedJob waiting(older);
    JobSpec spec = bench.Spec();
    spec.absent = {0};  // for it the port is taken
    spec.environment = {{"MASTER_PORT", port}, {"CONTRAFLOW_SECRET", "of this job"}};
    CheckRefused(spec, "does not know the secret of this job");
    // The stranger changes nothing for the older job, which names him.
    CAPTURE(waiting.Story());
    CHECK(waiting.Wait(kPatience));
    CHECK(waiting.ending(0).code == 1);
    CHECK(CountOf(waiting.Err(0), "rank 1 of 2 did not reach") == 1);
    CHECK(CountOf(waiting.Err(0), "127.0.0.1") >= 2);
  }

  TEST_CASE("refused: secrets that differ or are missing") {
    const Bench bench;
    JobSpec spec = bench.Spec();
    spec.words_of[0] = bench.Waiting(kBrief);
    spec.environment = {{"CONTRAFLOW_SECRET", "of all"}};
    spec.environment_of[1] = {{"CONTRAFLOW_SECRET", "of one"}};
    CheckRefused(spec, "does not know the secret of this job", Voices::kSome);
    spec.words_of.clear();
    spec.words = bench.Waiting(kBrief);
    spec.environment_of[1] = {{"CONTRAFLOW_SECRET", ""}};
    CheckRefused(spec, "does not know the secret of this job", Voices::kSome);

    spec.environment = {{"MASTER_ADDR", "192.0.2.1"}};  // of nobody
    spec.environment_of.clear();
    CheckRefused(spec, "no secret to keep strangers out", Voices::kSome);
    spec.words.insert(spec.words.end(), {"--secret-file", bench.folder.File("none")});
    CheckRefused(spec, bench.folder.File("none") + ": ", Voices::kSome);
  }

  TEST_CASE("a secret in a file") {
    const Bench bench;
    const std::string file = bench.folder.File("secret");
    WriteText(file, "known to this job alone\n");
    LaunchedJob job(bench.Spec({"--secret-file", file}));
    CAPTURE(job.Story());
    CHECK(job.Wait(kPatience));
    CHECK(job.ending(0).code == 0);
    CHECK(job.ending(1).code == 0);
    CHECK(CountOf(job.Story(), "known to this job") == 0);
  }

  TEST_CASE("refused: what launchers never say") {
    const Bench bench;
    JobSpec spec;
    spec.processes = 1;
    spec.words = bench.Waiting(2);
    const auto refuse = [&](const Variables& environment, std::string_view text) {
      spec.environment = environment;
      CheckRefused(spec, text);
    };
    for (const char* const rank : {"x", "-1", "2", "1 ", "99999999999999999999"}) {
      refuse({{"RANK", rank}, {"WORLD_SIZE", "2"}}, "RANK: ");
    }
    refuse({{"WORLD_SIZE", "many"}}, "WORLD_SIZE: ");
    refuse({{"WORLD_SIZE", "0"}}, "WORLD_SIZE: ");
    refuse({{"WORLD_SIZE", "2"}, {"MASTER_PORT", "65536"}}, "MASTER_PORT: ");
    refuse({{"WORLD_SIZE", "2"}, {"MASTER_PORT", ""}}, "MASTER_PORT is not set");
    refuse({{"WORLD_SIZE", "2"}, {"MASTER_ADDR", ""}}, "MASTER_ADDR is not set");
  }

  TEST_CASE("refused: transports that cannot be") {
    const Bench bench;
    CheckRefused(bench.Spec({"--transport", "nccl"}), "--transport nccl: links GPUs; ",
                 Voices::kSome, 2);
    CheckRefused(bench.Spec({"--transport", "threads"}),
                 "--transport threads: 2 processes were launched", Voices::kSome);
    CheckRefused(bench.Spec({"--transport", "smoke"}), "--transport", Voices::kSome, 2);
    CheckRefused(bench.Spec({"--transprot", "shm"}), "did you mean \"--transport\"", Voices::kSome,
                 2);
  }
}

}  // namespace contraflow::job_misuse_test
