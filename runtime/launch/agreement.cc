#include "runtime/launch/agreement.h"

#include <cstddef>
#include <cstdint>

#include "compiler/plan/error.h"

namespace contraflow {
namespace {

constexpr size_t kMostFacts = 1000;

void PutText(std::string_view text, std::string* bytes) {
  uint64_t size = text.size();
  for (int i = 0; i < 8; ++i, size >>= 8) bytes->push_back(static_cast<char>(size & 0xff));
  bytes->append(text);
}

std::string TakeText(std::string_view* bytes) {
  if (bytes->size() < 8) throw Error("the facts of a process are cut off");
  uint64_t size = 0;
  for (size_t i = 8; i-- > 0;) size = size << 8 | static_cast<unsigned char>((*bytes)[i]);
  bytes->remove_prefix(8);
  if (size > bytes->size()) throw Error("the facts of a process are cut off");
  std::string text(bytes->substr(0, static_cast<size_t>(size)));
  bytes->remove_prefix(static_cast<size_t>(size));
  return text;
}

/// The first fact in which the two differ, by its place in the longer list; its size if in none.
size_t FirstDifference(const std::vector<Fact>& a, const std::vector<Fact>& b) {
  size_t i = 0;
  while (i < a.size() && i < b.size() && a[i].noun == b[i].noun && a[i].key == b[i].key) ++i;
  return i;
}

}  // namespace

std::string WriteFacts(std::span<const Fact> facts) {
  std::string bytes;
  for (const Fact& fact : facts) {
    PutText(fact.noun, &bytes);
    PutText(fact.key, &bytes);
    PutText(fact.shown, &bytes);
  }
  return bytes;
}

std::vector<Fact> ReadFacts(std::string_view bytes) {
  std::vector<Fact> facts;
  while (!bytes.empty()) {
    if (facts.size() == kMostFacts) throw Error("a process has more facts than there are");
    Fact fact;
    fact.noun = TakeText(&bytes);
    fact.key = TakeText(&bytes);
    fact.shown = TakeText(&bytes);
    facts.push_back(std::move(fact));
  }
  return facts;
}

std::string Disagreement(std::span<const std::vector<Fact>> by_process,
                         const std::function<std::string(int process)>& name) {
  std::string text, others;
  for (size_t p = 1; p < by_process.size(); ++p) {
    const std::vector<Fact>& mine = by_process[p];
    const std::vector<Fact>& first = by_process[0];
    const size_t i = FirstDifference(mine, first);
    if (i == mine.size() && i == first.size()) continue;
    const std::string who = name(static_cast<int>(p));
    if (!text.empty()) {
      others += (others.empty() ? "; also not like " + name(0) + ": " : ", ") + who;
      continue;
    }
    if (i == mine.size() || i == first.size() || mine[i].noun != first[i].noun) {
      // Only processes of different builds list different facts.
      text = who + " is of another build than " + name(0) + "; start the same program everywhere";
      continue;
    }
    text = who + " has another " + mine[i].noun + " than " + name(0) + ": " + mine[i].shown +
           " against " + first[i].shown + "; give all processes the same";
  }
  return text + others;
}

}  // namespace contraflow
