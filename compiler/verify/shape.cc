// Checks of a plan that need no meaning of its instructions together: sizes, routes, the fields
// each operation has, and what belongs at which level.

#include <algorithm>
#include <string_view>

#include "compiler/verify/checks.h"

namespace contraflow::check {
namespace {

std::string Range(int size) { return "0.." + std::to_string(size - 1); }

bool CheckSize(const char* name, int value, int limit, Findings* findings) {
  if (value >= 1 && value <= limit) return true;
  findings->Add(
      Check::kShape, -1, -1,
      std::string(name) + " is " + std::to_string(value) + ", must be 1.." + std::to_string(limit));
  return false;
}

/// Checks the layers of the stages, where they differ.
bool CheckStageLayers(const Plan& plan, Findings* findings) {
  if (plan.stage_layers.empty()) return true;
  const auto add = [&](const std::string& what) {
    findings->Add(Check::kShape, -1, -1, "stage_layers " + what);
    return false;
  };
  if (plan.stage_layers.size() != static_cast<size_t>(plan.stages)) {
    return add("has " + std::to_string(plan.stage_layers.size()) + " entries, must have one for " +
               "each of the " + std::to_string(plan.stages) + " stages");
  }
  size_t most = 0;
  for (size_t s = 0; s < plan.stage_layers.size(); ++s) {
    const StageLayers& layers = plan.stage_layers[s];
    if (layers.empty() || layers.size() > static_cast<size_t>(kMaxLayers)) {
      return add("gives stage " + std::to_string(s) + " " + std::to_string(layers.size()) +
                 " layers, must be 1.." + std::to_string(kMaxLayers));
    }
    for (const LayerKind kind : layers) {
      if (kind > LayerKind::kPlain) return add("has an unknown kind of layer");
    }
    most = std::max(most, layers.size());
  }
  if (most == static_cast<size_t>(plan.layers)) return true;
  return add("has up to " + std::to_string(most) + " layers a stage, and layers is " +
             std::to_string(plan.layers) + "; they must agree");
}

bool CheckSizes(const Plan& plan, Findings* findings) {
  bool right = CheckSize("ranks", plan.ranks, kMaxRanks, findings);
  right &= CheckSize("stages", plan.stages, kMaxStages, findings);
  right &= CheckSize("microbatches", plan.microbatches, kMaxMicrobatches, findings);
  right &= CheckSize("data_parallel", plan.data_parallel, kMaxDataParallel, findings);
  right &= CheckSize("expert_parallel", plan.expert_parallel, kMaxExpertParallel, findings);
  if (plan.layers < 0 || plan.layers > kMaxLayers) {
    findings->Add(
        Check::kShape, -1, -1,
        "layers is " + std::to_string(plan.layers) + ", must be " + Range(kMaxLayers + 1));
    right = false;
  }
  right = right && CheckStageLayers(plan, findings);
  if (!right) return false;
  if (int64_t{plan.stages} * plan.microbatches > kMaxCells) {
    findings->Add(Check::kShape, -1, -1,
                  "stages x microbatches is " +
                      std::to_string(int64_t{plan.stages} * plan.microbatches) +
                      ", must be at most " + std::to_string(kMaxCells));
    right = false;
  }
  if (plan.programs.size() != static_cast<size_t>(plan.ranks)) {
    findings->Add(Check::kShape, -1, -1,
                  "there are " + std::to_string(plan.programs.size()) + " programs; each of the " +
                      std::to_string(plan.ranks) + " ranks must have one");
    right = false;
  }
  return right;
}

void CheckRoute(const Plan& plan, size_t number, std::vector<int>* route_of, Findings* findings) {
  const Route& route = plan.routes[number];
  const auto add = [&](const std::string& what) {
    findings->Add(Check::kShape, -1, -1, "route " + std::to_string(number) + " " + what);
  };
  if (route.ranks.size() != static_cast<size_t>(plan.stages)) {
    add("has " + std::to_string(route.ranks.size()) + " ranks, must have one for each of the " +
        std::to_string(plan.stages) + " stages");
  }
  for (size_t s = 0; s < route.ranks.size(); ++s) {
    if (route.ranks[s] >= 0 && route.ranks[s] < plan.ranks) continue;
    add("has stage " + std::to_string(s) + " on rank " + std::to_string(route.ranks[s]) +
        "; ranks are " + Range(plan.ranks));
  }
  if (route.microbatches.empty()) add("has no micro-batches; drop it");
  int last = -1;
  for (const int m : route.microbatches) {
    const auto add_one = [&](const std::string& what) {
      add("has micro-batch " + std::to_string(m) + what);
    };
    if (m < 0 || m >= plan.microbatches) {
      add_one("; micro-batches are " + Range(plan.microbatches));
      continue;
    }
    int& taken = (*route_of)[static_cast<size_t>(m)];
    if (taken >= 0) {
      add_one(", which route " + std::to_string(taken) +
              " has already; each belongs to exactly one route");
    } else if (m < last) {
      add_one(" after " + std::to_string(last) + "; they must ascend");
    }
    taken = static_cast<int>(number);
    last = std::max(last, m);
  }
}

void CheckRoutes(const Plan& plan, Findings* findings) {
  std::vector<int> route_of(static_cast<size_t>(plan.microbatches), -1);
  for (size_t r = 0; r < plan.routes.size(); ++r) CheckRoute(plan, r, &route_of, findings);
  for (size_t m = 0; m < route_of.size(); ++m) {
    if (route_of[m] >= 0) continue;
    findings->Add(Check::kShape, -1, -1,
                  "micro-batch " + std::to_string(m) + " is in no route; each belongs to one");
  }
}

/// A field that is there must be below its size, one that is not must be -1.
bool Fits(int value, bool there, int size) {
  return there ? static_cast<unsigned>(value) < static_cast<unsigned>(size) : value == -1;
}

class InstructionShape {
 public:
  InstructionShape(const Plan& plan, const Instruction& i) : plan_(plan), i_(i) {
    const Operands operands = OperandsOf(i.op);
    chunk_ = operands != Operands::kStage;
    pair_ = operands == Operands::kPair;
    message_ = operands == Operands::kMessage;
    layer_ = operands == Operands::kLayer;
    // If plans have no components, the level says so, not the layer.
    layers_ = plan.layers > 0 ? plan.layers : INT16_MAX;
    const bool known = i.stage >= 0 && i.stage < plan.stages;
    if (plan.layers > 0 && known) layers_ = plan.LayersOf(i.stage);
  }

