// The forward product with SwiGLU behind it. The gates are a product of their own, which the second one reads tile by tile while it makes
// up: the activation costs one read of the gates and one write of itself, hidden behind multiplications.
#include "ops/matmul_swiglu.h"

#ifdef BALEEN_FUSED_PRODUCTS
#include "ops/gpu/fused_product.cuh"
#include "ops/gpu/swiglu.cuh"

namespace baleen::ops::gpu {
namespace {

// silu(gate) · up, of up as it is written.
template <class Fragment>
struct GatedActivation;
template <int N>
struct GatedActivation<cutlass::Array<float, N>> {
  using Fragment = cutlass::Array<float, N>;
  __device__ Fragment operator()(const Fragment& up, const Fragment& gate) const {
    Fragment result;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < N; ++i) result[i] = gate[i] * fast_sigmoid(gate[i]) * static_cast<float>(cutlass::bfloat16_t(up[i]));
    return result;
  }
};

using Tile = FusedTile<128, 128>;
// 0: sums, up. 1: gates. 2: up written. 3: the activation of 2 and 1.
using Ending = tree::Sm90TopologicalVisitor<float, cute::tuple<cute::seq<>, cute::seq<>, cute::seq<0>, cute::seq<2, 1>>, Tile::Sums,
                                            Tile::Source, Tile::Store, Tile::Result<GatedActivation>>;
using Product = FusedProduct<Tile, Ending, cutlass::layout::ColumnMajor>;

}  // namespace

bool matmul_swiglu(Stream& stream, const Tensor& out, const Tensor& gate_up, const Matrix& a, const Matrix& b, void* workspace) {
  const std::int64_t columns = out.size(1);
  BALEEN_CHECK(b.transposed && b.rows == 2 * columns && gate_up.size(1) == 2 * columns, b.rows, columns, gate_up.size(1));
  const Matrix gates = Matrix(gate_up).column_range(0, columns), ups = Matrix(gate_up).column_range(columns, columns);
  Matrix gate_weight = b, up_weight = b;
  gate_weight.rows = up_weight.rows = columns;
  up_weight.data = static_cast<BFloat16*>(b.data) + columns * b.stride;
  if (a.transposed || !Product::fits(stream, out, {out, gates, ups, a, up_weight})) return false;
  matmul(stream, gates, a, gate_weight, false, Tensor(), workspace);
  Product::enqueue(stream, out, a, up_weight, gates, {{}, {}, {static_cast<cutlass::bfloat16_t*>(ups.data), ending_stride(ups.stride)}, {}},
                   "a product with SwiGLU");
  return true;
}

}  // namespace baleen::ops::gpu
#else
namespace baleen::ops::gpu {

bool matmul_swiglu(Stream&, const Tensor&, const Tensor&, const Matrix&, const Matrix&, void*) {
  return false;
}

}  // namespace baleen::ops::gpu
#endif
