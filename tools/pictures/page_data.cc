// The page's knowledge of a plan, small enough that one of millions of instructions can be sent by
// mail.
//
// Instructions, their times, what they wait for and the memory they hold are lists of tuples of
// integers, mostly differences to what stands before, so that few different ones occur: those that
// occur again stand once in a dictionary, the most frequent first, and are named by their number
// there from 1 on; 0 is followed by a tuple of its own. Numbers are varints (7 bits a byte, lowest
// first; signed ones as 2 n or -2 n - 1), a tuple is its length and its numbers, all of it is
// base64.
//
//     instructions  op, stage, micro-batch, then layer | back stage, back micro-batch | peer
//                   (stages and micro-batches less those of the last such op of the rank; the peer
//                   less the rank)
//     after         how far before it each instruction stands that it waits for
//     times         start less when its lane or what it waits for was free, duration; () for a RECV
//                   at the time of its SEND; (0) where it never runs
//     memory        index less that of the change before, whether at its end, change in what is
//                   held
//     waited        of an instruction whose last wait is not the usual one (the one before it on
//                   its lane, of a SEND on the compute lane): usual ones before it, then nothing,
//                   or how far before it the wait is, or its rank less this one and its index less
//                   that of the last one there; () after each rank
//     idle          start less the end of the one before, length, cause; the instruction that it is
//                   about, if any: rank less this one, index less that of the last one there; ()
//                   after each rank

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "compiler/files/json.h"
#include "compiler/plan/error.h"
#include "compiler/plan/grid.h"
#include "compiler/simulate/idle.h"
#include "compiler/simulate/memory.h"
#include "compiler/simulate/waits.h"
#include "tools/pictures/page.h"

namespace contraflow {
namespace {

void AppendVarint(uint64_t value, std::string* out) {
  for (; value >= 0x80; value >>= 7) *out += static_cast<char>(value | 0x80);
  *out += static_cast<char>(value);
}

void AppendSigned(int64_t value, std::string* out) {
  const auto bits = static_cast<uint64_t>(value);
  AppendVarint(value < 0 ? ~(bits << 1) : bits << 1, out);
}

std::string Base64(std::string_view bytes) {
  constexpr const char* kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  const auto byte = [&](size_t at) -> uint32_t {
    return at < bytes.size() ? static_cast<unsigned char>(bytes[at]) : 0;
  };
  for (size_t at = 0; at < bytes.size(); at += 3) {
    const uint32_t word = byte(at) << 16 | byte(at + 1) << 8 | byte(at + 2);
    for (const uint32_t digit : {0U, 1U, 2U, 3U}) {
      out += at + digit <= bytes.size() ? kDigits[word >> (18 - 6 * digit) & 63] : '=';
    }
  }
  return out;
}

/// A list of tuples, packed as said above.
class Tuples {
 public:
  void Put(std::initializer_list<int64_t> tuple) { Put(std::span(tuple.begin(), tuple.end())); }
  void Put(std::span<const int64_t> tuple) {
    key_.clear();
    AppendVarint(tuple.size(), &key_);
    for (const int64_t value : tuple) AppendSigned(value, &key_);
    const auto [entry, added] = numbers_.try_emplace(key_, static_cast<uint32_t>(numbers_.size()));
    if (added) counts_.push_back(0);
    ++counts_[entry->second];
    list_.push_back(entry->second);
  }

  std::string Packed() const {
    std::vector<const std::string*> texts(numbers_.size());
    for (const auto& [text, number] : numbers_) texts[number] = &text;
    std::vector<uint32_t> frequent;
    for (uint32_t number = 0; number < texts.size(); ++number) {
      if (counts_[number] > 1) frequent.push_back(number);
    }
    std::stable_sort(frequent.begin(), frequent.end(),
                     [&](uint32_t a, uint32_t b) { return counts_[a] > counts_[b]; });
    std::vector<uint32_t> codes(texts.size(), 0);  // 0: stands once
    std::string out;
    AppendVarint(frequent.size(), &out);
    for (size_t k = 0; k < frequent.size(); ++k) {
      codes[frequent[k]] = static_cast<uint32_t>(k + 1);
      out += *texts[frequent[k]];
    }
    AppendVarint(list_.size(), &out);
    for (const uint32_t number : list_) {
      AppendVarint(codes[number], &out);
      if (codes[number] == 0) out += *texts[number];
    }
    return Base64(out);
  }