  bool Right() const {
    return Fits(i_.stage, true, plan_.stages) && Fits(i_.microbatch, chunk_, plan_.microbatches) &&
           Fits(i_.back_stage, pair_, plan_.stages) &&
           Fits(i_.back_microbatch, pair_, plan_.microbatches) &&
           Fits(i_.peer, message_, plan_.ranks) && Fits(i_.layer, layer_, layers_) && KindRight() &&
           i_.slot >= -1 && i_.group >= -1 && i_.lane <= kLastLane && PartRight() &&
           i_.after_count <= kMaxAfter;
  }

  /// Whether the layer has such a component.
  bool KindRight() const {
    if (!layer_ || plan_.stage_layers.empty() || !Fits(i_.stage, true, plan_.stages)) return true;
    return !Fits(i_.layer, true, layers_) || HasPart(plan_.KindOf(i_.stage, i_.layer), i_.op);
  }

  bool PartRight() const {
    if (i_.op == Op::R) return i_.part <= RecomputePart::kAllButAttention && i_.layers >= 0;
    return i_.part == RecomputePart::kFull && i_.layers == 0;
  }

  void Explain(int rank, int index, Findings* findings) const {
    const auto demand = [&](const char* field, int value, bool there, int size) {
      if (Fits(value, there, size)) return;
      findings->Add(Check::kShape, rank, index,
                    std::string(Name(i_.op)) + ": " + field + " is " + std::to_string(value) +
                        ", must be " + (there ? Range(size) : "-1, the operation has none"));
    };
    demand("stage", i_.stage, true, plan_.stages);
    demand("microbatch", i_.microbatch, chunk_, plan_.microbatches);
    demand("back_stage", i_.back_stage, pair_, plan_.stages);
    demand("back_microbatch", i_.back_microbatch, pair_, plan_.microbatches);
    demand("peer", i_.peer, message_, plan_.ranks);
    demand("layer", i_.layer, layer_, layers_);
    if (!KindRight()) {
      findings->Add(
          Check::kShape, rank, index,
          ToString(i_) + ": layer " + std::to_string(i_.layer) + " of stage " +
              std::to_string(i_.stage) + " is " +
              (plan_.KindOf(i_.stage, i_.layer) == LayerKind::kDense ? "dense" : "plain") +
              ", which has no " + std::string(Name(i_.op)));
    }
    if (!PartRight()) {
      findings->Add(Check::kShape, rank, index,
                    std::string(Name(i_.op)) +
                        ": has an unknown part or number of layers, or one that only R has");
    }
    if (i_.slot < -1) demand("slot", i_.slot, true, INT32_MAX);
    if (i_.group < -1) demand("group", i_.group, true, INT32_MAX);
    if (i_.lane > kLastLane) {
      demand("lane", static_cast<int>(i_.lane), true, static_cast<int>(kLastLane) + 1);
    }
    if (i_.after_count > kMaxAfter) demand("after_count", i_.after_count, true, kMaxAfter + 1);
  }

