// Products with an own ending, built from CUTLASS 3 (headers that scripts/fetch-gpu-headers.sh fetches): tiles of bf16 come through the
// tensor memory accelerator, two groups of warps take turns at multiplying and at what comes behind, and what happens to a tile of sums
// before it is written is a tree of visitors (cutlass/epilogue/fusion). Hopper alone.
#pragma once

#include <cutlass/cutlass.h>
#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/epilogue/fusion/sm90_callbacks_tma_warpspecialized.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>

#include "base/error.h"
#include "device/gpu_api.h"
#include "ops/gpu/kernel.cuh"
#include "ops/gpu/multiprocessors.h"
#include "ops/matmul.h"

namespace baleen::ops::gpu {

namespace tree = cutlass::epilogue::fusion;

// A row-major matrix of an ending: elements from one row to the next, one column, one batch.
using EndingStride = cute::Stride<std::int64_t, cute::_1, std::int64_t>;
inline EndingStride ending_stride(std::int64_t stride) {
  return {stride, cute::_1{}, 0};
}

// The kinds of tiles and the nodes of trees for a tile of `Rows` x `Columns`.
template <int Rows, int Columns>
struct FusedTile {
  static constexpr int rows = Rows, columns = Columns;
  using Element = cutlass::bfloat16_t;
  using Shape = cute::Shape<cute::Int<Rows>, cute::Int<Columns>, cute::_64>;
  using Cluster = cute::Shape<cute::_2, cute::_1, cute::_1>;  // two blocks share the tile of b that both need
  using Schedule = cutlass::epilogue::TmaWarpSpecialized;
  using Part = cutlass::epilogue::collective::EpilogueTileAuto;
  using Description = cutlass::epilogue::collective::detail::EpilogueDescriptor<Shape, Part, Element, Element, Schedule>;
  using LoadDescription = cutlass::epilogue::collective::detail::AuxLoadDescriptor<Description, EndingStride, Element>;
  using StoreDescription = cutlass::epilogue::collective::detail::AuxStoreDescriptor<Description, EndingStride, Element>;
  static constexpr auto rounding = cutlass::FloatRoundStyle::round_to_nearest;

  using Sums = tree::Sm90AccFetch;
  using Source = tree::Sm90SrcFetch<Element>;
  using Load = tree::Sm90AuxLoad<LoadDescription::Stages, typename LoadDescription::EpilogueTile, Element, EndingStride,
                                 typename LoadDescription::SmemLayoutAtom, typename LoadDescription::CopyOpS2R>;
  using Store = tree::Sm90AuxStore<StoreDescription::Stages, typename StoreDescription::EpilogueTile, Element, rounding, EndingStride,
                                   typename StoreDescription::SmemLayoutAtom, typename StoreDescription::CopyOpR2S>;
  template <template <class> class Function>
  using Compute = tree::Sm90Compute<Function, float, float, rounding>;
  template <template <class> class Function>
  using Result = tree::Sm90Compute<Function, Element, float, rounding>;
};

// out[M, N] = Tree(a[M, K] · b[K, N], source[M, N], …). LayoutOfB: RowMajor for b as it is, ColumnMajor for one stored as [N, K].
template <class Tile, class Tree, class LayoutOfB>
class FusedProduct {
  using Element = typename Tile::Element;
  using Hopper = cutlass::arch::Sm90;
  using Unit = cutlass::arch::OpClassTensorOp;
  using Row = cutlass::layout::RowMajor;
  static constexpr int aligned = 8;  // elements: 16 bytes
  using Ending =
      typename cutlass::epilogue::collective::CollectiveBuilder<Hopper, Unit, typename Tile::Shape, typename Tile::Cluster,
                                                                typename Tile::Part, float, float, Element, Row, aligned, Element, Row,
                                                                aligned, typename Tile::Schedule, Tree>::CollectiveOp;
  using Main = typename cutlass::gemm::collective::CollectiveBuilder<
      Hopper, Unit, Element, Row, aligned, Element, LayoutOfB, aligned, float, typename Tile::Shape, typename Tile::Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename Ending::SharedStorage))>,
      cutlass::gemm::KernelTmaWarpSpecializedPingpong>::CollectiveOp;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Main, Ending, cutlass::gemm::PersistentScheduler>;
  using Launcher = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;

 public:
  using EndingArguments = decltype(typename Launcher::Arguments{}.epilogue.thread);

  // Whether rows of these matrices, the product among them, can be moved by whole accesses, and its tiles keep the GPU busy: below, the
  // library splits sums among blocks, which this does not.
  static bool fits(Stream& stream, const Matrix& product, std::initializer_list<Matrix> matrices) {
    const std::int64_t tiles = (product.rows + Tile::rows - 1) / Tile::rows * ((product.columns + Tile::columns - 1) / Tile::columns);
    if (tiles < 2 * multiprocessors(stream)) return false;
    for (const Matrix& m : matrices)
      if (m.dtype != DType::bf16 || m.stride % aligned != 0 || m.columns % aligned != 0 ||
          reinterpret_cast<std::uintptr_t>(m.data) % (aligned * sizeof(Element)) != 0 || m.rows > INT32_MAX)
        return false;
    return true;
  }

  static void enqueue(Stream& stream, const Matrix& out, const Matrix& a, const Matrix& b, const Matrix& source,
                      const EndingArguments& ending, const char* what) {
    typename Launcher::Arguments arguments;
    arguments.mode = cutlass::gemm::GemmUniversalMode::kGemm;
    arguments.problem_shape = {static_cast<int>(out.rows), static_cast<int>(out.columns), static_cast<int>(a.columns), 1};
    arguments.mainloop.ptr_A = static_cast<const Element*>(a.data);
    arguments.mainloop.ptr_B = static_cast<const Element*>(b.data);
    arguments.mainloop.dA = {a.stride, {}, 0};
    if constexpr (std::is_same_v<LayoutOfB, Row>)
      arguments.mainloop.dB = {cute::_1{}, b.stride, 0};
    else
      arguments.mainloop.dB = {b.stride, cute::_1{}, 0};
    arguments.epilogue.thread = ending;
    arguments.epilogue.ptr_C = static_cast<const Element*>(source.data);
    arguments.epilogue.dC = ending_stride(source.stride);
    arguments.epilogue.ptr_D = static_cast<Element*>(out.data);
    arguments.epilogue.dD = ending_stride(out.stride);
    arguments.hw_info.sm_count = multiprocessors(stream);
    const gpuStream_t native = native_stream(stream);
    Launcher launcher;
    BALEEN_CHECK(launcher.can_implement(arguments) == cutlass::Status::kSuccess, what, out.rows, out.columns, a.columns);
    if (launcher.initialize(arguments, nullptr, native) != cutlass::Status::kSuccess || launcher.run(native) != cutlass::Status::kSuccess) {
      check_launch(what);
      throw Error(ExitCode::rank_failed, "a GPU kernel could not be started", what,
                  "run again; if it stays, report it with the command and config");
    }
  }
};

}  // namespace baleen::ops::gpu