 private:
  std::unordered_map<std::string, uint32_t> numbers_;
  std::vector<uint32_t> counts_, list_;
  std::string key_;
};

std::string PackInstructions(const Plan& plan) {
  struct Last {
    int stage = 0, microbatch = 0, back_stage = 0, back_microbatch = 0;
  };
  Tuples tuples;
  std::vector<int64_t> tuple;
  for (int r = 0; r < plan.ranks; ++r) {
    std::array<Last, kOpCount> last{};
    for (const Instruction& i : plan.program(r)) {
      Last& before = last[static_cast<size_t>(i.op)];
      const Operands operands = OperandsOf(i.op);
      tuple = {static_cast<int64_t>(i.op), i.stage - before.stage};
      if (operands != Operands::kStage) tuple.push_back(i.microbatch - before.microbatch);
      if (operands == Operands::kLayer) tuple.push_back(i.layer);
      if (operands == Operands::kMessage) tuple.push_back(i.peer - r);
      if (operands == Operands::kPair) {
        tuple.push_back(i.back_stage - before.back_stage);
        tuple.push_back(i.back_microbatch - before.back_microbatch);
      }
      before = {i.stage, i.microbatch, i.back_stage, i.back_microbatch};
      tuples.Put(tuple);
    }
  }
  return tuples.Packed();
}

std::string PackAfter(const Plan& plan) {
  Tuples tuples;
  std::vector<int64_t> tuple;
  for (const Program& program : plan.programs) {
    for (size_t at = 0; at < program.size(); ++at) {
      tuple.clear();
      for (size_t k = 0; k < program[at].after_count; ++k) {
        tuple.push_back(static_cast<int64_t>(at) - program[at].after[k]);
      }
      tuples.Put(tuple);
    }
  }
  return tuples.Packed();
}

/// When the message that each RECV takes is under way, by the stage that takes it.
class Flights {
 public:
  Flights(const Plan& plan, const Timeline& timeline)
      : forward_(plan.stages, plan.microbatches, kNever),
        backward_(plan.stages, plan.microbatches, kNever) {
    for (size_t r = 0; r < plan.programs.size(); ++r) {
      for (size_t i = 0; i < plan.programs[r].size(); ++i) {
        const Instruction& send = plan.programs[r][i];
        const int stage = send.stage + (send.op == Op::SEND_F ? 1 : -1);
        if (!IsSend(send.op) || stage < 0 || stage >= plan.stages) continue;
        (send.op == Op::SEND_F ? forward_ : backward_)(stage, send.microbatch) =
            timeline.ranks[r][i];
      }
    }
  }

  const Span& Of(const Instruction& recv) const {
    return (recv.op == Op::RECV_F ? forward_ : backward_)(recv.stage, recv.microbatch);
  }

 private:
  static constexpr Span kNever = {-1, -1};

