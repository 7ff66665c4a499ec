#include "runtime/launch/fault_report.h"

#include <algorithm>
#include <cstdio>
#include <type_traits>
#include <utility>

#include "compiler/plan/error.h"
#include "compiler/plan/text.h"
#include "runtime/core/seconds.h"

namespace contraflow {
namespace {

using ProcessName = std::function<std::string(int)>;

/// Whether the text opens with the name: `rank 1` does not open `rank 12, start of step`.
bool OpensWith(const std::string& text, const std::string& name) {
  if (name.empty() || text.compare(0, name.size(), name) != 0) return false;
  return text.size() == name.size() || text[name.size()] < '0' || text[name.size()] > '9';
}

/// `rank 0`, `rank 0 and rank 2`, `all 4 ranks`; of many the first ones.
std::string Subject(const std::vector<int>& processes, size_t size, const ProcessName& name) {
  constexpr size_t kNamed = 6;
  if (size > 1 && processes.size() == size) return "all " + std::to_string(size) + " ranks";
  const bool all = processes.size() <= kNamed;
  std::string text;
  for (size_t i = 0; i < (all ? processes.size() : kNamed - 1); ++i) {
    if (i > 0) text += all && i + 1 == processes.size() ? " and " : ", ";
    text += name(processes[i]);
  }
  if (!all) text += " and " + std::to_string(processes.size() - kNamed + 1) + " more";
  return text;
}

/// Returns the line of a fault that these processes share.
std::string Sentence(const Fault& fault, const std::vector<int>& processes, size_t size,
                     const ProcessName& name) {
  const std::string subject = Subject(processes, size, name);
  const std::string tells = size > 1 ? subject + ": " : "";
  switch (fault.kind) {
    case FaultKind::kSignal:
      return subject + (processes.size() > 1 ? " were" : " was") + " sent " + fault.text;
    case FaultKind::kTimeout:
    case FaultKind::kJob:
      return fault.text;
    case FaultKind::kLost:
      return subject + " was lost: " + fault.text;
    case FaultKind::kError:
    case FaultKind::kBug:
      break;
  }
  return processes.size() == 1 && OpensWith(fault.text, subject) ? fault.text : tells + fault.text;
}

/// A fault, and all processes that have it.
struct Shared {
  Fault fault;
  std::vector<int> processes;
};

/// Merges equal faults; the cause comes first.
std::vector<Shared> Merge(const Findings& findings) {
  std::vector<Shared> merged = {{findings.cause, {findings.cause.process}}};
  for (const Fault& fault : findings.later) {
    // The lines of the processes show losses.
    if (fault.kind == FaultKind::kLost) continue;
    const auto alike = std::find_if(merged.begin(), merged.end(), [&](const Shared& shared) {
      return shared.fault.kind == fault.kind && shared.fault.text == fault.text;
    });
    if (alike == merged.end()) {
      merged.push_back({fault, {fault.process}});
      continue;
    }
    std::vector<int>& processes = alike->processes;
    const auto place = std::lower_bound(processes.begin(), processes.end(), fault.process);
    if (place == processes.end() || *place != fault.process) {
      processes.insert(place, fault.process);
    }
  }
  return merged;
}

std::string StandingText(const Standing& standing) {
  const std::string position =
      standing.position.empty() ? "" : standing.position + " since " + SecondsText(standing.since);
  const std::string heard =
      position.empty() ? "never heard from"
                       : "last heard from " + SecondsText(standing.heard) + " before, " + position;
  switch (standing.kind) {
    case Standing::Kind::kAnswered:
      return position;
    case Standing::Kind::kUnheard:
      return "did not answer; " + heard;
    case Standing::Kind::kLost:
      return "lost; " + heard;
    case Standing::Kind::kUnwatched:
      break;
  }
  return "";
}

/// Each circle of processes that wait for each other, from its lowest process on.
std::vector<std::vector<int>> Circles(const std::vector<Standing>& standings) {
  const auto next = [&](int process) {
    // An older position does not prove that the process still waits.
    const Standing& standing = standings[static_cast<size_t>(process)];
    const int to = standing.kind == Standing::Kind::kAnswered ? standing.waits_for : -1;
    return to >= 0 && to < static_cast<int>(standings.size()) ? to : -1;
  };
  std::vector<std::vector<int>> circles;
  std::vector<int> reached_from(standings.size(), -1);
  for (int start = 0; start < static_cast<int>(standings.size()); ++start) {
    int at = start;
    while (at >= 0 && reached_from[static_cast<size_t>(at)] < 0) {
      reached_from[static_cast<size_t>(at)] = start;
      at = next(at);
    }
    if (at < 0 || reached_from[static_cast<size_t>(at)] != start) continue;
    std::vector<int> circle = {at};
    for (int i = next(at); i != at; i = next(i)) circle.push_back(i);
    std::rotate(circle.begin(), std::min_element(circle.begin(), circle.end()), circle.end());
    circles.push_back(circle);
  }
  return circles;
}

std::string CircleText(const std::vector<int>& circle, const ProcessName& name) {
  std::string text = "circular wait: ";
  for (size_t i = 0; i < circle.size(); ++i) {
    text += (i > 0 ? ", " : "") + name(circle[i]) + " for " + name(circle[(i + 1) % circle.size()]);
  }
  return text;
}

/// Lines after the first of a text stand under its beginning.
std::string Indented(const std::string& text, size_t columns) {
  std::string result;
  for (const char c : text) {
    result += c;
    if (c == '\n') result.append(columns, ' ');
  }
  return result;
}

/// `  head  text`, with all heads as wide as the widest name.
class Lines {
 public:
  Lines(const ProcessName& name, size_t size) {
    for (size_t p = 0; p < size; ++p) width_ = std::max(width_, name(static_cast<int>(p)).size());
  }
  std::string operator()(std::string head, const std::string& text) const {
    head.resize(width_, ' ');
    return "  " + head + "  " + Indented(text, width_ + 4) + "\n";
  }

