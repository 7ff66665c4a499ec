#include <doctest/doctest.h>

#include <cstdlib>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/core/progress.h"
#include "runtime/launch/control.h"
#include "runtime/nccl/library.h"
#include "tests/runtime/launch/gathering.h"

namespace contraflow::nccl_test {
namespace {

TEST_SUITE("unit") {
  TEST_CASE("nccl: ids are made without a GPU and never twice") {
    const std::string first = NewNcclId();
    CHECK(first.size() == 128);
    CHECK(NewNcclId() != first);
  }

  TEST_CASE("nccl: the environment says what the runtime relies on unless the user has") {
    unsetenv("NCCL_LAUNCH_ORDER_IMPLICIT");
    unsetenv("CUDA_MODULE_LOADING");
    setenv("NCCL_GRAPH_MIXING_SUPPORT", "1", 1);
    NcclLibrary::SetDefaults();
    CHECK(std::string(std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT")) == "1");
    CHECK(std::string(std::getenv("NCCL_GRAPH_MIXING_SUPPORT")) == "1");
    CHECK(std::string(std::getenv("CUDA_MODULE_LOADING")) == "EAGER");
  }

  TEST_CASE("nccl: rank 0 hands an id to all who have met") {
    std::vector<Attendance> all = Gather(Points(4));
    CheckMet(all);
    std::vector<std::string> ids(all.size());
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < all.size(); ++rank) {
      threads.emplace_back([&, rank] {
        const Progress progress;
        Control::Options options;
        options.catch_signals = false;
        Control control(std::move(*all[rank].members), progress, options);
        ids[rank] = control.Broadcast(rank == 0 ? NewNcclId() : "");
        control.Finish();
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(ids[0].size() == 128);
    for (const std::string& id : ids) CHECK(id == ids[0]);
  }
}

}  // namespace
}  // namespace contraflow::nccl_test
