#include "runtime/nccl/nccl_id.h"

#include <nccl.h>

#include "compiler/plan/error.h"

namespace contraflow {

std::string NewNcclId() {
  ncclUniqueId id;
  const ncclResult_t result = ncclGetUniqueId(&id);
  if (result != ncclSuccess) {
    throw Error(std::string("NCCL makes no id for a communicator: ") + ncclGetErrorString(result) +
                " (" + ncclGetLastError(nullptr) +
                "); NCCL_SOCKET_IFNAME names the network interface that it is to use");
  }
  return {id.internal, sizeof(id.internal)};
}

}  // namespace contraflow
