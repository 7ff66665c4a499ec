#pragma once

#include <chrono>
#include <functional>
#include <set>
#include <span>
#include <thread>
#include <utility>

#include "compiler/plan/error.h"
#include "runtime/core/transport.h"
#include "runtime/transport/wire.h"

namespace contraflow {

/// Harm that is done to a call.
enum class Harm { kFail, kDelay, kDrop };

/// Effect of a call: begins something, looks whether it is done, or ends only when it is.
enum class CallKind { kBegin, kLook, kAwait };

/// A fault in the n-th call, counting from 0.
struct CallFault {
  Harm harm = Harm::kFail;
  int n = 0;
  int calls = 0;
  CallKind kind = CallKind::kBegin;  ///< of the n-th call, once it was met

  bool met() const { return calls > n; }
  /// Whether this call is to be dropped.
  bool Call(CallKind the_kind) {
    if (calls++ != n) return false;
    kind = the_kind;
    switch (harm) {
      case Harm::kFail:
        throw Error("injected");
      case Harm::kDelay:
        std::this_thread::sleep_for(std::chrono::milliseconds(3));
        return false;
      case Harm::kDrop:
        break;
    }
    return true;
  }
};

/// A transport with a fault in its n-th call. The effect of a dropped call, begun or awaited, never
/// happens.
class FaultyTransport : public Transport {
 public:
  /// `wait` waits in the transport for a message that never comes.
  FaultyTransport(Transport* inner, CallFault* fault, std::function<void()> wait)
      : inner_(*inner), fault_(*fault), wait_(std::move(wait)) {}

  void Post(std::span<Transfer* const> group) override {
    if (!fault_.Call(CallKind::kBegin)) return inner_.Post(group);
    lost_.insert(group.begin(), group.end());
  }
  bool Done(Transfer& transfer) override {
    if (fault_.Call(CallKind::kLook)) lost_.insert(&transfer);
    return !lost_.contains(&transfer) && inner_.Done(transfer);
  }
  void Wait(Transfer& transfer) override {
    if (fault_.Call(CallKind::kAwait)) lost_.insert(&transfer);
    lost_.contains(&transfer) ? wait_() : inner_.Wait(transfer);
  }
  Clock::time_point Sum(const Instruction& reduce, Over over, std::span<const int> holders,
                        std::span<float> values) override {
    if (fault_.Call(CallKind::kAwait)) wait_();
    return inner_.Sum(reduce, over, holders, values);
  }
  void AllToAll(const Instruction& instruction, std::span<const std::span<const std::byte>> send,
                std::span<const std::span<std::byte>> receive) override {
    if (fault_.Call(CallKind::kAwait)) wait_();
    inner_.AllToAll(instruction, send, receive);
  }
  /// To drop it does no harm.
  void Poll() override {
    if (fault_.harm != Harm::kDrop) fault_.Call(CallKind::kLook);
    inner_.Poll();
  }
  void Abort() override { inner_.Abort(); }

 private:
  Transport& inner_;
  CallFault& fault_;
  const std::function<void()> wait_;
  std::set<const Transfer*> lost_;
};

/// A wire with a fault in its n-th send, receive or test.
class FaultyWire : public Wire {
 public:
  FaultyWire(Wire* inner, CallFault* fault) : inner_(*inner), fault_(*fault) {}

  int processes() const override { return inner_.processes(); }
  int self() const override { return inner_.self(); }
  int Send(Channel channel, int to, const Label& label, std::span<const std::byte> bytes) override {
    return fault_.Call(CallKind::kBegin) ? kLost : inner_.Send(channel, to, label, bytes);
  }
  int Receive(Channel channel, int from, std::span<std::byte> bytes) override {
    return fault_.Call(CallKind::kBegin) ? kLost : inner_.Receive(channel, from, bytes);
  }
  /// To drop it does no harm: it is asked again.
  Status Test(int ticket) override {
    if (fault_.harm != Harm::kDrop) fault_.Call(CallKind::kLook);
    return ticket == kLost ? Status{} : inner_.Test(ticket);
  }
  void Poll() override { inner_.Poll(); }
  void Pause() override { inner_.Pause(); }
  void Abort() override { inner_.Abort(); }

 private:
  static constexpr int kLost = -2;  // the ticket of what never happens

  Wire& inner_;
  CallFault& fault_;
};

}  // namespace contraflow
