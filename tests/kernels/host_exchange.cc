#include "tests/kernels/host_exchange.h"

#include <algorithm>
#include <limits>
#include <thread>

#include "compiler/plan/error.h"
#include "runtime/host/backend.h"
#include "runtime/transport/thread_transport.h"

namespace contraflow {
namespace {

LayerShape ShapeOfLayer(const ExchangeShape& shape) {
  LayerShape layer(Model{}, shape.members, shape.local_experts);
  layer.experts = shape.experts();
  layer.width = shape.width;
  layer.capacity = shape.capacity;
  // There is room for whatever is sent.
  layer.sent_rows = layer.expert_rows = std::numeric_limits<int>::max();
  return layer;
}

/// Every kind of row is the same memory: an operation uses one of each side.
LayerViews<float> ViewsOf(HostMember* m) {
  LayerViews<float> v;
  v.sent = m->sent.data();
  v.first = m->first.data();
  v.received = m->received.data();
  v.dispatched = v.combined = v.dcombined = v.ddispatched = m->tokens.data();
  v.rows = v.expert_out = v.drows = v.dsorted = m->experts.data();
  return v;
}

void Run(const ExchangeShape& shape, Op op, Transport* transport, HostMember* member) {
  Exchange exchange(ShapeOfLayer(shape), *transport);
  const Instruction instruction = Component(op, 0, 0, 0);
  const LayerViews<float> views = ViewsOf(member);
  exchange.Run(instruction, views);
}

}  // namespace

void ExchangeOnHost(const ExchangeShape& shape, Op op, std::vector<HostMember>* members) {
  const auto experts = static_cast<size_t>(shape.experts());
  if (op == Op::DISPATCH_F) {
    size_t rows = 0;
    for (const HostMember& member : *members) rows += static_cast<size_t>(member.sent[experts]);
    for (HostMember& member : *members) {
      member.first.assign(static_cast<size_t>(shape.local_experts) + 1, -1);
      member.received.assign(experts, -1);
      member.experts.assign(rows * static_cast<size_t>(shape.width), -1);
    }
  }
  ThreadNetwork network(1, 1, shape.members, {});
  {
    std::vector<std::jthread> threads;
    for (size_t m = 0; m < members->size(); ++m) {
      threads.emplace_back([&, m] {
        Run(shape, op, &network.At({0, static_cast<int>(m), 0}), &(*members)[m]);
      });
    }
  }
  if (op != Op::DISPATCH_F) return;
  for (HostMember& member : *members) {
    member.experts.resize(static_cast<size_t>(member.first.back() * shape.width));
  }
}

}  // namespace contraflow
