#pragma once

#include "compiler/files/json.h"
#include "runtime/model/model.h"

namespace contraflow {

/// The fields of ReadModel's files as an object of a document, and the model that ModelToJson wrote
/// there. Reading throws Error like ReadModel; fields that are left out are those of `model`.
Json ModelToJson(const Model& model);
Model ModelFromJson(const JsonCursor& object, Model model = {});

}  // namespace contraflow
