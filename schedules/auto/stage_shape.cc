// Shapes of costs of stages: each has one candidate.

#include <optional>
#include <string>
#include <utility>

#include "schedules/auto/shape.h"
#include "schedules/partition/promising.h"
#include "schedules/partition/staged.h"
#include "schedules/recompute/recompute.h"
#include "schedules/search/portfolio.h"

namespace contraflow {
namespace {

/// Orders of a first search.
constexpr int64_t kOrdersOfStages = 64;

class StageShape : public Shape {
 public:
  StageShape(Candidate candidate, std::unique_ptr<CandidateSearch> search)
      : candidate_(std::move(candidate)), search_(std::move(search)) {}

  Time Bound(Time /*enough*/) override {
    // Components may overlap from chunk to chunk, which the bound does not cover.
    return search_->Proves(search_->bound()) ? search_->bound() : 0;
  }

  bool Run(SearchWork* work, Incumbent* incumbent) override {
    std::optional<FoundPlan> found = search_->Run(work);
    if (!found) return false;
    const bool proven = search_->Proves(found->step);
    Found(found->step);
    incumbent->Offer(std::move(found->plan));
    if (proven) incumbent->Raise(std::string(Name(candidate_.placement)), search_->bound());
    return !proven;
  }

  Worth Look(SearchWork* work, Incumbent* /*incumbent*/) override {
    // Shapes of costs of stages run in their order.
    if (candidate_.spec.costs.partition.empty()) return {};
    const FirstOrder look = LookAt(candidate_, work);
    FoundHiding(look.hiding);
    return {look.worth.excess, look.worth.step};
  }

  int64_t instructions() const override { return InstructionsOf(candidate_.frame); }
  int64_t orders() const override { return kOrdersOfStages; }
  const std::vector<Route>& routes() const override { return candidate_.frame.routes; }

 private:
  const Candidate candidate_;
  const std::unique_ptr<CandidateSearch> search_;
};

}  // namespace

void AddStageShape(Candidate candidate, std::vector<std::unique_ptr<Shape>>* shapes) {
  std::unique_ptr<CandidateSearch> search = SearchOf(candidate);
  if (search == nullptr) return;
  shapes->push_back(std::make_unique<StageShape>(std::move(candidate), std::move(search)));
}

std::vector<std::unique_ptr<Shape>> StageShapes(const Spec& spec, Incumbent* incumbent) {
  std::vector<std::unique_ptr<Shape>> shapes;
  for (const Spec& way : WithoutAndWith(spec)) {
    for (Candidate& candidate : CandidatesOf(way)) {
      // Another placement may have costs or a limit that this one cannot have.
      incumbent->Attempt([&] {
        candidate.spec.recompute =
            RepartitionRecompute(way.recompute, CostStages(way), candidate.frame.stages);
        AddStageShape(std::move(candidate), &shapes);
      });
    }
  }
  return shapes;
}

}  // namespace contraflow
