#include <algorithm>

#include "tools/pictures/picture.h"
#include "tools/report/report.h"
#include "tools/report/text.h"

namespace contraflow {
namespace {

/// "0..9" for 0 to 9, "0 2 4" for others.
std::string FormatList(const std::vector<int>& list) {
  const bool run =
      list.size() > 3 && list.back() - list.front() + 1 == static_cast<int>(list.size());
  if (run && std::is_sorted(list.begin(), list.end())) {
    return std::to_string(list.front()) + ".." + std::to_string(list.back());
  }
  const bool down =
      list.size() > 3 && list.front() - list.back() + 1 == static_cast<int>(list.size());
  if (down && std::is_sorted(list.rbegin(), list.rend())) {
    return std::to_string(list.front()) + ".." + std::to_string(list.back());
  }
  std::string text;
  for (const int item : list) text += (text.empty() ? "" : " ") + std::to_string(item);
  return text;
}

std::string Head(const Plan& plan, const CostModel& costs) {
  std::string text = DescribePlan(plan) + "\n";
  for (size_t route = 0; route < plan.routes.size(); ++route) {
    text += "route " + std::to_string(route) + ": stages 0.." + std::to_string(plan.stages - 1) +
            " on ranks " + FormatList(plan.routes[route].ranks) + ", micro-batches " +
            FormatList(plan.routes[route].microbatches) + "\n";
  }
  return text + DescribeCostsUsed(costs, plan.costs.has_value()) + "\n";
}

/// A listing may be a file: its lines are as long as they are.
std::string Lines(const Table& table) { return FormatTable(table, std::nullopt); }

class Listing {
 public:
  Listing(const Plan& plan, const CostModel& costs, const Simulation* simulation, const View& view)
      : plan_(plan),
        costs_(costs),
        simulation_(simulation),
        view_(simulation == nullptr ? view : Within(view, simulation->makespan, costs.unit)) {}

  std::string Write() const {
    std::string text = Head(plan_, costs_);
    if (simulation_ != nullptr) {
      text += "makespan " + FormatWithUnit(simulation_->makespan, costs_.unit) +
              (LeavesOutUpdates(plan_, costs_) ? kWithoutUpdates : "") +
              "; times are start and end" +
              (costs_.unit == Unit::kUnit ? "" : ", in " + std::string(Name(costs_.unit))) + "\n";
    }
    for (int rank = 0; rank < plan_.ranks; ++rank) {
      if (view_.rank < 0 || rank == view_.rank) text += Rank(static_cast<size_t>(rank));
    }
    return text + Legend();
  }

 private:
  /// True if something that lasts from instruction `first` to `last` is in view.
  bool Shown(size_t rank, int first, int last) const {
    if (simulation_ == nullptr || (view_.from == 0 && !view_.to)) return true;
    const auto& spans = simulation_->timeline.ranks[rank];
    return spans[static_cast<size_t>(last)].end >= view_.from &&
           spans[static_cast<size_t>(first)].start <= view_.to.value_or(simulation_->makespan);
  }

  std::string Rank(size_t r) const {
    Table table;
    table.columns = {">", "", ">", ">"};
    for (size_t i = 0; i < plan_.programs[r].size(); ++i) {
      if (!Shown(r, static_cast<int>(i), static_cast<int>(i))) continue;
      table.rows.push_back({"  " + std::to_string(i), ToString(plan_.programs[r][i])});
      if (simulation_ == nullptr) continue;
      const Span& span = simulation_->timeline.ranks[r][i];
      table.rows.back().push_back(FormatTime(span.start, costs_.unit));
      table.rows.back().push_back(FormatTime(span.end, costs_.unit));
    }
    return "\nrank " + std::to_string(r) + Figures(r) + "\n" + Lines(table) + Slots(r);
  }

  std::string Figures(size_t r) const {
    if (simulation_ == nullptr) return "";
    const RankFigures& figures = simulation_->ranks[r];
    const auto time = [&](Time ticks) { return FormatFigure(ticks, costs_.unit); };
    std::string text = ": busy " + time(figures.busy) + ", bubble " + time(figures.bubble);
    if (plan_.layers > 0) {
      text +=
          ", all-to-all " + time(figures.all_to_all) + " (" + time(figures.exposed) + " exposed)";
    }
    return text + ", at most " + Counted(figures.peak_activations, "activation");
  }

  std::string Slots(size_t r) const {
    if (r >= plan_.slots.size()) return "";
    std::string arenas;
    const auto bytes = ArenaBytes(plan_.slots[r]);
    for (size_t a = 0; a < kArenaCount; ++a) {
      arenas += (arenas.empty() ? "" : ", ") + std::string(Name(static_cast<Arena>(a))) + " " +
                FormatCount(bytes[a]);
    }
    Table table;
    table.columns = {">", "", "", ">", ">", "", ""};
    for (size_t k = 0; k < plan_.slots[r].size(); ++k) {
      const Slot& slot = plan_.slots[r][k];
      if (!Shown(r, slot.first, slot.last)) continue;
      const std::string layer = slot.layer < 0 ? "" : " l" + std::to_string(slot.layer);
      table.rows.push_back(
          {"  " + std::to_string(k),
           std::string(Name(slot.value)) + " s" + std::to_string(slot.stage) + layer + " m" +
               std::to_string(slot.microbatch),
           std::string(Name(slot.arena)), FormatCount(slot.offset), FormatCount(slot.bytes),
           "from " + std::to_string(slot.first) + " to " + std::to_string(slot.last)});
    }
    return "  slots: arena, offset, bytes, first and last instruction (bytes of each arena: " +
           arenas + ")\n" + Lines(table);
  }

  std::string Legend() const {
    if (plan_.layers > 0) {
      return "\n_F forward, _B backward for the input gradient only, _W for the weight gradient\n"
             "only; DISPATCH and COMBINE are all-to-alls; after: what it waits for; s stage,\n"
             "l layer, m micro-batch.\n";
    }
    return "\nF forward, B backward for the input gradient only, W for the weight gradient\n"
           "only, BW both in one go, FB a forward overlapped with a full backward; s stage,\n"
           "m micro-batch.\n";
  }

  const Plan& plan_;
  const CostModel& costs_;
  const Simulation* const simulation_;
  const View view_;
};

}  // namespace

std::string WriteListing(const Plan& plan, const CostModel& costs, const Simulation* simulation,
                         const View& view) {
  return Listing(plan, costs, simulation, view).Write();
}

}  // namespace contraflow
