#pragma once

#include <string>
#include <string_view>

#include "tools/contraflow/report.h"
#include "tools/pictures/picture.h"

namespace contraflow {

/// Text for SVG and HTML: & < > and quotes as entities.
std::string EscapeMarkup(std::string_view text);

/// The picture as a self-contained SVG drawing: every box says what and when under the pointer.
std::string DrawSvg(const Picture& picture);

/// A self-contained HTML page: the drawing, what its colours mean, and the figures.
std::string DrawHtml(const Picture& picture, const Plan& plan, const Report& report);

}  // namespace contraflow
