#pragma once

#include "tools/profile/family.h"

// Words of families of their own: which layers have another mixer than full attention, and what
// such a family changes when all else is read.

namespace contraflow {

bool AllSlide(const ConfigReader& config, int64_t);
bool LateOnesSlide(const ConfigReader& config, int64_t i);
bool AllAreOther(const ConfigReader&, int64_t);
bool AllButOneOfPeriod(const ConfigReader& config, int64_t i);
bool NotListed(const ConfigReader& config, int64_t i);
bool NotFullOfKimi(const ConfigReader& config, int64_t i);
void HeadDimIsRequired(const ConfigReader& config, ModelShape*);
void Llama4(const ConfigReader&, ModelShape* model);
void Apertus(const ConfigReader&, ModelShape* model);
void Lfm2(const ConfigReader& config, ModelShape* model);
void FalconH1(const ConfigReader& config, ModelShape* model);
void Jamba(const ConfigReader&, ModelShape* model);
void MiMo(const ConfigReader& config, ModelShape* model);
bool MiMoSlides(const ConfigReader& config, int64_t i);
void SharedIndices(const ConfigReader& config, ModelShape* model);
void PerLayerInputs(const ConfigReader& config, ModelShape* model);
void Gemma3n(const ConfigReader& config, ModelShape* model);
void Gemma4(const ConfigReader& config, ModelShape* model);
void DeepSeekV4(const ConfigReader& config, ModelShape* model);

}  // namespace contraflow
