#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "compiler/files/json.h"
#include "compiler/files/json_builder.h"

namespace contraflow {

/// True if the document begins with the head of a CBOR map; no JSON text does.
bool LooksLikeCbor(std::string_view document);

/// Reads one CBOR item (RFC 8949) and passes it to the builder. What JSON has no word for is
/// refused: byte strings, tags, keys that are no text, `undefined`, NaN and infinity; so are
/// strings in pieces. Does not recurse, and allocates nothing for a size that the document only
/// claims.
void ReadCbor(std::string_view document, const std::string& place, JsonBuilder* builder);

/// Puts up to `most` further bytes of a document there; 0 at its end.
using MoreBytes = std::function<size_t(char* to, size_t most)>;

/// The same of a document that comes piece by piece: its beginning, then what `more` gives. Holds a
/// piece of it at a time.
void ReadCbor(std::string_view beginning, const MoreBytes& more, const std::string& place,
              JsonBuilder* builder);

/// Append the head of an array or a map of `size` entries.
void BeginCborArray(uint64_t size, std::string* out);
void BeginCborMap(uint64_t size, std::string* out);
void WriteCborInteger(int64_t integer, std::string* out);
void WriteCborString(std::string_view text, std::string* out);
void WriteCbor(const Json& value, std::string* out);

}  // namespace contraflow
