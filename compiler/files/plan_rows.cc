#include "compiler/files/plan_rows.h"

#include <algorithm>
#include <utility>

#include "compiler/files/json_builder.h"
#include "compiler/plan/error.h"

namespace contraflow {
namespace {

constexpr const char* kNames = "names";
constexpr const char* kPrograms = "programs";
constexpr const char* kSlots = "slots";

/// A terminal gets no control characters and no broken UTF-8 from a file.
bool IsPlain(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

}  // namespace

PlanRows::PlanRows(const std::string& place) : place_(place) {
  members_[0] = {
      kNames,
      [this](size_t row) {
        if (row >= 2) throw Error(place_ + ": /names: more than two lists");
      },
      [this](size_t row, size_t index, std::string_view name) { TakeName(row, index, name); }};
  members_[1] = {
      kPrograms, [this](size_t row) { Begin(row, "programs", kPrograms, &programs); },
      [this](size_t row, size_t index, std::string_view text) {
        Take(row, index, kPrograms, &programs, [text] {
          try {
            return ParseInstruction(text);
          } catch (const Error& wrong) {
            if (IsPlain(wrong.what())) throw;
            throw Error("instruction " + Excerpt(text) + ": has characters other than plain ASCII");
          }
        });
      },
      [this](size_t row, size_t index, std::span<const int64_t> numbers) {
        Take(row, index, kPrograms, &programs, [&] { return unpacker_.Unpack(numbers); });
      }};
  members_[2] = {
      kSlots, [this](size_t row) { Begin(row, "lists", kSlots, &slots); },
      [this](size_t row, size_t index, std::string_view text) {
        Take(row, index, kSlots, &slots, [text] {
          try {
            return ParseSlot(text);
          } catch (const Error& wrong) {
            if (IsPlain(wrong.what())) throw;
            throw Error("slot " + Excerpt(text) + ": has characters other than plain ASCII");
          }
        });
      }};
}

void PlanRows::Finish() {
  programs.Finish();
  slots.Finish();
}

void PlanRows::RequireParsed() const {
  for (const std::string* error : {&names_error_, &programs.error, &slots.error}) {
    if (!error->empty()) throw Error(*error);
  }
}

template <typename Entry>
void PlanRows::Begin(size_t row, const char* noun, const char* member, EntryRows<Entry>* rows) {
  rows->Finish();
  if (row >= size_t{kMaxRanks}) {
    throw Error(place_ + ": /" + member + ": more than " + std::to_string(kMaxRanks) + " " + noun);
  }
  rows->done.emplace_back();
}

template <typename Entry, typename Parse>
void PlanRows::Take(size_t row, size_t index, const char* member, EntryRows<Entry>* rows,
                    Parse parse) {
  if (!rows->error.empty()) return;
  try {
    rows->open.push_back(parse());
  } catch (const Error& wrong) {
    rows->error = place_ + ": /" + member + "/" + std::to_string(row) + "/" +
                  std::to_string(index) + ": " + wrong.what();
  }
}

void PlanRows::TakeName(size_t row, size_t index, std::string_view name) {
  if (!names_error_.empty()) return;
  try {
    unpacker_.AddName(row, name);
  } catch (const Error& wrong) {
    const std::string what = wrong.what();
    names_error_ = place_ + ": /names/" + std::to_string(row) + "/" + std::to_string(index) + ": " +
                   (IsPlain(what) ? what : "has characters other than plain ASCII");
  }
}

}  // namespace contraflow
