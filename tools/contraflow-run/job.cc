#include "tools/contraflow-run/job.h"

#include "compiler/plan/error.h"
#include "runtime/launch/control.h"

namespace contraflow {

int Job::process() const { return control_ == nullptr ? 0 : control_->rank(); }

int Job::processes() const { return control_ == nullptr ? 1 : control_->size(); }

std::vector<std::string> Job::Gather(std::string_view bytes) {
  if (control_ != nullptr) return control_->Gather(bytes);
  return {std::string(bytes)};
}

std::string Job::Broadcast(std::string_view bytes) {
  return control_ != nullptr ? control_->Broadcast(bytes) : std::string(bytes);
}

void Job::Barrier() {
  if (control_ != nullptr) control_->Barrier();
}

void Job::Agree(const std::vector<Fact>& facts) {
  if (control_ == nullptr) return;
  std::vector<std::vector<Fact>> all;
  for (const std::string& bytes : Gather(WriteFacts(facts))) all.push_back(ReadFacts(bytes));
  const std::string difference = Broadcast(all.empty() ? "" : Disagreement(all, name_));
  if (!difference.empty()) throw JobError(difference);
}

}  // namespace contraflow
