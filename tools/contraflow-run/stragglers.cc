#include "tools/contraflow-run/stragglers.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

namespace contraflow {

Stragglers::Kind Stragglers::KindOf(const Instruction& i) const {
  const int last = plan_.stages - 1;
  const bool chunk = OperandsOf(i.op) != Operands::kLayer;
  const bool embeds =
      chunk ? HasForward(Repeated(i.op)) : Repeated(i.op) == Op::ATTN_F && i.layer == 0;
  // The head is in this one of the components that compute it; the loss is after an exchange.
  const bool head = chunk || (i.op == Op::MLP_W && i.layer == plan_.LayersOf(i.stage) - 1);
  return {i.op,
          embeds && i.stage == 0,
          head && i.stage == last,
          i.back_stage == last,
          chunk ? LayersOf(i.stage) : 1,
          i.op == Op::FB ? LayersOf(i.back_stage) : 0};
}

int Stragglers::LayersOf(int stage) const {
  return layers_.empty() ? 1 : layers_[static_cast<size_t>(stage)];
}

void Stragglers::Add(const Timeline& timeline) {
  const size_t ranks = plan_.programs.size();
  for (size_t r = 0; r < ranks; ++r) {
    for (size_t i = 0; i < plan_.programs[r].size(); ++i) {
      const Instruction& instruction = plan_.programs[r][i];
      const Work work = WorkOf(instruction.op);
      // Exchanges and sums wait for others; the time of STEP depends on the stage.
      if (work != Work::kCompute && work != Work::kComponent) continue;
      std::vector<Shortest>& of_kind = window_[KindOf(instruction)];
      of_kind.resize(ranks);
      Shortest& shortest = of_kind[r];
      const Span& span = timeline.ranks[r][i];
      const auto time = static_cast<double>(span.end - span.start);
      shortest.time = shortest.count == 0 ? time : std::min(shortest.time, time);
      ++shortest.count;
    }
  }
  if (++steps_ < kWindow) return;
  const std::vector<double> slower = SlowerInWindow();
  for (size_t r = 0; r < ranks; ++r) {
    slower_[r].push_back(slower[r]);
    if (slower_[r].size() > kMostWindows) slower_[r].pop_front();
  }
  window_.clear();
  steps_ = 0;
}

void Stragglers::Clear() {
  window_.clear();
  steps_ = 0;
  for (std::deque<double>& windows : slower_) windows.clear();
}

std::vector<double> Stragglers::SlowerInWindow() const {
  const size_t ranks = plan_.programs.size();
  std::vector<double> measured(ranks), expected(ranks), slower(ranks);
  for (const auto& [kind, of_kind] : window_) {
    double sum = 0;
    int having = 0;
    for (const Shortest& of_rank : of_kind) {
      sum += of_rank.time;
      having += of_rank.count > 0 ? 1 : 0;
    }
    if (having < 2) continue;
    for (size_t r = 0; r < ranks; ++r) {
      measured[r] += of_kind[r].count * of_kind[r].time;
      expected[r] += of_kind[r].count * (sum - of_kind[r].time) / (having - 1);
    }
  }
  for (size_t r = 0; r < ranks; ++r) {
    if (expected[r] > 0) slower[r] = measured[r] / expected[r] - 1;
  }
  return slower;
}

std::vector<Straggler> Stragglers::Find() const {
  const std::vector<double> now = SlowerInWindow();
  std::vector<Straggler> found;
  for (size_t r = 0; r < slower_.size(); ++r) {
    std::vector<double> windows(slower_[r].begin(), slower_[r].end());
    if (windows.empty()) windows.push_back(now[r]);  // a short training
    const auto middle = windows.begin() + static_cast<std::ptrdiff_t>(windows.size() / 2);
    std::nth_element(windows.begin(), middle, windows.end());
    if (*middle > kNoise) found.push_back({static_cast<int>(r), *middle});
  }
  return found;
}

std::string FormatStragglers(const std::vector<Straggler>& stragglers) {
  std::string text;
  for (const Straggler& straggler : stragglers) {
    text += (text.empty() ? "slower than the others: rank " : ", rank ") +
            std::to_string(straggler.rank) + " (+" +
            std::to_string(std::lround(100 * straggler.slower)) + " %)";
  }
  return text.empty() ? "" : text + "\n";
}

void StragglersToJson(const std::vector<Straggler>& stragglers, Json* document) {
  Json rows = Json::array();
  for (const Straggler& straggler : stragglers) {
    Json row = Json::object();
    row["rank"] = straggler.rank;
    row["slower"] = straggler.slower;
    rows.push_back(std::move(row));
  }
  (*document)["stragglers"] = std::move(rows);
}

}  // namespace contraflow
