// How NcclLibrary calls NCCL, by a fake of it whose communicators do not block: like NCCL 2.28 to
// 2.30 it goes on for a while with what it was asked, refuses to be asked more meanwhile, and says
// of a split, which it has only begun, that it is done.

#include <cuda_runtime_api.h>
#include <doctest/doctest.h>
#include <nccl.h>

#include <memory>
#include <string>
#include <vector>

#include "runtime/nccl/library.h"

/// Target of the opaque handle of nccl.h.
struct ncclComm {
  int polls = 0;                // that find it at work
  ncclComm_t* split = nullptr;  // its work meanwhile
};

namespace contraflow::nccl_calls_test {
namespace {

constexpr int kPolls = 3;

std::vector<std::unique_ptr<ncclComm>>& Comms() {
  static std::vector<std::unique_ptr<ncclComm>> comms;
  return comms;
}
ncclComm_t NewComm(int polls) {
  Comms().push_back(std::make_unique<ncclComm>());
  Comms().back()->polls = polls;
  return Comms().back().get();
}
ncclResult_t Begin(ncclComm_t comm, ncclResult_t says) {
  if (comm->polls > 0) return ncclInvalidArgument;
  comm->polls = kPolls;
  return says;
}

}  // namespace
}  // namespace contraflow::nccl_calls_test

using contraflow::nccl_calls_test::Begin;
using contraflow::nccl_calls_test::kPolls;
using contraflow::nccl_calls_test::NewComm;

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId*) { return ncclSuccess; }
const char* ncclGetErrorString(ncclResult_t) { return "an error"; }
const char* ncclGetLastError(ncclComm_t) { return ""; }
ncclResult_t ncclMemAlloc(void**, size_t) { return ncclSuccess; }
ncclResult_t ncclMemFree(void*) { return ncclSuccess; }
ncclResult_t ncclCommRegister(ncclComm_t, void*, size_t, void**) { return ncclSuccess; }
ncclResult_t ncclCommDeregister(ncclComm_t, void*) { return ncclSuccess; }
ncclResult_t ncclCommWindowDeregister(ncclComm_t, ncclWindow_t) { return ncclSuccess; }
ncclResult_t ncclGroupStart() { return ncclSuccess; }
ncclResult_t ncclGroupEnd() { return ncclSuccess; }
ncclResult_t ncclSend(const void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) {
  return ncclSuccess;
}
ncclResult_t ncclRecv(void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) {
  return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclCommAbort(ncclComm_t) { return ncclSuccess; }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int, ncclUniqueId, int, ncclConfig_t*) {
  *comm = NewComm(kPolls);
  return ncclInProgress;
}
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int, ncclComm_t* split, ncclConfig_t*) {
  *split = nullptr;
  comm->split = color == NCCL_SPLIT_NOCOLOR ? nullptr : split;
  return Begin(comm, ncclSuccess);
}
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void*, size_t, ncclWindow_t*, int) {
  return Begin(comm, ncclSuccess);
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) { return Begin(comm, ncclSuccess); }
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  *state = comm->polls > 0 ? ncclInProgress : ncclSuccess;
  if (comm->polls == 0 || --comm->polls > 0) return ncclSuccess;
  if (comm->split != nullptr) *comm->split = NewComm(1);
  comm->split = nullptr;
  return ncclSuccess;
}

}  // extern "C"

namespace contraflow::nccl_calls_test {
namespace {

/// Polls, of which there are some.
int Await(NcclLibrary& nccl, NcclComm* comm) {
  int polls = 0;
  while (!nccl.Ready(comm)) REQUIRE(++polls < 100);
  return polls;
}

TEST_SUITE("unit") {
  TEST_CASE("NCCL calls: nothing is asked of a communicator that is still at work") {
    {
      NcclLibrary nccl;
      NcclComm* const all = nccl.Join(std::string(sizeof(ncclUniqueId), 'x'), 0, 2, {"all", 1});
      CHECK(Await(nccl, all) >= kPolls);
      for (int i = 0; i < 2; ++i) {
        NcclComm* const split = nccl.Split(all, 0, 0, {"split", 1});
        CHECK(Await(nccl, split) >= kPolls);
        CHECK(nccl.Split(all, Nccl::kNoColor, 0, {"", 1}) == nullptr);
        CHECK(Await(nccl, all) >= kPolls);
        CHECK(nccl.Open(split, nullptr, 8) != nullptr);
        CHECK(Await(nccl, split) >= kPolls);
        nccl.Finalize(split);
        CHECK(Await(nccl, split) >= kPolls);
      }
    }
    Comms().clear();
  }
}

}  // namespace
}  // namespace contraflow::nccl_calls_test
