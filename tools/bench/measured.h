#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace contraflow {

/// A run that somebody measured and published, with what is needed to predict it.
struct MeasuredRow {
  std::string name, model, gpu, schedule = "1f1b", partition = "even", recompute = "none";
  std::string optimizer = "adam", activations = "ideal";
  std::string anchor;    ///< "TABLE/NAME" of the row that the calibration fits
  std::string left_out;  ///< why nothing is predicted; else empty
  int gpus = 1, tp = 1, cp = 1, pp = 1, ep = 1, etp = 1, chunks = 0, microbatches = 1, zero = 0;
  int64_t sequence = 4096, micro_batch = 1;
  double workspace = 0;  ///< bytes, as the source has measured them
  bool fp8 = false;
  bool tp_overlap = false, moe_overlap = false;  ///< communication overlaps compute
  bool assumed = false;                          ///< some inputs are not published
  std::optional<double> seconds;                 ///< of a step
  std::optional<double> bytes;                   ///< of the fullest rank
};

/// Rows of one source.
struct MeasuredTable {
  std::string name;                 ///< the stem of its file, "simumax-b200"
  std::string title, source, note;  ///< note: what was assumed; may be empty
  std::vector<MeasuredRow> rows;
};

/// Reads a table: an object with "title", "source", "note", "every" (fields of all rows) and
/// "rows". Throws Error that begins with `place`, with the JSON path.
MeasuredTable ReadMeasured(std::string_view text, const std::string& place,
                           const std::string& name);

/// Reads the tables of a folder in the order of their names, or one file.
std::vector<MeasuredTable> ReadMeasuredTables(const std::string& path);

/// Prediction of a row.
struct Predicted {
  double seconds = 0;
  double bytes = 0;
};

/// Predicts a row from a config.json in `models`, a folder. All efficiencies are multiplied by
/// `factor`, up to 1. Throws Error that begins with the row's name.
Predicted Predict(const MeasuredRow& row, const std::string& models, double factor = 1);

/// The factor with which the prediction of a row's step is the measured one.
double Calibrate(const MeasuredRow& row, const std::string& models);

}  // namespace contraflow