 private:
  const Plan& plan_;
  const Instruction& i_;
  bool chunk_, pair_, message_, layer_;
  int layers_;
};

/// Whether the plan has components in place of chunks.
bool HasComponents(const Plan& plan) { return plan.level > Level::kComm && plan.layers > 0; }

bool BelongsIn(const Plan& plan, Op op) {
  switch (WorkOf(op)) {
    case Work::kCompute:
      return !HasComponents(plan);
    case Work::kComponent:
    case Work::kAllToAll:
      return HasComponents(plan);
    case Work::kOffload:
    case Work::kReload:
      return true;
    case Work::kSend:
    case Work::kRecv:
    case Work::kReduce:
    case Work::kStep:
      break;
  }
  return plan.level != Level::kCompute;
}

std::string WhyNot(const Plan& plan) {
  if (HasComponents(plan)) return ", where F B W BW FB R are components of layers; drop it";
  if (plan.level == Level::kCompute)
    return ", which has F B W BW FB R OFFLOAD RELOAD only; drop it";
  if (plan.level == Level::kComm) return ", which has no components of a stage; drop it";
  return " without layers, which has no components of a stage; drop it";
}

bool OnlyMoe(const Plan& plan) {
  for (const StageLayers& layers : plan.stage_layers) {
    for (const LayerKind kind : layers) {
      if (kind != LayerKind::kMoe) return false;
    }
  }
  return true;
}

/// Does what the plan claims of itself fit its level?
bool CheckHead(const Plan& plan, Findings* findings) {
  const std::string level = "level " + std::string(Name(plan.level));
  const auto add = [&](const std::string& what) { findings->Add(Check::kLevel, -1, -1, what); };
  bool right = false;
  if (plan.layers > 0 && plan.level <= Level::kComm) {
    add("layers is " + std::to_string(plan.layers) + ", but " + level +
        " has no components of layers; it must be 0");
  } else if (plan.level == Level::kBuffer && !OnlyMoe(plan)) {
    add("some layers are dense or plain, and " + level + " has values of MoE layers only");
  } else if (plan.layers == 0 && plan.level == Level::kComponent) {
    add("layers is 0, but " + level + " has the components of layers; it must be " + "1.." +
        std::to_string(kMaxLayers));
  } else if (plan.level == Level::kBuffer && plan.slots.size() != plan.programs.size()) {
    add("there are " + std::to_string(plan.slots.size()) + " lists of slots; at " + level +
        " each of the " + std::to_string(plan.ranks) + " ranks must have one");
  } else if (plan.level != Level::kBuffer && !plan.slots.empty()) {
    add("there are slots, which " + level + " does not have; drop them");
  } else if (plan.level > Level::kComm && !plan.marks.empty()) {
    add("there are marks, which " + level + " does not have; drop them");
  } else if (plan.level != Level::kComm && plan.semantics != Semantics::kRank) {
    add("semantics is " + std::string(Name(plan.semantics)) + "; only an imported plan of level " +
        "comm may need more than one queue a rank");
  } else {
    right = true;
  }
  return right;
}

void CheckKeys(const Plan& plan, int rank, int index, const Instruction& i, Findings* findings) {
  const auto key = [&](const char* name, const std::string& why) {
    findings->Add(Check::kLevel, rank, index,
                  ToString(i) + " has the key \"" + name + "\", " + why + "; drop it");
  };
  const std::string later = "which level " + std::string(Name(plan.level)) + " does not have";
  if (i.group >= 0 && plan.level == Level::kCompute) {
    key("group", later);
  } else if (i.group >= 0 && !IsMessage(i.op)) {
    key("group", "which only SEND and RECV have");
  }
  if (i.slot >= 0 && plan.level != Level::kBuffer) {
    key("slot", later);
  } else if (i.slot >= 0 && !IsMessage(i.op)) {
    key("slot", "which only SEND and RECV have");
  }
  if (plan.level > Level::kComm) return;
  if (i.lane != Lane::kNone) key("lane", later);
  if (i.after_count > 0) key("after", later);
}

void CheckMarkShapes(const Plan& plan, Findings* findings) {
  if (!plan.marks.empty() && plan.marks.size() != plan.programs.size()) {
    findings->Add(Check::kShape, -1, -1,
                  "there are " + std::to_string(plan.marks.size()) +
                      " lists of marks; where there are any each of the " +
                      std::to_string(plan.ranks) + " ranks must have one");
    return;
  }
  for (int r = 0; r < plan.ranks; ++r) {
    int32_t last = 0;
    for (const Mark& mark : MarksOf(plan, r)) {
      const bool known = static_cast<int>(mark.kind) < kMarkKinds;
      const bool idle = known && mark.kind == MarkKind::kIdle;
      const bool right = known && Fits(mark.stage, !idle, plan.stages) &&
                         Fits(mark.microbatch, IsWaitSend(mark.kind), plan.microbatches) &&
                         mark.count >= 1 && (idle || mark.count == 1) && mark.before >= last &&
                         static_cast<size_t>(mark.before) <= plan.program(r).size();
      if (!right) {
        findings->Add(Check::kShape, r, -1,
                      (known ? ToString(mark) : "a mark of no kind") +
                          ": out of range; stage and micro-batch must be the plan's, \"before\" "
                          "must ascend and be at most the length of the program");
      }
      last = std::max(last, mark.before);
    }
  }
}

}  // namespace

void CheckShape(const Plan& plan, Findings* findings) {
  if (!CheckSizes(plan, findings)) return;
  CheckRoutes(plan, findings);
  ForEachInstruction(plan, [&](int r, int32_t index, const Instruction& i) {
    if (static_cast<int>(i.op) >= kOpCount) {
      findings->Add(Check::kShape, r, index,
                    "operation " + std::to_string(static_cast<int>(i.op)) + " does not exist");
      return;
    }
    const InstructionShape shape(plan, i);
    if (!shape.Right()) shape.Explain(r, index, findings);
  });
  CheckMarkShapes(plan, findings);
}

bool CheckLevel(const Plan& plan, Findings* findings) {
  if (!CheckHead(plan, findings)) return false;
  ForEachInstruction(plan, [&](int r, int32_t index, const Instruction& i) {
    if (!BelongsIn(plan, i.op)) {
      findings->Add(Check::kLevel, r, index,
                    ToString(i) + " does not belong at level " + std::string(Name(plan.level)) +
                        WhyNot(plan));
    }
    if (i.group >= 0 || i.slot >= 0 || i.lane != Lane::kNone || i.after_count > 0) {
      CheckKeys(plan, r, index, i, findings);
    }
  });
  return true;
}

}  // namespace contraflow::check
