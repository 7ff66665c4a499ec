#pragma once

#include <string>
#include <string_view>

#include "tools/profile/model_shape.h"

namespace contraflow {

/// The largest config.json that is read.
inline constexpr int64_t kMaxHfConfigBytes = 1 << 20;

/// Reads the config.json that Hugging Face's transformers keep with a model, as a list of layers
/// (families.cc has the types that are known). Reads the text model of a model with an encoder,
/// which may be in "text_config"; the encoder is among `unread`. With `like`, it is read as one of
/// that type. Keys that say nothing about shapes are not looked at. If published configs of a
/// family leave keys out, those have the defaults of transformers (ModelShape::defaults). Throws
/// Error that begins with `place`, and has the JSON path, where a key is missing or out of range or
/// two do not go together, and for an unknown "model_type", with the nearest and the known.
ModelShape ReadHfConfig(std::string_view text, const std::string& place,
                        std::string_view like = {});

}  // namespace contraflow
