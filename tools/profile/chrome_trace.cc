#include "tools/profile/chrome_trace.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "compiler/files/json.h"
#include "compiler/plan/error.h"
#include "compiler/plan/plan.h"
#include "tools/profile/samples.h"

namespace contraflow {
namespace {

/// No clock counts further; beyond, doubles no longer tell microseconds apart.
constexpr double kMaxTime = 1e16;
constexpr size_t kMaxName = 512;

/// Place of the parser. Everything below kEvent and kArgs that is not asked for is skipped.
enum class Within { kRoot, kTop, kDistributed, kEvents, kEvent, kArgs, kSkip };

class TraceHandler {
 public:
  using number_integer_t = nlohmann::json::number_integer_t;
  using number_unsigned_t = nlohmann::json::number_unsigned_t;
  using number_float_t = nlohmann::json::number_float_t;
  using string_t = nlohmann::json::string_t;
  using binary_t = nlohmann::json::binary_t;

  TraceHandler(const std::string& place, const std::function<void(const TraceEvent&)>& take)
      : place_(place), take_(take) {}

  bool null() { return Other(); }
  bool boolean(bool) { return Other(); }
  bool number_integer(number_integer_t value) { return Number(static_cast<double>(value), value); }
  bool number_unsigned(number_unsigned_t value) {
    if (value > static_cast<number_unsigned_t>(INT64_MAX))
      return Number(static_cast<double>(value), -1);
    return Number(static_cast<double>(value), static_cast<int64_t>(value));
  }
  bool number_float(number_float_t value, const string_t&) { return Number(value, -1); }
  bool binary(binary_t&) { return Other(); }

  bool string(string_t& value) {
    if (level_ != Within::kEvent) return Other();
    if (key_ == "ph") {
      complete_ = value == "X";
    } else if (key_ == "name") {
      event_.name = value.substr(0, kMaxName);
    } else if (key_ == "cat") {
      event_.category = value.substr(0, kMaxName);
    } else if (key_ == "ts" || key_ == "dur") {
      text_for_ = key_;
    }
    return true;
  }

  bool key(string_t& value) {
    if (level_ != Within::kSkip) key_ = value;
    return true;
  }

  bool start_object(size_t) {
    if (level_ == Within::kRoot) {
      level_ = Within::kTop;
    } else if (level_ == Within::kTop && key_ == "distributedInfo") {
      level_ = Within::kDistributed;
    } else if (level_ == Within::kEvents) {
      level_ = Within::kEvent;
      event_ = {};
      complete_ = false;
      start_ = duration_ = std::nullopt;
      text_for_.clear();
    } else if (level_ == Within::kEvent && key_ == "args") {
      level_ = Within::kArgs;
    } else {
      Skip();
    }
    return true;
  }

  bool end_object() {
    if (level_ == Within::kSkip) return Unskip();
    if (level_ == Within::kArgs) {
      level_ = Within::kEvent;
    } else if (level_ == Within::kEvent) {
      level_ = Within::kEvents;
      Finish();
    } else {
      level_ = level_ == Within::kDistributed ? Within::kTop : Within::kRoot;
    }
    return true;
  }

  bool start_array(size_t) {
    const bool events =
        level_ == Within::kRoot || (level_ == Within::kTop && key_ == "traceEvents");
    if (!events) {
      if (level_ == Within::kEvents) Fail("must be an object, is an array");
      Skip();
      return true;
    }
    bare_ = level_ == Within::kRoot;
    level_ = Within::kEvents;
    any_ = true;
    return true;
  }

  bool end_array() {
    if (level_ == Within::kSkip) return Unskip();
    level_ = bare_ ? Within::kRoot : Within::kTop;
    return true;
  }

  bool parse_error(size_t byte, const std::string&, const nlohmann::json::exception& error) {
    std::string why = error.what();
    // Without what the library puts before the reason.
    const size_t reason = why.find(": ");
    if (reason != std::string::npos) why.erase(0, reason + 2);
    throw Error(place_ + ": not a whole trace: JSON ends or is wrong at byte " +
                std::to_string(byte) + " (" + why.substr(0, 200) + ")");
  }

  TraceHead Take() {
    if (!any_) throw Error(place_ + ": has no \"traceEvents\"; give a trace of a profiler");
    return head_;
  }

