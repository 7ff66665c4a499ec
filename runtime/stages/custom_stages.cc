#include "runtime/stages/custom_stages.h"

#include <dlfcn.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "compiler/plan/error.h"
#include "compiler/plan/text.h"
#include "runtime/core/walk.h"

namespace contraflow {
namespace {

/// The table, if all can be called that must be there.
const contraflow_stage_api& Checked(const contraflow_stage_api& api) {
  if (api.version != CONTRAFLOW_STAGE_VERSION) {
    throw Error("the stages are of version " + std::to_string(api.version) +
                " of the stage interface, this is version " +
                std::to_string(CONTRAFLOW_STAGE_VERSION) +
                "; compile them with this version's stage_api.h");
  }
  if (api.size < sizeof(contraflow_stage_api)) {
    throw Error("the table of the stages has " + std::to_string(api.size) + " bytes, version " +
                std::to_string(api.version) + " has " +
                std::to_string(sizeof(contraflow_stage_api)) +
                "; set its `size` to sizeof(contraflow_stage_api)");
  }
  const auto require = [](bool there, const char* name) {
    if (!there) throw Error("the table of the stages has no function `" + std::string(name) + "`");
  };
  require(api.sizes != nullptr, "sizes");
  require(api.create != nullptr, "create");
  require(api.destroy != nullptr, "destroy");
  require(api.begin_step != nullptr, "begin_step");
  require(api.forward != nullptr, "forward");
  require(api.backward_input != nullptr, "backward_input");
  require(api.backward_weight != nullptr, "backward_weight");
  require(api.gradients != nullptr, "gradients");
  require(api.optimizer_step != nullptr, "optimizer_step");
  return api;
}

}  // namespace

const Plan& CheckCustom(const Plan& plan) {
  const RecomputedCells recomputed(plan);
  for (const RecomputeExtent& extent : recomputed.extents()) {
    if (extent.whole()) continue;
    throw Error("the plan recomputes " + ToString(extent) +
                " alone, and custom stages run their whole forward again; compile it with "
                "`recompute` full or stages");
  }
  if (plan.level == Level::kComm || (plan.level == Level::kBuffer && plan.layers == 0)) return plan;
  throw Error("custom stages have whole chunks and messages, this plan is of level " +
              std::string(Name(plan.level)) +
              (plan.layers > 0 ? " and has the components of MoE layers" : "") +
              "; compile it with `level` comm");
}

const contraflow_stage_api& LoadStages(const std::string& path) {
  // A name without a folder would be looked for among the libraries of the system.
  const std::string file = std::filesystem::absolute(path);
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw Error(path + ": cannot be loaded: " + dlerror());
  void* const symbol = dlsym(library, "contraflow_stages");
  if (symbol == nullptr) {
    throw Error(path +
                ": exports no function contraflow_stages; declare it extern \"C\", as in "
                "runtime/stages/stage_api.h");
  }
  const contraflow_stage_api* const api = reinterpret_cast<decltype(&contraflow_stages)>(symbol)();
  if (api == nullptr) throw Error(path + ": contraflow_stages gives no table");
  return *api;
}

contraflow_cell WeightCell(const contraflow_cell& backward) {
  contraflow_cell cell = {};
  cell.microbatch = backward.microbatch;
  cell.stash = backward.stash;
  return cell;
}

namespace {

/// Most bytes that a stage can ask for.
constexpr size_t kMostBytes = size_t{1} << 40;
constexpr int kMostBlocks = 1 << 20;

/// Calls a function of a table, `name` of `who`. Throws Error with what it says is wrong.
template <typename Call>
void Try(const std::string& who, const char* name, Call call) {
  std::string text;
  try {
    const char* const wrong = call();
    if (wrong == nullptr) return;
    text = *wrong != '\0' ? PlainText(wrong) : "failed, and does not say why";
  } catch (const std::exception& error) {
    text = "let an exception out: " + PlainText(error.what());
  } catch (...) {
    text = "let an exception out";
  }
  throw Error(who + ", " + name + ": " + text);
}

bool IsName(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-';
  });
}

}  // namespace

