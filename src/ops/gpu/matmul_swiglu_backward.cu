// The product before SwiGLU's gradient with that gradient behind it: the gradient of the activation is never written.
#include "ops/matmul_swiglu.h"

#ifdef BALEEN_FUSED_PRODUCTS
#include "ops/gpu/fused_product.cuh"
#include "ops/gpu/swiglu.cuh"

namespace baleen::ops::gpu {
namespace {

template <class Fragment>
struct Sigmoid;
template <int N>
struct Sigmoid<cutlass::Array<float, N>> {
  using Fragment = cutlass::Array<float, N>;
  __device__ Fragment operator()(const Fragment& gate) const {
    Fragment result;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < N; ++i) result[i] = fast_sigmoid(gate[i]);
    return result;
  }
};

template <class Fragment>
struct UpGradient;
template <int N>
struct UpGradient<cutlass::Array<float, N>> {
  using Fragment = cutlass::Array<float, N>;
  __device__ Fragment operator()(const Fragment& d, const Fragment& gate, const Fragment& slope) const {
    Fragment result;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < N; ++i) result[i] = up_gradient(d[i], gate[i], slope[i]);
    return result;
  }
};

// The first input only puts the write of d_up before it.
template <class Fragment>
struct GateGradient;
template <int N>
struct GateGradient<cutlass::Array<float, N>> {
  using Fragment = cutlass::Array<float, N>;
  __device__ Fragment operator()(const Fragment&, const Fragment& d, const Fragment& gate, const Fragment& up,
                                 const Fragment& slope) const {
    Fragment result;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < N; ++i) result[i] = gate_gradient(d[i], gate[i], up[i], slope[i]);
    return result;
  }
};

using Tile = FusedTile<128, 128>;
// 0: sums, d. 1: gates. 2: up. 3: σ of 1. 4: d_up of 0, 1, 3. 5: 4 written. 6: d_gate.
using Edges = cute::tuple<cute::seq<>, cute::seq<>, cute::seq<>, cute::seq<1>, cute::seq<0, 1, 3>, cute::seq<4>, cute::seq<5, 0, 1, 2, 3>>;
using Ending = tree::Sm90TopologicalVisitor<float, Edges, Tile::Sums, Tile::Source, Tile::Load, Tile::Compute<Sigmoid>,
                                            Tile::Compute<UpGradient>, Tile::Store, Tile::Result<GateGradient>>;
using Product = FusedProduct<Tile, Ending, cutlass::layout::RowMajor>;

}  // namespace

bool matmul_swiglu_backward(Stream& stream, const Tensor& d_gate_up, const Matrix& a, const Matrix& b, const Tensor& gate_up) {
  const std::int64_t columns = b.columns;
  BALEEN_CHECK(gate_up.size(1) == 2 * columns && d_gate_up.size(1) == 2 * columns && d_gate_up.data() != gate_up.data(), columns,
               gate_up.size(1), d_gate_up.size(1));
  const Matrix gates = Matrix(gate_up).column_range(0, columns), ups = Matrix(gate_up).column_range(columns, columns);
  const Matrix d_gates = Matrix(d_gate_up).column_range(0, columns), d_ups = Matrix(d_gate_up).column_range(columns, columns);
  if (a.transposed || b.transposed || !Product::fits(stream, d_gates, {d_gates, d_ups, gates, ups, a, b})) return false;
  using Element = cutlass::bfloat16_t;
  Product::enqueue(stream, d_gates, a, b, gates,
                   {{},
                    {},
                    {static_cast<const Element*>(ups.data), Element(0), ending_stride(ups.stride)},
                    {},
                    {},
                    {static_cast<Element*>(d_ups.data), ending_stride(d_ups.stride)},
                    {}},
                   "a product with SwiGLU's gradient");
  return true;
}

}  // namespace baleen::ops::gpu
#else
namespace baleen::ops::gpu {

bool matmul_swiglu_backward(Stream&, const Tensor&, const Matrix&, const Matrix&, const Tensor&) {
  return false;
}

}  // namespace baleen::ops::gpu
#endif