 private:
  [[noreturn]] void Fail(const std::string& what) const {
    throw Error(place_ + ": /traceEvents/" + std::to_string(index_) + ": " + what);
  }

  void Skip() {
    before_ = skipped_++ == 0 ? level_ : before_;
    level_ = Within::kSkip;
  }
  bool Unskip() {
    if (--skipped_ == 0) level_ = before_;
    return true;
  }

  bool Other() {
    if (level_ == Within::kEvents) Fail("must be an object");
    return true;
  }

  /// `whole` is -1 for what is no whole number of 64 bits.
  bool Number(double value, int64_t whole) {
    if (level_ == Within::kEvent) {
      if (key_ == "ts") start_ = value;
      if (key_ == "dur") duration_ = value;
      if (key_ == "pid") event_.pid = whole;
      if (key_ == "tid") event_.tid = whole;
    } else if (level_ == Within::kArgs) {
      if (key_ == "correlation") event_.correlation = whole;
      if (key_ == "stage") event_.stage = whole;
      if (key_ == "microbatch") event_.microbatch = whole;
      if (key_ == "back_stage") event_.back_stage = whole;
      if (key_ == "back_microbatch") event_.back_microbatch = whole;
      if (key_ == "layer") event_.layer = whole;
      if (key_ == "peer") event_.peer = whole;
    } else if (level_ == Within::kDistributed) {
      if (key_ == "rank") head_.rank = whole;
      if (key_ == "world_size") head_.world_size = whole;
    } else if (level_ == Within::kTop && key_ == "baseTimeNanoseconds") {
      if (std::abs(value) <= kMaxTime * 1000) head_.base = value / 1000;
    }
    return Other();
  }

  void Finish() {
    if (complete_) {
      if (event_.name.empty()) Fail("a complete event needs a \"name\"");
      if (!text_for_.empty())
        Fail("\"" + text_for_ + "\" must be a number (microseconds), is text");
      if (!start_ || !(std::abs(*start_) <= kMaxTime)) {
        Fail("a complete event needs \"ts\", its start in microseconds");
      }
      if (!duration_) duration_ = 0;
      if (!(*duration_ >= 0 && *duration_ <= kMaxTime)) {
        Fail("\"dur\" must be a time >= 0 (microseconds), is " + FormatReal(*duration_));
      }
      event_.start = *start_;
      event_.duration = *duration_;
      take_(event_);
    }
    ++index_;
  }

  const std::string& place_;
  const std::function<void(const TraceEvent&)>& take_;
  Within level_ = Within::kRoot, before_ = Within::kRoot;
  size_t skipped_ = 0;
  std::string key_;
  bool bare_ = false, any_ = false, complete_ = false;
  TraceEvent event_;
  std::optional<double> start_, duration_;
  std::string text_for_;  ///< the time that is text
  TraceHead head_;
  size_t index_ = 0;
};

}  // namespace

std::optional<Instruction> OwnSlice(const TraceEvent& event) {
  if (auto what = ParseRange(event.name)) return what;
  if (event.stage < 0 || event.stage >= kMaxStages) return std::nullopt;
  for (int op = 0; op < kOpCount; ++op) {
    if (event.name != Name(static_cast<Op>(op))) continue;
    Instruction what;
    what.op = static_cast<Op>(op);
    const auto take = [](int64_t value, int limit) {
      return value >= 0 && value < limit ? static_cast<int>(value) : -1;
    };
    what.stage = static_cast<int>(event.stage);
    what.microbatch = take(event.microbatch, kMaxMicrobatches);
    what.layer = static_cast<int16_t>(take(event.layer, kMaxLayers));
    what.back_stage = take(event.back_stage, kMaxStages);
    what.back_microbatch = take(event.back_microbatch, kMaxMicrobatches);
    if (what.op == Op::FB && what.back_stage < 0) return std::nullopt;
    return what;
  }
  return std::nullopt;
}

TraceHead ReadTraceEvents(std::string_view text, const std::string& place,
                          const std::function<void(const TraceEvent& event)>& take) {
  TraceHandler handler(place, take);
  nlohmann::json::sax_parse(text.begin(), text.end(), &handler);
  return handler.Take();
}

}  // namespace contraflow