CustomStage::CustomStage(const CustomStages& stages, int stage, Device device, void* stream,
                         int sms)
    : api_(stages.api()), name_("stage " + std::to_string(stage)) {
  const int replica = device.replica * stages.plan().expert_parallel + device.member;
  const contraflow_copy copy = {stage, replica, device.rank, sms, stream};
  Try(name_, "create", [&] { return api_.create(&stages.job(), &copy, &self_); });
  if (self_ == nullptr) throw Error(name_ + ", create: gave no stage; set *stage");
  try {
    float* values = nullptr;
    size_t count = 0;
    Try(name_, "gradients", [&] { return api_.gradients(self_, &values, &count); });
    if (values == nullptr && count > 0) throw Error(name_ + ", gradients: are nowhere");
    if (count > kMostBytes / sizeof(float)) {
      throw Error(name_ + ", gradients: says that there are " + std::to_string(count));
    }
    gradients_ = {values, count};
    Blocks();
  } catch (...) {
    api_.destroy(self_);
    throw;
  }
}

CustomStage::~CustomStage() { api_.destroy(self_); }

void CustomStage::BeginStep(int step, void* stream) {
  Try(name_, "begin_step", [&] { return api_.begin_step(self_, step, stream); });
}

void CustomStage::Forward(const contraflow_cell& cell, void* stream) {
  Try(name_, "forward", [&] { return api_.forward(self_, &cell, stream); });
}

void CustomStage::BackwardInput(const contraflow_cell& cell, void* stream) {
  Try(name_, "backward_input", [&] { return api_.backward_input(self_, &cell, stream); });
}

void CustomStage::BackwardWeight(const contraflow_cell& cell, void* stream) {
  Try(name_, "backward_weight", [&] { return api_.backward_weight(self_, &cell, stream); });
}

void CustomStage::Backward(const contraflow_cell& cell, void* stream) {
  if (api_.backward != nullptr) {
    return Try(name_, "backward", [&] { return api_.backward(self_, &cell, stream); });
  }
  BackwardInput(cell, stream);
  BackwardWeight(WeightCell(cell), stream);
}

void CustomStage::ForwardBackward(const contraflow_cell& forward, CustomStage* other,
                                  const contraflow_cell& backward, void* stream) {
  if (api_.forward_backward != nullptr) {
    return Try(name_ + " and " + other->name_, "forward_backward", [&] {
      return api_.forward_backward(self_, &forward, other->self_, &backward, stream);
    });
  }
  Forward(forward, stream);
  other->Backward(backward, stream);
}

void CustomStage::OptimizerStep(void* stream) {
  Try(name_, "optimizer_step", [&] { return api_.optimizer_step(self_, stream); });
}

std::vector<contraflow_block> CustomStage::Blocks() const {
  std::vector<contraflow_block> blocks;
  std::set<std::string_view> names;
  for (int32_t index = 0; api_.block != nullptr; ++index) {
    contraflow_block block = {};
    Try(name_, "block", [&] { return api_.block(self_, index, &block); });
    if (block.data == nullptr) break;
    const std::string which = name_ + ", block: number " + std::to_string(index);
    if (index == kMostBlocks) throw Error(which + ", and no end; data must become NULL");
    if (block.name == nullptr || !IsName(block.name) || !names.insert(block.name).second) {
      throw Error(which + " needs a name of its own, of letters, digits, '.', '_' and '-'");
    }
    if (block.bytes > kMostBytes) {
      throw Error(which + " says that it has " + std::to_string(block.bytes) + " bytes");
    }
    blocks.push_back(block);
  }
  return blocks;
}

CustomStages::CustomStages(const contraflow_stage_api& api, const Plan& plan, bool on_gpu,
                           uint64_t seed, std::string options)
    : api_(Checked(api)),
      plan_(CheckCustom(plan)),
      options_(std::move(options)),
      job_{
          plan.stages, plan.microbatches, plan.data_parallel * plan.expert_parallel, on_gpu ? 1 : 0,
          seed,        options_.c_str()} {
  contraflow_sizes sizes = {};
  Try("the stages", "sizes", [&] { return api_.sizes(&job_, &sizes); });
  const auto put = [&](size_t bytes, std::initializer_list<Value> values) {
    if (bytes > kMostBytes) {
      throw Error("the stages want " + std::to_string(bytes) +
                  " bytes for one value of a micro-batch; at most " + std::to_string(kMostBytes) +
                  " are possible");
    }
    for (const Value value : values) {
      bytes_[static_cast<size_t>(value)] = static_cast<int64_t>(bytes);
    }
  };
  put(sizes.message, {Value::input, Value::output, Value::doutput, Value::dinput});
  put(sizes.activation, {Value::activation});
  put(sizes.stash, {Value::stash});
  if (plan.stages > 1 && sizes.message == 0) {
    throw Error("the stages: messages of no bytes; `sizes` must say what stages hand on");
  }
}

