#include "kernels/gpu/matmul.h"

#include <cublasLt.h>

#include <array>
#include <bit>
#include <map>
#include <string>
#include <vector>

namespace contraflow::gpu {
namespace {

void Check(cublasStatus_t status, const std::string& what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw GpuError(what + ": " + cublasLtGetStatusString(status));
}

// cublasLt has one destroy function for each type.
struct Destroy {
  void operator()(cublasLtHandle_t handle) const { cublasLtDestroy(handle); }
  void operator()(cublasLtMatmulDesc_t product) const { cublasLtMatmulDescDestroy(product); }
  void operator()(cublasLtMatrixLayout_t layout) const { cublasLtMatrixLayoutDestroy(layout); }
  void operator()(cublasLtMatmulPreference_t wish) const { cublasLtMatmulPreferenceDestroy(wish); }
};
template <typename T>
using Owned = std::unique_ptr<std::remove_pointer_t<T>, Destroy>;

using Layout = Owned<cublasLtMatrixLayout_t>;
using Product = Owned<cublasLtMatmulDesc_t>;
using Wish = Owned<cublasLtMatmulPreference_t>;

template <typename T>
void Set(const Product& product, cublasLtMatmulDescAttributes_t attribute, T value) {
  Check(cublasLtMatmulDescSetAttribute(product.get(), attribute, &value, sizeof(value)),
        "cublasLtMatmulDescSetAttribute");
}
template <typename T>
void Set(const Layout& layout, cublasLtMatrixLayoutAttribute_t attribute, T value) {
  Check(cublasLtMatrixLayoutSetAttribute(layout.get(), attribute, &value, sizeof(value)),
        "cublasLtMatrixLayoutSetAttribute");
}
template <typename T>
void Set(const Wish& wish, cublasLtMatmulPreferenceAttributes_t attribute, T value) {
  Check(cublasLtMatmulPreferenceSetAttribute(wish.get(), attribute, &value, sizeof(value)),
        "cublasLtMatmulPreferenceSetAttribute");
}

/// A dense row-major x[rows x columns], which cublasLt calls x^T, column-major.
Layout NewLayout(cudaDataType_t type, int rows, int columns, int batch) {
  cublasLtMatrixLayout_t layout = nullptr;
  Check(cublasLtMatrixLayoutCreate(&layout, type, static_cast<uint64_t>(columns),
                                   static_cast<uint64_t>(rows), columns),
        "cublasLtMatrixLayoutCreate");
  Layout owned(layout);
  Set(owned, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<int32_t>(batch));
  Set(owned, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, int64_t{rows} * columns);
  return owned;
}

cublasOperation_t Operation(Transpose transpose) {
  return transpose == Transpose::kYes ? CUBLAS_OP_T : CUBLAS_OP_N;
}

/// d^T = op(b)^T op(a)^T, column-major: cublasLt's first operand is our b.
Product NewProduct(const MatmulShape& shape, int sms) {
  cublasLtMatmulDesc_t product = nullptr;
  Check(cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F),
        "cublasLtMatmulDescCreate");
  Product owned(product);
  Set(owned, CUBLASLT_MATMUL_DESC_TRANSA, Operation(shape.transpose_b));
  Set(owned, CUBLASLT_MATMUL_DESC_TRANSB, Operation(shape.transpose_a));
  Set(owned, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, static_cast<int32_t>(sms));
  return owned;
}

/// Schemes that sum the parts of a split k in fp32 and in a fixed order, or do not split it.
constexpr uint32_t kSchemes =
    CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;

Wish NewWish() {
  cublasLtMatmulPreference_t wish = nullptr;
  Check(cublasLtMatmulPreferenceCreate(&wish), "cublasLtMatmulPreferenceCreate");
  Wish owned(wish);
  Set(owned, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{Matmuls::kWorkBytes});
  Set(owned, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, kSchemes);
  for (const auto operand :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    Set(owned, operand, static_cast<uint32_t>(kMatmulAlignment));
  }
  return owned;
}

bool SumsInFixedOrder(const cublasLtMatmulAlgo_t& algorithm) {
  uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_MASK;
  size_t written = 0;
  Check(cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
                                             &scheme, sizeof(scheme), &written),
        "cublasLtMatmulAlgoConfigGetAttribute");
  return (scheme & ~kSchemes) == 0;
}

struct Prepared {
  Product product;
  Layout a, b, d;
  cublasLtMatmulAlgo_t algorithm;
};

Prepared Describe(const MatmulShape& shape, int sms) {
  const bool a_turned = shape.transpose_a == Transpose::kYes;
  const bool b_turned = shape.transpose_b == Transpose::kYes;
  return {NewProduct(shape, sms),
          NewLayout(CUDA_R_16BF, a_turned ? shape.k : shape.m, a_turned ? shape.m : shape.k,
                    shape.batch),
          NewLayout(CUDA_R_16BF, b_turned ? shape.n : shape.k, b_turned ? shape.k : shape.n,
                    shape.batch),
          NewLayout(shape.float_out ? CUDA_R_32F : CUDA_R_16BF, shape.m, shape.n, shape.batch),
          {}};
}

