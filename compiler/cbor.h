#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "compiler/json.h"
#include "compiler/json_builder.h"

namespace contraflow {

/// True if the document begins with the head of a CBOR map; no JSON text does.
bool LooksLikeCbor(std::string_view document);

/// Reads one CBOR item (RFC 8949) and passes it to the builder. What JSON has no word for is
/// refused: byte strings, tags, keys that are no text, `undefined`, NaN and infinity; so are
/// strings in pieces. Does not recurse, and allocates nothing for a size that the document only
/// claims.
void ReadCbor(std::string_view document, const std::string& place, JsonBuilder* builder);

/// Append the head of an array or a map of `size` entries.
void BeginCborArray(uint64_t size, std::string* out);
void BeginCborMap(uint64_t size, std::string* out);
void WriteCborString(std::string_view text, std::string* out);
void WriteCbor(const Json& value, std::string* out);

}  // namespace contraflow