 private:
  size_t width_ = 4;  // "then"
};

}  // namespace

std::string StandingLines(const ProcessName& name, const std::vector<Standing>& standings) {
  const Lines line(name, standings.size());
  std::string text;
  for (size_t p = 0; p < standings.size(); ++p) {
    const Standing& standing = standings[p];
    const std::string at = standing.position + " since " + SecondsText(standing.since);
    text += line(name(static_cast<int>(p)), standing.position.empty() ? "not heard from yet" : at);
  }
  return text;
}

std::string FaultBytes(const Fault& fault) {
  ByteWriter bytes;
  return bytes.Put(fault.kind)
      .Put(int32_t{fault.process})
      .PutText(fault.text.substr(0, kMaxSaid))
      .Take();
}

Fault ReadFault(ByteReader* bytes, int size) {
  Fault fault;
  const auto kind = bytes->Take<std::underlying_type_t<FaultKind>>();
  fault.process = bytes->Take<int32_t>();
  fault.text = PlainText(bytes->TakeText()).substr(0, kMaxSaid);
  const bool known = kind >= 0 && kind <= static_cast<int>(FaultKind::kJob) && fault.process >= 0 &&
                     fault.process < size;
  if (!known) throw Error("tells of a fault there is not");
  fault.kind = static_cast<FaultKind>(kind);
  return fault;
}

bool MayFollow(const std::vector<Fault>& faults, size_t index) {
  const Fault& fault = faults[index];
  switch (fault.kind) {
    case FaultKind::kSignal:
      return true;
    case FaultKind::kLost:
      // A process that told of a fault before its loss may have ended because of it.
      return std::any_of(faults.begin(), faults.begin() + static_cast<std::ptrdiff_t>(index),
                         [&](const Fault& other) { return other.process == fault.process; });
    case FaultKind::kError:
      return fault.text.find("lost") != std::string::npos;
    case FaultKind::kBug:
    case FaultKind::kTimeout:
    case FaultKind::kJob:
      break;
  }
  return false;
}

size_t CauseOf(const std::vector<Fault>& faults) {
  CF_ASSERT(!faults.empty());
  for (size_t i = 0; i < faults.size(); ++i) {
    if (!MayFollow(faults, i)) return i;
  }
  return 0;
}

std::string FaultReport(const std::string& prefix, const ProcessName& name,
                        const Findings& findings) {
  const size_t size = findings.standings.size();
  std::vector<Shared> merged = Merge(findings);
  const Lines line(name, size);
  const Shared& cause = merged.front();
  const std::string first = Sentence(cause.fault, cause.processes, size, name);
  std::string report = prefix + Indented(first, 4) + "\n";
  // The positions of the processes do not matter to a fault that all share.
  const bool alike = cause.fault.kind == FaultKind::kJob ||
                     (cause.processes.size() == size && cause.fault.kind != FaultKind::kSignal &&
                      cause.fault.kind != FaultKind::kTimeout);
  if (!alike) {
    for (size_t p = 0; p < size; ++p) {
      const Standing& standing = findings.standings[p];
      if (standing.kind == Standing::Kind::kUnwatched) continue;
      report += line(name(static_cast<int>(p)), StandingText(standing));
    }
  }
  if (cause.fault.kind == FaultKind::kTimeout) {
    for (const std::vector<int>& circle : Circles(findings.standings)) {
      report += "  " + CircleText(circle, name) + "\n";
    }
  }
  for (size_t i = 1; i < merged.size(); ++i) {
    report += line("then", Sentence(merged[i].fault, merged[i].processes, size, name));
  }
  return report;
}

std::string LossOfLeader(const std::string& prefix, const ProcessName& name, const std::string& how,
                         int process, const Standing& standing) {
  const std::string position = StandingText(standing);
  return prefix + name(0) + " was lost: " + how +
         (position.empty() ? "" : "; " + name(process) + ": " + position) + "\n";
}

}  // namespace contraflow