/// Best first, by cublasLt's estimate; at least one.
std::vector<cublasLtMatmulAlgo_t> AlgorithmsFor(cublasLtHandle_t handle, const MatmulShape& shape,
                                                const Prepared& described) {
  const Wish wish = NewWish();
  std::array<cublasLtMatmulHeuristicResult_t, 16> found = {};
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle, described.product.get(), described.b.get(), described.a.get(), described.d.get(),
      described.d.get(), wish.get(), static_cast<int>(found.size()), found.data(), &count);
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < count; ++i) {
    const cublasLtMatmulHeuristicResult_t& result = found[static_cast<size_t>(i)];
    if (result.state != CUBLAS_STATUS_SUCCESS || result.workspaceSize > Matmuls::kWorkBytes) {
      continue;
    }
    if (SumsInFixedOrder(result.algo)) algorithms.push_back(result.algo);
  }
  if (!algorithms.empty()) return algorithms;
  throw GpuError("matmul " + ToString(shape) +
                 ": cublasLt has no algorithm for it: " + cublasLtGetStatusString(status));
}

}  // namespace

struct Matmuls::Impl {
  int sms;
  Owned<cublasLtHandle_t> handle;
  std::map<MatmulShape, Prepared> prepared;

  const Prepared& At(const MatmulShape& shape) const {
    const auto found = prepared.find(shape);
    if (found != prepared.end()) return found->second;
    throw GpuError("matmul " + ToString(shape) + ": it was not prepared");
  }
};

Matmuls::Matmuls(int sms) : impl_(std::make_unique<Impl>()) {
  if (sms < 1) throw GpuError("matmuls need at least 1 SM");
  impl_->sms = sms;
  cublasLtHandle_t handle = nullptr;
  Check(cublasLtCreate(&handle), "cublasLtCreate");
  impl_->handle.reset(handle);
}
Matmuls::~Matmuls() = default;

int Matmuls::Candidates(const MatmulShape& shape) const {
  CheckShape(shape);
  return static_cast<int>(
      AlgorithmsFor(impl_->handle.get(), shape, Describe(shape, impl_->sms)).size());
}

void Matmuls::Prepare(const MatmulShape& shape, int candidate) {
  CheckShape(shape);
  if (impl_->prepared.count(shape) != 0) return;
  Prepared made = Describe(shape, impl_->sms);
  const auto algorithms = AlgorithmsFor(impl_->handle.get(), shape, made);
  CheckCandidate(shape, candidate, static_cast<int>(algorithms.size()));
  made.algorithm = algorithms[static_cast<size_t>(candidate)];
  impl_->prepared.emplace(shape, std::move(made));
}

void Matmuls::Prepare(const MatmulShape& shape, const MatmulAlgorithm& algorithm) {
  CheckShape(shape);
  if (impl_->prepared.count(shape) != 0) return;
  Prepared made = Describe(shape, impl_->sms);
  made.algorithm = std::bit_cast<cublasLtMatmulAlgo_t>(algorithm);
  cublasLtMatmulHeuristicResult_t result = {};
  const cublasStatus_t status =
      cublasLtMatmulAlgoCheck(impl_->handle.get(), made.product.get(), made.b.get(), made.a.get(),
                              made.d.get(), made.d.get(), &made.algorithm, &result);
  if (status != CUBLAS_STATUS_SUCCESS || result.workspaceSize > kWorkBytes ||
      !SumsInFixedOrder(made.algorithm)) {
    throw GpuError("matmul " + ToString(shape) + ": this algorithm cannot be used for it here" +
                   (status == CUBLAS_STATUS_SUCCESS
                        ? ""
                        : std::string(": ") + cublasLtGetStatusString(status)));
  }
  impl_->prepared.emplace(shape, std::move(made));
}

MatmulAlgorithm Matmuls::AlgorithmOf(const MatmulShape& shape) const {
  return std::bit_cast<MatmulAlgorithm>(impl_->At(shape).algorithm);
}

std::string Matmuls::Library() { return "cublasLt " + std::to_string(cublasLtGetVersion()); }

void Matmuls::Run(Stream stream, const MatmulShape& shape, const Bf16* a, const Bf16* b,
                  const void* c, void* d, void* work) const {
  const Prepared& prepared = impl_->At(shape);
  CheckOperands(shape, a, b, c, d, work);
  const float alpha = 1, beta = shape.add ? 1 : 0;
  Check(cublasLtMatmul(impl_->handle.get(), prepared.product.get(), &alpha, b, prepared.b.get(), a,
                       prepared.a.get(), &beta, shape.add ? c : d, prepared.d.get(), d,
                       prepared.d.get(), &prepared.algorithm, work, kWorkBytes,
                       static_cast<cudaStream_t>(stream.handle)),
        "matmul " + ToString(shape));
}

}  // namespace contraflow::gpu
