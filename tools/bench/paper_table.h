#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace contraflow {

/// A figure of a published table beside what our generators give for the same costs: bubble rates,
/// (length - busy) / length, each by the measure that the paper took for that column.
struct PaperCell {
  std::string table;  ///< "table5"
  std::string model;
  int ranks = 0, microbatches = 0;
  std::string column;  ///< "1f1b", "zb-h2", "zb-2p_makespan"
  double published = 0;
  double ours = 0;  ///< to the four decimals of the paper
  double difference() const { return ours - published; }
};

/// The cells of Zero Bubble's tables 5 and 8 (Qi et al., arXiv 2401.10241): `document` has their
/// costs and figures, `place` begins the message of the Error it throws if it has not.
///
/// What stands behind a column: zb-h1 is our zb-1p, zb-h2 HandMadeZeroBubble(2),
/// zb-1p the heuristic of zb-2p with room for P activations. interleaved-1f1b has a chunk for each
/// layer of a rank, by the clock of the authors' script: there a message from the last rank to the
/// first (of gradients: from the first to the last) is waited for by the first micro-batch of a
/// round alone. Two more columns are measured with every message waited for, as everywhere else:
/// "interleaved-1f1b_waiting" is the same order, "interleaved-1f1b_rounds" the one with as many
/// rounds as are longer than P; both stand beside the published figure of interleaved-1f1b.
std::vector<PaperCell> MeasurePaper(std::string_view document, const std::string& place);

}  // namespace contraflow
