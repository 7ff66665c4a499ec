#include "runtime/transport/mpi.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "runtime/transport/local_address.h"
#include "tests/support/failure.h"

namespace contraflow::mpi_test {
namespace {

using Addresses = std::vector<std::string>;

TEST_SUITE("unit") {
  TEST_CASE("mpi: without a launcher or without MPI it says what to do") {
    for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"}) {
      unsetenv(variable);
    }
    World world;
    world.launcher = Launcher::kTorchrun;
    world.rank = 1;
    world.size = 2;
    const char* const expected =
        HasMpi()
            ? "`transport` mpi needs an MPI launcher (mpirun, or srun with PMIx); use "
              "`transport` tcp"
            : "this build has no MPI: use `transport` tcp, or install libopenmpi-dev and build "
              "again with -DCF_MPI=ON";
    CHECK(Failure([&] { Mpi mpi(world); }) == expected);
    // A variable that is empty is none.
    setenv("PMIX_RANK", "", 1);
    CHECK(Failure([&] { Mpi mpi(world); }) == expected);
    unsetenv("PMIX_RANK");
  }

  TEST_CASE("local addresses are numeric and have a network") {
    for (const std::string& address : LocalAddresses()) {
      CAPTURE(address);
      const size_t slash = address.find('/');
      REQUIRE(slash != std::string::npos);
      // It is one that ReachableAddress can read.
      CHECK(ReachableAddress({address}, {}) == address.substr(0, slash));
      CHECK(address.rfind("127.", 0) != 0);
      CHECK(address.rfind("fe80:", 0) != 0);
      CHECK(address != "::1/128");
    }
  }

  TEST_CASE("the address where others reach this machine is one in a network that all have") {
    const auto choose = [](const Addresses& own, const std::vector<Addresses>& others) {
      return ReachableAddress(own, others);
    };
    CHECK(choose({}, {}) == "");
    CHECK(choose({"192.0.2.1/24"}, {}) == "192.0.2.1");
    // The first is a bridge that every machine has for itself.
    const Addresses own = {"172.17.0.1/16", "10.1.2.3/16", "10.2.2.3/16", "2001:db8::1/64"};
    CHECK(choose(own, {{"172.17.0.1/16", "10.2.9.9/16"}}) == "10.2.2.3");
    CHECK(choose(own, {{"10.1.0.9/16", "10.2.9.9/16"}, {"10.2.7.7/16"}}) == "10.2.2.3");
    CHECK(choose(own, {{"10.1.0.9/16"}, {"10.1.0.10/16"}}) == "10.1.2.3");
    CHECK(choose(own, {{"172.17.0.1/16", "2001:db8::2/64"}}) == "2001:db8::1");
    // No network is common: the first, for want of better.
    CHECK(choose(own, {{"10.1.0.9/16"}, {"10.2.7.7/16"}}) == "172.17.0.1");
    CHECK(choose(own, {{}}) == "172.17.0.1");
    // Networks are equal to the last bit of their prefix, whichever byte it is in.
    CHECK(choose({"198.51.100.1/24", "10.0.16.1/20"}, {{"10.0.31.254/20"}}) == "10.0.16.1");
    CHECK(choose({"198.51.100.1/24", "10.0.16.1/20"}, {{"10.0.32.1/20"}}) == "198.51.100.1");
    CHECK(choose({"198.51.100.1/24", "10.0.16.1/20"}, {{"10.0.16.2/24"}}) == "198.51.100.1");
    CHECK(choose({"198.51.100.1/24", "10.0.0.1/0"}, {{"203.0.113.5/0"}}) == "10.0.0.1");
    // What another process sent may be anything.
    for (const std::string odd :
         {"", "/", "x/24", "10.0.0.1", "10.0.0.1/", "10.0.0.1/x", "10.0.0.1/33", "10.0.0.1/24x",
          "10.0.0.1/-1", "::1/129", "10.0.0.1/99999999999999999999999"}) {
      CAPTURE(odd);
      CHECK(choose({odd}, {}) == "");
      CHECK(choose({odd, "192.0.2.1/24"}, {{odd, "192.0.2.2/24"}}) == "192.0.2.1");
    }
  }
}

}  // namespace
}  // namespace contraflow::mpi_test
