#include "runtime/nccl/puts.h"

#include <cstdint>
#include <cstring>

#include "compiler/plan/error.h"

namespace contraflow {
namespace {

/// Place at which a rank receives one message.
struct MessagePlace {
  int32_t from, forward, producer, microbatch;
  int64_t offset;
};

constexpr int kSender = 0, kReceiver = 1;  // in the communicator of an edge

}  // namespace

NcclPuts::NcclPuts(const Plan& plan, const RankOrder& order, int process, NcclComms& comms)
    : plan_(plan), order_(order), device_(order.DeviceOf(process)), comms_(comms) {}

std::string NcclPuts::PlacesOf(const Plan& plan, Device device, GpuBackend& backend) {
  std::string places;
  for (const Instruction& i : plan.program(device.rank)) {
    if (WorkOf(i.op) != Work::kRecv) continue;
    const Tag tag = TagOf(i);
    const MessagePlace place = {i.peer, tag.forward ? 1 : 0, tag.producer, tag.microbatch,
                                backend.Message(i).data() - backend.LinkMemory().data()};
    places.append(reinterpret_cast<const char*>(&place), sizeof place);
  }
  return places;
}

void NcclPuts::Connect(GpuBackend& backend, const ShareBytes& share) {
  const std::vector<std::string> all = share(PlacesOf(plan_, device_, backend));
  for (const auto& [from, to] : EdgesOf(plan_)) {
    if (device_.rank != from && device_.rank != to) continue;
    // The receiver opens it too, and needs it for nothing else.
    NcclWindow* const window = comms_.Open(comms_[Edge(from, to)], backend.LinkMemory());
    if (device_.rank == to) continue;
    windows_[to] = window;
    const int process = order_.ProcessOf({device_.replica, device_.member, to});
    const std::string& places = all.at(static_cast<size_t>(process));
    for (size_t at = 0; at + sizeof(MessagePlace) <= places.size(); at += sizeof(MessagePlace)) {
      MessagePlace place;
      std::memcpy(&place, places.data() + at, sizeof place);
      if (place.from != from) continue;
      const Tag tag = {place.forward != 0, place.producer, place.microbatch};
      offsets_[{to, tag}] = static_cast<size_t>(place.offset);
    }
  }
}

void NcclPuts::Transfer(const Participant& self) {
  const Instruction& message = *self.instruction;
  if (WorkOf(message.op) == Work::kRecv) {
    NcclComm* const comm = comms_[Edge(message.peer, device_.rank)];
    comms_.Group([&] { comms_.nccl().Signal(comm, kSender, self.stream); });
    receives_.push_back({comm, self.stream});
  } else {
    sends_.push_back({comms_[Edge(device_.rank, message.peer)], windows_.at(message.peer),
                      self.backend->Message(message), offsets_.at({message.peer, TagOf(message)}),
                      self.stream});
  }
  if (!grouped_) EndGroup();
}

/// All that a group receives has been announced before, so that both ends of two messages in
/// opposite directions can be in one stream.
void NcclPuts::EndGroup() {
  Nccl& nccl = comms_.nccl();
  for (const Send& send : sends_) {
    comms_.Group([&] { nccl.AwaitSignal(send.comm, kReceiver, send.stream); });
    comms_.Group([&] {
      nccl.Put(send.comm, send.bytes.data(), send.bytes.size(), kReceiver, send.window, send.offset,
               send.stream);
    });
  }
  for (const Receive& receive : receives_) {
    comms_.Group([&] { nccl.AwaitSignal(receive.comm, kSender, receive.stream); });
  }
  sends_.clear();
  receives_.clear();
  grouped_ = false;
}

}  // namespace contraflow
