#include "tools/profile/hf_config.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "compiler/files/json.h"
#include "compiler/plan/error.h"
#include "compiler/plan/layer_cost.h"
#include "compiler/plan/text.h"
#include "tools/profile/family.h"

namespace contraflow {
namespace {

// Some configs list every default of the library.
constexpr JsonLimits kLimits = {.bytes = kMaxHfConfigBytes, .members = 512};

/// The text with Python's Infinity, -Infinity and NaN, which JSON does not have, in quotes. A key
/// that is read refuses them.
std::string QuoteNonFinite(std::string_view text) {
  std::string quoted;
  bool inside = false;
  for (size_t at = 0, taken = 1; at < text.size(); at += taken, taken = 1) {
    for (const std::string_view name : {"-Infinity", "Infinity", "NaN"}) {
      if (!inside && text.substr(at).starts_with(name)) taken = name.size();
    }
    const std::string mark(taken > 1, '"');
    if (inside && text[at] == '\\') taken = 2;
    if (text[at] == '"') inside = !inside;
    quoted += mark + std::string(text.substr(at, taken)) + mark;
  }
  return quoted;
}

/// Names of the types of a family.
std::vector<std::string> TypesOf(const Family& family) {
  std::vector<std::string> types;
  for (size_t at = 0, end = 0; end != std::string_view::npos; at = end + 1) {
    end = family.types.find(' ', at);
    types.emplace_back(family.types.substr(at, end - at));
  }
  return types;
}

const Family* FindFamily(std::string_view type) {
  for (const Family& family : Families()) {
    if (std::ranges::count(TypesOf(family), type)) return &family;
  }
  return nullptr;
}

/// True for the same name, or one that lacks a letter: others are of models with other layers.
bool IsSlip(const std::string& asked, const std::string& known) {
  for (size_t i = 1; i < known.size(); ++i) {
    const bool digit = std::isdigit(static_cast<unsigned char>(known[i])) != 0;
    if (!digit && known.substr(0, i) + known.substr(i + 1) == asked) return true;
  }
  return asked == known;
}

/// Adds the keys that say how large something is and were not read.
void ListUnread(const Json& config, const std::set<std::string_view>& read, std::string* unread) {
  // Parts of names that say nothing about layers.
  constexpr std::string_view kIdle[] = {"token",
                                        "rope",
                                        "rotary",
                                        "max_",
                                        "context",
                                        "scalar",
                                        "pretraining",
                                        "ep_size",
                                        "chunk_size_feed_forward",
                                        "num_beam",
                                        "min_length",
                                        "no_repeat_",
                                        "num_return",
                                        "top_k",
                                        "logits_to_keep",
                                        "quantization",
                                        "model_max_length",
                                        "block_multiple_of",
                                        "num_labels",
                                        "merge_size",
                                        "projection_hidden_size",
                                        "floor_scale",
                                        "_sliding_window_pattern",
                                        "capacity"};
  for (const auto& [key, value] : config.items()) {
    const bool size = value.is_number_integer() && value > 1;
    const bool list = value.is_array() && !value.empty() && value[0].is_number_integer();
    const bool part = value.is_object() && key.ends_with("_config");
    const auto in = [&, &name = key](std::string_view word) {
      return name.find(word) != std::string::npos;
    };
    if (!(size || list || part) || read.contains(key) || std::ranges::any_of(kIdle, in)) continue;
    *unread += (unread->empty() ? "" : ", ") + Excerpt(key);
  }
}

/// A document and the member of it with the text model.
struct Source {
  const Json* whole;
  const Json* text;  ///< or `whole`
  JsonCursor root, cursor;
};

Source TextOf(const JsonDocument& document) {
  const JsonCursor root = document.Root();
  for (const char* key : {"text_config", "llm_config", "language_config"}) {
    if (const auto inner = root.Optional(key); inner && !inner->IsNull()) {
      if (!inner->IsObject()) inner->Fail("must be an object, the text model's config");
      return {document.value.get(), &(*document.value)[key], root, *inner};
    }
  }
  return {document.value.get(), document.value.get(), root, root};
}

/// Layers that take something from others than the one before: no message between stages has it.
std::vector<std::string> NotesOn(const ModelShape& model) {
  std::vector<std::string> notes;
  const auto note = [&](auto of, const char* what) {
    const auto first = std::ranges::find_if(model.layers, of);
    if (first == model.layers.end()) return;
    notes.push_back("layers from " + std::to_string(first - model.layers.begin()) + " on take " +
                    what + " of earlier ones, which no message between stages has");
  };
  note([](const LayerShape& layer) { return layer.attention.borrows; }, "keys and values");
  note([](const LayerShape& layer) { return layer.attention.follows; }, "the choice of keys");
  if (model.side_width > 0) {
    notes.push_back("each layer takes its part of a second embedding, which no message has");
  }
  return notes;
}

std::string ListOf(std::vector<std::string> names) {
  std::ranges::sort(names);
  std::string list;
  for (const std::string& each : names) list += (list.empty() ? "" : ", ") + each;
  return list;
}

/// Names of the types of all families.
std::vector<std::string> KnownTypes() {
  std::vector<std::string> types;
  for (const Family& family : Families()) {
    for (std::string& each : TypesOf(family)) types.push_back(std::move(each));
  }
  return types;
}

ModelShape ReadAs(const Family& family, const Source& source) {
  std::vector<std::string> taken;
  std::set<std::string_view> read = {"text_config", "llm_config", "language_config"};
  ModelShape model = ReadModel({source.cursor, &read, &taken, family.defaults}, family);
  model.defaults = std::move(taken);
  // If there is an encoder, keys one level up count.
  if (const auto tied = source.root.Optional("tie_word_embeddings"); tied && !tied->IsNull()) {
    model.tied = tied->Boolean("a flag");
  }
  model.notes = NotesOn(model);
  ListUnread(*source.whole, read, &model.unread);
  if (source.text != source.whole) ListUnread(*source.text, read, &model.unread);
  return model;
}

/// The family of the text model's type, or else of the whole's; null: none.
const Family* FamilyOf(const std::string& name, const Source& source) {
  const auto inner = source.cursor.Optional("model_type");
  std::vector<std::string> names = {inner && inner->IsString() ? inner->String("") : name};
  if (source.text != source.whole) names.insert(names.end(), {name + "_text", name});
  for (const std::string& known : names) {
    if (const Family* const family = FindFamily(known)) return family;
  }
  return nullptr;
}

/// Letters that two names begin and end with in common, if they are not there by chance.
ptrdiff_t Alike(const std::string& a, const std::string& b) {
  constexpr ptrdiff_t kChance = 2;
  const ptrdiff_t same =
      (std::ranges::mismatch(a, b).in1 - a.begin()) +
      (std::mismatch(a.rbegin(), a.rend(), b.rbegin(), b.rend()).first - a.rbegin());
  return same > kChance ? same : 0;
}

/// " (did you mean ..?)", or the family that reads most of what this config says; of several the
/// one whose name is most alike, else the plain decoder.
std::string Advice(const std::string& name, const Source& source) {
  std::string best, unread;
  std::tuple<ptrdiff_t, ptrdiff_t, bool> least;
  for (const Family& family : Families()) {
    for (const std::string& known : TypesOf(family)) {
      if (IsSlip(Plain(name), Plain(known))) return " (did you mean \"" + known + "\"?)";
    }
    if (!family.defaults.empty()) continue;  // it reads everything
    try {
      const ModelShape model = ReadAs(family, source);
      const ptrdiff_t keys = std::ranges::count(model.unread, '"');
      for (const std::string& known : TypesOf(family)) {
        const std::tuple far(keys, -Alike(name, known), known != "llama");
        if (!best.empty() && far > least) continue;
        least = far;
        best = known;
        unread = model.unread;
      }
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): this family is not the one
    }
  }
  if (best.empty()) return "";
  return "; the nearest by its keys is `like` " + best +
         (unread.empty() ? ", which reads all that say a size"
                         : ", which would not read " + unread);
}

}  // namespace

ModelShape ReadHfConfig(std::string_view text, const std::string& place, std::string_view like) {
  const JsonDocument document = ParseJson(QuoteNonFinite(text), place, kLimits);
  const JsonCursor root = document.Root();
  const JsonCursor type = root.Required("model_type");
  const std::string& name = type.String("the kind of the model");
  const Source source = TextOf(document);
  const Family* family = like.empty() ? FamilyOf(name, source) : FindFamily(like);
  if (family == nullptr && !like.empty()) {
    const std::vector<std::string> known = KnownTypes();
    throw Error("`like`: unknown model type " + Excerpt(std::string(like)) +
                DidYouMean(like.substr(0, 64), known) + "; known are: " + ListOf(known));
  }
  if (family == nullptr) {
    if (FindFamily(name + "_text") != nullptr) root.Required("text_config");
    type.Fail("unknown model type " + Excerpt(name) + Advice(name, source) +
              "; known are: " + ListOf(KnownTypes()));
  }
  ModelShape model = ReadAs(*family, source);
  model.model_type = like.empty() ? name : name + " read as " + std::string(like);
  return model;
}

}  // namespace contraflow
