#include "runtime/launch/rendezvous.h"

#include "compiler/plan/error.h"
#include "runtime/launch/peer.h"

namespace contraflow {

Membership Meet(const MeetingPoint& point) {
  CF_ASSERT(point.size >= 1 && point.rank >= 0 && point.rank < point.size);
  if (point.size == 1) {
    Membership members = Party(point).members;
    members.roster.front() = point.address;
    return members;
  }
  return point.rank == 0 ? HostMeeting(point) : VisitMeeting(point);
}

}  // namespace contraflow