CustomStages::CustomStages(const CustomStages& same, const Plan& plan)
    : CustomStages(same.api_, plan, same.job_.on_gpu != 0, same.job_.seed, same.options_) {}

CustomDevice::CustomDevice(const CustomStages& stages, Device device, bool lanes, void* stream,
                           int sms)
    : stages_(stages),
      places_(stages.plan(), device.rank, ComponentWalk(stages.plan()), stages.bytes(), lanes) {
  const Plan& plan = stages.plan();
  for (const int s : StagesOf(plan, device.rank)) {
    copies_[s] = std::make_unique<CustomStage>(stages, s, device, stream, sms);
  }
  for (const Route& route : plan.routes) {
    if (route.ranks.back() != device.rank) continue;
    losses_here_.insert(losses_here_.end(), route.microbatches.begin(), route.microbatches.end());
  }
  std::ranges::sort(losses_here_);
}

void CustomDevice::PutValues(const std::array<std::byte*, kArenaCount>& arenas, float* losses) {
  arenas_ = arenas;
  losses_ = losses;
}

void CustomDevice::BeginStep(int step, void* stream) {
  for (const auto& [s, stage] : copies_) stage->BeginStep(step, stream);
}

void CustomDevice::Compute(const Instruction& i, void* stream) {
  contraflow_cell forward = {}, backward = {};
  forward.microbatch = i.microbatch;
  forward.again = IsRecompute(i.op) ? 1 : 0;
  backward.microbatch = BackMicrobatch(i);
  const bool runs = HasForward(i.op) || IsRecompute(i.op);
  for (const ValuePlaces::Use& use : places_.Of(i)) {
    if (stages_.bytes()[static_cast<size_t>(use.value)] == 0) continue;
    // An FB touches these of both cells: the forward makes its own.
    contraflow_cell& cell = runs && use.begins() ? forward : backward;
    std::byte* const at = At(use);
    if (use.value == Value::input) forward.input = at;
    if (use.value == Value::output) forward.output = at;
    if (use.value == Value::activation) cell.activation = at;
    if (use.value == Value::stash) cell.stash = at;
    if (use.value == Value::doutput) backward.doutput = at;
    if (use.value == Value::dinput) backward.dinput = at;
  }
  if (runs && i.stage + 1 == stages_.plan().stages && forward.again == 0) {
    forward.loss = losses_ + i.microbatch;
  }
  if (i.op == Op::FB) {
    return At(i.stage).ForwardBackward(forward, &At(i.back_stage), backward, stream);
  }
  CustomStage& stage = At(i.stage);
  if (runs) return stage.Forward(forward, stream);
  if (i.op == Op::BW) return stage.Backward(backward, stream);
  i.op == Op::B ? stage.BackwardInput(backward, stream) : stage.BackwardWeight(backward, stream);
}

std::span<std::byte> CustomDevice::Message(const Instruction& message) const {
  const std::vector<ValuePlaces::Use>& uses = places_.Of(message);
  CF_ASSERT(uses.size() == 1);
  return {At(uses[0]), static_cast<size_t>(stages_.bytes()[static_cast<size_t>(Value::input)])};
}

CustomStage& CustomDevice::At(int stage) {
  const auto copy = copies_.find(stage);
  if (copy == copies_.end()) {
    throw Error("this rank holds no copy of stage " + std::to_string(stage) + "; verify the plan");
  }
  return *copy->second;
}

std::vector<int> CustomDevice::Held() const {
  std::vector<int> held;
  for (const auto& [s, stage] : copies_) held.push_back(s);
  return held;
}

}  // namespace contraflow
