// Mixers with a state, by the keys that the families have for them.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "compiler/plan/text.h"
#include "tools/profile/family.h"

namespace contraflow {

LinearDims ReadMamba2(const ConfigReader& config, const ModelShape& model) {
  LinearDims dims;
  dims.kind = LinearKind::kMamba2;
  const int64_t expand = config.CountOr({"mamba_expand", "expand"}, 64, 2);
  const int64_t inner = config.CountOr({"mamba_d_ssm"}, kMaxWidth, expand * model.hidden);
  dims.value_dim = config.CountOr({"mamba_d_head", "mamba_head_dim", "head_dim"}, kMaxWidth, 64);
  dims.heads = config.CountOr({"mamba_n_heads", "mamba_num_heads", "num_heads"}, kMaxHeads,
                              std::max<int64_t>(1, inner / dims.value_dim));
  dims.key_heads = config.CountOr({"mamba_n_groups", "n_groups"}, dims.heads, 1);
  dims.key_dim = config.CountOr({"mamba_d_state", "ssm_state_size", "state_size"}, kMaxWidth, 128);
  dims.kernel = config.CountOr({"mamba_d_conv", "conv_kernel"}, 64, 4);
  dims.chunk = config.CountOr({"mamba_chunk_size", "chunk_size"}, kMaxWidth, 256);
  dims.conv_bias = config.FlagOr({"mamba_conv_bias", "use_conv_bias"}, true);
  dims.bias = config.FlagOr({"mamba_proj_bias", "use_bias"}, false);
  config.Ignore({"time_step_rank"});
  return dims;
}

LinearDims ReadMamba(const ConfigReader& config, const ModelShape& model) {
  LinearDims dims;
  dims.kind = LinearKind::kMamba;
  dims.value_dim = 1;
  config.Ignore({"mamba_expand", "expand"});
  const int64_t expand = config.CountOr({"mamba_expand", "expand"}, 64, 2);
  dims.heads = config.CountOr({"mamba_intermediate_size"}, kMaxWidth, expand * model.hidden);
  dims.key_heads = 1;
  dims.key_dim = config.CountOr({"mamba_d_state", "state_size"}, kMaxWidth, 16);
  dims.kernel = config.CountOr({"mamba_d_conv", "conv_kernel"}, 64, 4);
  dims.rank =
      config.CountOr({"mamba_dt_rank", "time_step_rank"}, kMaxWidth, (model.hidden + 15) / 16);
  dims.conv_bias = config.FlagOr({"mamba_conv_bias", "use_conv_bias"}, true);
  dims.bias = config.FlagOr({"mamba_proj_bias", "use_bias"}, false);
  dims.norm = false;
  return dims;
}

LinearDims ReadDeltaNet(const ConfigReader& config, const ModelShape&) {
  LinearDims dims;
  dims.kind = LinearKind::kDeltaNet;
  dims.heads = config.Count({"linear_num_value_heads"}, kMaxHeads);
  dims.value_dim = config.Count({"linear_value_head_dim"}, kMaxWidth);
  dims.key_heads = config.Count({"linear_num_key_heads"}, dims.heads);
  dims.key_dim = config.Count({"linear_key_head_dim"}, kMaxWidth);
  dims.kernel = config.CountOr({"linear_conv_kernel_dim"}, 64, 4);
  return dims;
}

LinearDims ReadKda(const ConfigReader& config, const ModelShape&) {
  LinearDims dims;
  dims.kind = LinearKind::kKda;
  const ConfigReader from = config.Member("linear_attn_config").value_or(config);
  dims.heads = dims.key_heads = from.Count({"linear_num_heads", "num_heads"}, kMaxHeads);
  dims.value_dim = dims.key_dim = dims.rank =
      from.Count({"linear_head_dim", "head_dim"}, kMaxWidth);
  dims.kernel = from.CountOr({"linear_conv_kernel_dim", "short_conv_kernel_size"}, 64, 4);
  return dims;
}

LinearDims ReadShortConv(const ConfigReader& config, const ModelShape& model) {
  LinearDims dims;
  dims.kind = LinearKind::kShortConv;
  dims.heads = model.hidden;
  dims.value_dim = 1;
  dims.kernel = config.CountOr({"conv_L_cache"}, 64, 3);
  dims.conv_bias = dims.bias = config.FlagOr({"conv_bias"}, false);
  dims.norm = false;
  return dims;
}

void ReadPattern(const ConfigReader& config, ModelShape* model) {
  std::string letters;
  const auto types = config.Given("layers_block_type");
  if (const auto text = config.Given("hybrid_override_pattern")) {
    letters = text->String("a letter for each layer");
  } else {
    const JsonCursor list = types ? *types : config.Required("hybrid_override_pattern");
    for (size_t i = 0; i < list.Size("a list with the kind of each layer"); ++i) {
      const std::string& type = list.Item(i).String("the kind of a layer");
      letters += type == "full_attention" || type == "attention" ? '*'
                 : type == "moe"                                 ? 'E'
                 : type == "mlp"                                 ? '-'
                                                                 : 'M';
    }
  }
  const std::string main = letters.substr(0, letters.find('/'));
  const LayerShape any = model->layers.front();
  const auto field = [&] { return config.Required("hybrid_override_pattern"); };
  std::vector<LayerShape> layers;
  Family experts;
  experts.experts = experts.router_bias = true;
  for (const char letter : main) {
    if (letter == '|') continue;
    LayerShape layer = any;
    layer.norms = 1;
    layer.dense_width = 0;
    if (letter != '*') layer.attention = {};
    if (letter == 'M') layer.linear = ReadMamba2(config, *model);
    if (letter == 'G') layer.linear = ReadDeltaNet(config, *model);
    if (letter == '-') layer.dense_width = config.Count({"intermediate_size"}, kMaxWidth);
    if (letter == 'E') layer.moe = ReadExperts(config, experts);
    if (std::string("MG*-E").find(letter) == std::string::npos) {
      field().Fail("must have letters of \"MG*-E|\", has " + Excerpt(std::string(1, letter)));
    }
    layers.push_back(layer);
  }
  if (layers.size() != model->layers.size()) {
    field().Fail("must have \"num_hidden_layers\", " + std::to_string(model->layers.size()) +
                 ", letters, has " + std::to_string(layers.size()));
  }
  model->layers = std::move(layers);
  // Its modules have attention and experts each (transformers, NemotronHConfig).
  config.Ignore({"mtp_layers_block_type"});
  model->prediction = any;
  model->prediction.dense_width = 0;
  for (const LayerShape& layer : model->layers) {
    if (layer.moe.experts > 0) model->prediction.moe = layer.moe;
    model->prediction.dense_width = std::max(model->prediction.dense_width, layer.dense_width);
  }
  if (model->prediction.moe.experts > 0) model->prediction.dense_width = 0;
}

}  // namespace contraflow
