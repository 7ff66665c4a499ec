#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/plan/plan.h"
#include "compiler/verify/verify.h"

namespace contraflow {

struct Launch;  // tools/interop/launch.h

/// A release of PyTorch: 2.15.
struct TorchVersion {
  int major = 2, minor = 15;

  auto operator<=>(const TorchVersion&) const = default;
};
std::string ToString(TorchVersion version);
/// "2.9", "2.15.0" or "2.15.0+cu132". Throws Error that begins with --torch.
TorchVersion ParseTorchVersion(std::string_view text);

/// The first release that runs the plan.
TorchVersion TorchReleaseFor(const Plan& plan);

/// Which of PyTorch's two formats, and for which release.
struct TorchCsvOptions {
  bool messages = false;  ///< compute_comms; else compute_only
  TorchVersion version = {};
};

/// A plan in PyTorch's CSV for pipeline schedules: one row a rank, cells such as "2F0" and
/// "(0F7;7B3)OVERLAP_F_B". There B is the full backward and I the one for the input gradient. Form
/// compute_only is the compute order, from which torch.distributed.pipelining makes its own
/// communication; with messages, the plan's own in their order, and around them the cells that the
/// release wants in addition: WAIT_SEND_F where the gradient has come back and WAIT_SEND_B at the
/// end, REDUCE_GRAD and WAIT_REDUCE_GRAD after the last weight gradient of a stage, or where the
/// plan has its REDUCE, UNSHARD at the start of a row and RESHARD after the gradients. Groups are
/// posted one by one. Recompute and offload have no cells: see TorchNotes. Throws Error if a stage
/// lives on two ranks, which PyTorch cannot express; if the plan has components; if a loss is out
/// of turn (LossOutOfTurn); if the release lacks a cell, with the one that has it; and, with
/// messages, if there are none, or groups that are not sound one by one.
std::string WriteTorchCsv(const Plan& plan, const TorchCsvOptions& options = {});

/// Returns notes on the parts of a plan that the file lacks, for the modules to do: "checkpoint
/// stages 0,1: ...".
std::vector<std::string> TorchNotes(const Plan& plan);

/// How a CSV was read.
struct TorchCsvNotes {
  bool forwards_alone = false;     ///< the backwards of the plan were added: see CostsOfForwards
  std::vector<std::string> notes;  ///< for people
};

/// Reads such a file, or PyTorch's lowered form with communication (compute_comms), as it is:
/// stages live on the rank in whose row they stand. Without SEND and RECV cells it is a plan of
/// level compute, with them one of level comm, in whose programs they stand where they stand in the
/// file, with a STEP of every stage at the end. Empty cells, WAIT_SEND_F, WAIT_SEND_B, UNSHARD,
/// RESHARD, REDUCE_GRAD and WAIT_REDUCE_GRAD become marks. Throws Error "PLACE: row 2, column 5:
/// ..." (both from 1, columns in cells) for any other cell, for a stage on two rows or on none, for
/// a chunk that is done twice, never, or before what it needs on its own rank, for a message
/// between stages that have none, and for sizes over the limits of plan.h. All else that messages
/// and ranks together can have wrong is Verify's to say.
///
/// Reads the same printed as Python's lists, with None for an empty cell. If there is a BW, or a W
/// and no I, the letters are those before December 2024: B the input gradient, BW all of it. Adds a
/// backward after forwards alone. `notes` gets the last two and more.
Plan ReadTorchCsv(std::string_view text, const std::string& place, TorchCsvNotes* notes = nullptr);

/// Costs under which the added backwards take no time. Throws Error for costs of components.
CostModel CostsOfForwards(CostModel costs, const std::string& place);

/// Returns the first forward of the last stage that is out of order, or none. PyTorch keeps losses
/// in the order of these forwards and indexes them by micro-batch, so they must ascend. The plan
/// has one route.
std::optional<Finding> LossOutOfTurn(const Plan& plan);
/// Throws Error with its place in the CSV where there is one.
void RequireLossesInTurn(const Plan& plan, const std::string& place);

/// Returns the plan without messages and marks, at level compute.
Plan WithoutMessages(Plan plan);

/// Room for a hundred million cells.
inline constexpr int64_t kMaxCsvBytes = int64_t{1} << 30;
/// True if a file that begins so can be PyTorch's CSV, and no plan file.
bool LooksLikeTorchCsv(std::string_view beginning);

/// "row 2, column 5": where the instruction of a plan stands in the CSV that it was read from.
std::string CsvPlace(const Plan& plan, int rank, int index);

/// The arguments with which Megatron-LM runs this sound plan, one a line, quoted for a shell:
/// --pipeline-model-parallel-size, --pipeline-model-parallel-layout
/// (tools/cli/layer_layout.h), for several chunks a rank
/// --microbatch-group-size-per-virtual-pipeline-stage, and the number of layers, expert
/// parallelism, recompute of all of them, and the batch, for micro-batches of this many sequences.
///
/// `layers` as LayersOfStages (tools/interop/stage_layers.h) takes it. Throws Error that says why
/// for plans that Megatron-LM cannot run: it has 1F1B and interleaved 1F1B, on more than one rank,
/// in rounds of equal length of at least P micro-batches, of which the last may be shorter.
std::string WriteMegatronLayout(const Plan& plan, const std::optional<std::string>& layers,
                                int micro_batch = 1);

/// How torchtitan's configuration is written: as a "python" function with the flags in its file's
/// text, as these "flags" alone, or as "toml", which releases since February 2026 do not read.
bool IsTorchtitanForm(std::string_view form);

/// The values of torchtitan's configuration that make it run a plan that WriteTorchCsv takes, whose
/// file is at `csv`: the schedule only places the stages, module_fqns_per_model_part has the layers
/// that LayersOfStages finds, and where all stages are recomputed activation_checkpoint is full.
/// Throws Error if torchtitan cannot place the stages so, if the layers are not known, or if
/// torchtitan has no such layers (m). With `launch` also the degrees of all other parallelism, and
/// the tokens of a step; in no "toml".
std::string WriteTorchtitan(const Plan& plan, const std::string& csv,
                            const std::optional<std::string>& layers, std::string_view form,
                            const Launch* launch = nullptr);

/// Path of the CSV of such a file: next to it, with its name.
std::string CsvBeside(const std::string& output);

/// Why the values cannot be in this file, as the CSV has that name or it is TOML's; or "".
std::string FlawOfTorchtitanFile(const std::string& output, std::string_view form);

}  // namespace contraflow
