#pragma once

#include <string>
#include <string_view>

#include "tools/profile/model_shape.h"

namespace contraflow {

/// The largest config.json that is read.
inline constexpr int64_t kMaxHfConfigBytes = 1 << 20;

/// Reads the config.json that Hugging Face's transformers keep beside a model: of Llama, Mistral,
/// Mixtral, Qwen 2 and 3 (dense and MoE), DeepSeek-V3, Kimi K2, Gemma 2 and 3 (text) and GPT-OSS.
/// Keys that say nothing about shapes are not looked at. Of Gemma 3, whose published configs leave
/// keys out, missing ones have the defaults of transformers (ModelShape::defaults). Throws Error
/// that begins with `place`, and has the JSON path, where a key is missing or out of range or two
/// do not go together, and for an unknown "model_type", with the known ones.
ModelShape ReadHfConfig(std::string_view text, const std::string& place);

}  // namespace contraflow
