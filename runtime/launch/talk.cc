#include "runtime/launch/talk.h"

#include <type_traits>

#include "compiler/plan/error.h"
#include "compiler/plan/text.h"

namespace contraflow {
namespace {

constexpr size_t kMaxFaultText = size_t{1} << 14;

std::string Cut(const std::string& text) { return text.substr(0, kMaxFaultText); }

}  // namespace

void PutBeat(const Beat& beat, ByteWriter* bytes) {
  bytes->Put(beat.moves).Put(beat.step).Put(beat.waits_for).Put(beat.age_ms);
  bytes->PutText(Cut(beat.position));
}

Beat TakeBeat(ByteReader* bytes, int size) {
  Beat beat;
  beat.moves = bytes->Take<uint64_t>();
  beat.step = bytes->Take<int32_t>();
  beat.waits_for = bytes->Take<int32_t>();
  beat.age_ms = bytes->Take<uint32_t>();
  beat.position = Cut(PlainText(bytes->TakeText()));
  if (beat.waits_for < -1 || beat.waits_for >= size) throw Error("names a process there is not");
  return beat;
}

void PutFault(const Fault& fault, ByteWriter* bytes) {
  bytes->Put(fault.kind).Put(int32_t{fault.process}).PutText(Cut(fault.text));
}

std::string FaultBytes(const Fault& fault) {
  ByteWriter bytes;
  PutFault(fault, &bytes);
  return bytes.Take();
}

Fault TakeFaultBytes(ByteReader* bytes, int size) {
  Fault fault;
  const auto kind = bytes->Take<std::underlying_type_t<FaultKind>>();
  fault.process = bytes->Take<int32_t>();
  fault.text = Cut(PlainText(bytes->TakeText()));
  const bool known = kind >= 0 && kind <= static_cast<int>(FaultKind::kJob) && fault.process >= 0 &&
                     fault.process < size;
  if (!known) throw Error("tells of a fault there is not");
  fault.kind = static_cast<FaultKind>(kind);
  return fault;
}

}  // namespace contraflow
