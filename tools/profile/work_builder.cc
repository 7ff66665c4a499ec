#include "tools/profile/work_builder.h"

#include <algorithm>
#include <utility>

#include "compiler/files/json.h"

namespace contraflow {
namespace {

double Real(int64_t whole) { return static_cast<double>(whole); }

/// "4, 0, 10 bytes"
std::string Passes(int64_t f, int64_t b, int64_t w) {
  return std::to_string(f) + ", " + std::to_string(b) + ", " + std::to_string(w) + " bytes";
}

}  // namespace

std::string Product(std::initializer_list<int64_t> factors) {
  std::string text;
  for (const int64_t factor : factors) text += (text.empty() ? "" : " x ") + std::to_string(factor);
  return text;
}

void WorkBuilder::Add(LayerPart part) {
  part.mlp = mlp_;
  work_.parts.push_back(std::move(part));
}

void WorkBuilder::Add(const Linear& linear) {
  const bool fp8 = setup.fp8 && linear.fp8;
  const double rows = Real(linear.rows), in = Real(linear.in), out = Real(linear.out);
  const double weights = in * out * Real(linear.matrices);
  const double operand = fp8 ? 1 + setup.recipe->scales : Real(kBf16);
  const double flops = 2 * rows * in * out;
  const double read = operand * (rows * in + weights), write = Real(kBf16) * rows * out;
  const double gradient_read = operand * (rows * out + weights);
  // The fp32 gradient is added to: read and written.
  const double gradients = operand * rows * (in + out) + 8 * weights;
  Add(LayerPart{.name = linear.name,
                .kind = linear.kind,
                .fp8 = fp8,
                .f = {flops, read + write},
                .b = {flops, gradient_read + Real(kBf16) * rows * in},
                .w = {flops, gradients},
                .formula = Product({2, linear.rows, linear.in, linear.out})});
  const double parameters = weights + (linear.bias ? out * Real(linear.matrices) : 0);
  work_.parameters += parameters;
  if (linear.kind == WorkKind::kExperts) work_.expert_parameters += parameters;
  if (linear.kind != WorkKind::kHead) {
    work_.matrix_parameters += weights;
    // Five iterations of Newton and Schulz (arXiv 2502.16982, section 2.1), each with a product of
    // the short sides, one of that with itself, and one with the matrix.
    const double shorter = std::min(in, out), longer = std::max(in, out);
    work_.orthogonal_flops += 5 * Real(linear.matrices) *
                              (4 * shorter * shorter * longer + 2 * shorter * shorter * shorter);
  }
  if (!fp8) return;
  if (linear.cast_in) cast_f_ += 3 * rows * in;
  if (linear.cast_out) cast_b_ += 3 * rows * out;
  cast_w_ += setup.recipe->second_cast * rows * (in + out);
}

void WorkBuilder::AddMemory(const std::string& name, int64_t rows, int64_t width, int64_t f,
                            int64_t b, int64_t w) {
  const double elements = Real(rows) * Real(width);
  Add(LayerPart{.name = name,
                .f = {0, elements * Real(f)},
                .b = {0, elements * Real(b)},
                .w = {0, elements * Real(w)},
                .formula = Product({rows, width}) + " x " + Passes(f, b, w)});
}

void WorkBuilder::AddGather(int64_t rows, int64_t devices, int64_t f, int64_t b, int64_t w) {
  if (devices == 1) return;
  const int64_t others = rows / devices * (devices - 1);
  const double bytes = Real(others) * Real(hidden) * Real(kBf16);
  Add(LayerPart{
      .name = "gather and scatter",
      .kind = WorkKind::kTensorParallel,
      .f = {0, Real(f) * bytes, Real(f)},
      .b = {0, Real(b) * bytes, Real(b)},
      .w = {0, Real(w) * bytes, Real(w)},
      .formula = Product({others, hidden}) + " x " + Passes(f * kBf16, b * kBf16, w * kBf16)});
}

void WorkBuilder::AddParameters(int64_t rows, int64_t width) {
  work_.parameters += Real(rows) * Real(width);
}

void WorkBuilder::Keep(const std::string& name, KeptUntil until, int64_t rows, int64_t width,
                       int64_t bytes, std::optional<Value> value) {
  const bool to_w = until == KeptUntil::kW;
  if (!value && until != KeptUntil::kFromBToW) {
    value = mlp_ ? (to_w ? Value::hidden : Value::gate) : (to_w ? Value::attention : Value::scores);
  }
  work_.kept.push_back({name, until, Real(rows) * Real(width) * Real(bytes), value});
}

void WorkBuilder::EndHalf() {
  if (cast_w_ > 0) {
    Add(LayerPart{.name = "casts to fp8",
                  .f = {0, cast_f_},
                  .b = {0, cast_b_},
                  .w = {0, cast_w_},
                  .formula = "3 bytes of each input, 3 of each gradient, " +
                             FormatReal(setup.recipe->second_cast) + " of both"});
  }
  cast_f_ = cast_b_ = cast_w_ = 0;
  mlp_ = true;
}

}  // namespace contraflow