  Grid<Span> forward_, backward_;
};

std::string PackTimes(const Plan& plan, const Timeline& timeline) {
  const Flights flights(plan, timeline);
  Tuples tuples;
  for (size_t r = 0; r < plan.programs.size(); ++r) {
    const Program& program = plan.programs[r];
    const std::vector<Span>& spans = timeline.ranks[r];
    std::array<Time, static_cast<size_t>(kLastLane) + 1> free{};
    for (size_t at = 0; at < program.size(); ++at) {
      const Instruction& i = program[at];
      const Span& span = spans[at];
      if (span.start < 0) {
        tuples.Put({0});
        continue;
      }
      if (IsRecv(i.op) && flights.Of(i) == span) {
        tuples.Put({});
        continue;
      }
      // Messages have no lane of their own here: most leave when the compute lane is free.
      const Lane lane = IsMessage(i.op) ? Lane::kCompute : LaneOf(i.op);
      Time& lane_free = free[static_cast<size_t>(lane)];
      Time ready = i.after_count > 0 && IsMessage(i.op) ? 0 : lane_free;
      for (size_t k = 0; k < i.after_count; ++k) {
        // The page reads the time of a RECV last, from its SEND.
        const auto after = static_cast<size_t>(i.after[k]);
        if (!IsMessage(program[after].op)) ready = std::max(ready, spans[after].end);
      }
      tuples.Put({span.start - ready, span.end - span.start});
      if (!IsMessage(i.op)) lane_free = span.end;
    }
  }
  return tuples.Packed();
}

std::string PackMemory(const PagePlan& page, bool bytes) {
  Tuples tuples;
  // The memory of a plan that is not sound is not known.
  for (int r = 0; r < page.plan->ranks && page.broken != nullptr; ++r) tuples.Put({});
  if (page.broken != nullptr) return tuples.Packed();
  for (const auto& changes : MemoryChanges(*page.plan, *page.costs, page.run->timeline)) {
    int before = 0;
    for (const MemoryChange& change : changes) {
      const int64_t by = bytes ? change.bytes : change.activations;
      tuples.Put({change.index - before, change.end ? 1 : 0, by});
      before = change.index;
    }
    tuples.Put({});
  }
  return tuples.Packed();
}

std::string PackIdle(const PagePlan& page) {
  Tuples tuples;
  std::vector<int64_t> tuple;
  const auto idle = AttributeIdle(*page.plan, *page.costs, *page.run);
  for (size_t r = 0; r < idle.size(); ++r) {
    std::vector<int> last(idle.size(), 0);
    Time end = 0;
    for (const Idle& gap : idle[r]) {
      tuple = {gap.when.start - end, gap.when.end - gap.when.start,
               static_cast<int64_t>(gap.cause)};
      end = gap.when.end;
      if (gap.because.rank >= 0) {
        int& before = last[static_cast<size_t>(gap.because.rank)];
        tuple.push_back(gap.because.rank - static_cast<int64_t>(r));
        tuple.push_back(gap.because.index - before);
        before = gap.because.index;
      }
      tuples.Put(tuple);
    }
    tuples.Put({});
  }
  return tuples.Packed();
}

std::string PackWaits(const PagePlan& page) {
  const Plan& plan = *page.plan;
  const Waits waits(plan, *page.costs, page.run->timeline);
  Tuples tuples;
  for (int r = 0; r < plan.ranks; ++r) {
    std::vector<int> last(static_cast<size_t>(plan.ranks), 0);
    std::array<int, static_cast<size_t>(kLastLane) + 1> lanes{};
    lanes.fill(-1);
    int usual = 0;
    for (int at = 0; at < static_cast<int>(plan.program(r).size()); ++at, ++usual) {
      const Op op = waits.At({r, at}).op;
      const int before = lanes[static_cast<size_t>(IsMessage(op) ? Lane::kCompute : LaneOf(op))];
      if (!IsMessage(op)) lanes[static_cast<size_t>(LaneOf(op))] = at;
      // A RECV waits for its SEND.
      if (IsRecv(op) || waits.SpanOf({r, at}).start < 0) continue;
      const std::optional<Wait> wait = waits.Last({r, at});
      if (wait ? wait->on == InstructionRef{r, before} : before < 0) continue;
      if (!wait) {
        tuples.Put({usual});
      } else if (wait->on.rank == r) {
        tuples.Put({usual, at - wait->on.index});
      } else {
        int& there = last[static_cast<size_t>(wait->on.rank)];
        tuples.Put({usual, wait->on.rank - r, wait->on.index - there});
        there = wait->on.index;
      }
      usual = -1;
    }
    tuples.Put({});
  }
  return tuples.Packed();
}

Json RoutesOf(const Plan& plan) {
  Json routes = Json::array();
  for (const Route& route : plan.routes) {
    // Micro-batches are mostly ranges: first and last of each.
    Json ranges = Json::array();
    for (size_t k = 0; k < route.microbatches.size(); ++k) {
      const int m = route.microbatches[k];
      if (k > 0 && m == route.microbatches[k - 1] + 1) {
        ranges.back()[1] = m;
      } else {
        ranges.push_back({m, m});
      }
    }
    routes.push_back({{"ranks", route.ranks}, {"microbatches", std::move(ranges)}});
  }
  return routes;
}

/// Amount that each rank holds before the first activation, and how much more it may; null: not
/// known.
void AddMemory(const PagePlan& page, bool bytes, Json* out) {
  const Plan& plan = *page.plan;
  Json fixed = Json::array(), limits = Json::array();
  std::vector<MemoryFigures> memory;
  if (bytes && page.broken == nullptr) memory = MemoryOf(plan, *page.costs);
  for (size_t r = 0; r < plan.programs.size(); ++r) {
    const int64_t held = memory.empty() ? 0 : memory[r].fixed();
    fixed.push_back(held);
    Json limit = nullptr;
    const auto& ranks = page.costs->ranks;
    if (bytes && !ranks.empty() && ranks[r].memory_bytes) {
      limit = *ranks[r].memory_bytes;
    } else if (plan.provenance && plan.provenance->memory_limit) {
      limit = held + *plan.provenance->memory_limit;
    }
    limits.push_back(std::move(limit));
  }
  (*out)["memory_unit"] = bytes ? "bytes" : "activations";
  // Amount that 1F1B holds, in activations of this plan's stages.
  (*out)["memory_1x"] =
      plan.stages * std::min(1.0, static_cast<double>(plan.microbatches) / plan.ranks);
  (*out)["fixed"] = std::move(fixed);
  (*out)["limits"] = std::move(limits);
}

void AddFindings(const PagePlan& page, Json* out) {
  Json findings = Json::array(), waits = Json::array();
  const BrokenRun sound{};
  const BrokenRun& broken = page.broken == nullptr ? sound : *page.broken;
  constexpr size_t kMostListed = 200;
  for (size_t k = 0; k < std::min(broken.findings.size(), kMostListed); ++k) {
    const Finding& finding = broken.findings[k];
    findings.push_back({{"check", finding.check},
                        {"rank", finding.rank},
                        {"index", finding.index},
                        {"message", ToString(finding, *page.plan)}});
  }
  for (const BlockedAt& at : broken.cycle) waits.push_back({at.rank, at.index, at.on_rank});
  (*out)["findings"] = std::move(findings);
  (*out)["finding_count"] = broken.findings.size();
  (*out)["waits"] = std::move(waits);
}

Json HeadOf(const PagePlan& page, bool bytes) {
  const Plan& plan = *page.plan;
  Json out = {{"name", page.name},
              {"title", DescribePlan(plan)},
              {"costs", DescribeCosts(*page.costs)},
              {"ranks", plan.ranks},
              {"stages", plan.stages},
              {"microbatches", plan.microbatches},
              {"layers", plan.layers},
              {"unit", Name(page.costs->unit)},
              {"ticks", TicksPerUnit(page.costs->unit)},
              {"measured", page.run->timeline.measured},
              {"routes", RoutesOf(plan)}};
  const Sides sides(plan);
  out["sides"] = sides.count();
  out["sides_text"] = sides.text();
  Json lengths = Json::array();
  for (const Program& program : plan.programs) lengths.push_back(program.size());
  out["lengths"] = std::move(lengths);
  AddMemory(page, bytes, &out);
  if (page.report != nullptr) {
    out["memory_of_1f1b"] =
        page.memory > 0 ? page.memory : MemoryOf1F1B(plan, *page.costs, page.report->simulation);
    out["summary"] = SummaryTable(plan, *page.report);
    if (page.report->formula) out["formula_legend"] = kFormulaLegend;
  }
  AddFindings(page, &out);
  return out;
}

}  // namespace

void WritePagePlan(const PagePlan& page, std::string* out) {
  const Plan& plan = *page.plan;
  const bool bytes =
      !plan.slots.empty() || (page.costs->memory && page.costs->memory->activation_bytes > 0);
  CF_ASSERT(page.run->timeline.ranks.size() == plan.programs.size());
  // A name of a file may be any bytes.
  std::string text = HeadOf(page, bytes).dump(-1, ' ', false, Json::error_handler_t::replace);
  text.pop_back();  // the brace that closes it
  // A name of a plan or a source of costs could end the script.
  for (const char c : text) *out += c == '<' ? std::string("\\u003c") : std::string(1, c);
  const bool lanes = plan.level >= Level::kComponent;
  *out += ",\n\"instructions\":\"" + PackInstructions(plan);
  if (lanes) *out += "\",\n\"after\":\"" + PackAfter(plan);
  *out += "\",\n\"times\":\"" + PackTimes(plan, page.run->timeline);
  *out += "\",\n\"memory\":\"" + PackMemory(page, bytes);
  *out += "\",\n\"waited\":\"" + PackWaits(page);
  *out += "\",\n\"idle\":\"" + PackIdle(page) + "\"}";
}

}  // namespace contraflow
