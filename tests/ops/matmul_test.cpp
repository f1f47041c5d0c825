#include "ops/matmul.h"

#include "device/device.h"
#include "ops/golden.h"
#include "ops/support.h"

namespace baleen::ops::testing {
namespace {

struct Case {
  std::int64_t m, n, k;
  bool a_transposed, b_transposed, accumulate;
  std::int64_t padding;  // elements beyond a row's end in each array
};

// A stored matrix with `padding` more elements a row, which nobody may touch.
Matrix stored(Array& array, std::int64_t rows, std::int64_t columns, std::int64_t padding, bool transposed) {
  const Matrix matrix(array.flat().data(), DType::f32, rows, columns, columns + padding);
  return transposed ? matrix.transpose() : matrix;
}

void multiply(const Matrix& out, const Matrix& a, const Matrix& b, bool accumulate) {
  const Workspace workspace(cpu::matmul_workspace(out, a, b));
  cpu::matmul(out, a, b, accumulate, workspace.data());
}

class MatmulShapes : public ::testing::TestWithParam<Case> {};

TEST_P(MatmulShapes, AgreesWithANaiveFloat64Product) {
  const ThreadsScope threads(2);
  const auto [m, n, k, a_transposed, b_transposed, accumulate, padding] = GetParam();
  const std::int64_t a_rows = a_transposed ? k : m, a_columns = a_transposed ? m : k;
  const std::int64_t b_rows = b_transposed ? n : k, b_columns = b_transposed ? k : n;
  Array a = Array::normal(1, a_rows * (a_columns + padding)), b = Array::normal(2, b_rows * (b_columns + padding));
  const Array start = Array::normal(3, m * (n + padding));
  const auto run = [&] {
    Array out = start;
    if (!accumulate)
      for (std::int64_t i = 0; i < m; ++i)
        for (std::int64_t j = 0; j < n; ++j) out[i * (n + padding) + j] = poison;
    multiply(stored(out, m, n, padding, false), stored(a, a_rows, a_columns, padding, a_transposed),
             stored(b, b_rows, b_columns, padding, b_transposed), accumulate);
    return out;
  };
  const Array out = run();
  std::vector<double> want = start.doubles();  // what lies beyond the columns stays
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = accumulate ? start[i * (n + padding) + j] : 0.0;
      for (std::int64_t l = 0; l < k; ++l) {
        const double left = a[a_transposed ? l * (a_columns + padding) + i : i * (a_columns + padding) + l];
        const double right = b[b_transposed ? j * (b_columns + padding) + l : l * (b_columns + padding) + j];
        sum += left * right;
      }
      want[static_cast<std::size_t>(i * (n + padding) + j)] = sum;
    }
  EXPECT_LE(relative_error(out, want), fp32_bound);
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = n; j < n + padding; ++j) EXPECT_EQ(out[i * (n + padding) + j], start[i * (n + padding) + j]);
  EXPECT_TRUE(run().same_bits(out));
}

std::vector<Case> shapes() {
  std::vector<Case> cases;
  for (const bool a_transposed : {false, true})
    for (const bool b_transposed : {false, true})
      for (const bool accumulate : {false, true})
        for (const std::int64_t padding : {0, 5})
          for (const auto& [m, n, k] :
               {std::array<std::int64_t, 3>{1, 1, 1}, {1, 37, 19}, {33, 1, 8}, {7, 13, 1}, {65, 47, 130}, {5, 7, 8200}})
            cases.push_back({m, n, k, a_transposed, b_transposed, accumulate, padding});
  return cases;
}
INSTANTIATE_TEST_SUITE_P(All, MatmulShapes, ::testing::ValuesIn(shapes()), [](const auto& instance) {
  const Case& c = instance.param;
  return std::to_string(c.m) + "x" + std::to_string(c.n) + "x" + std::to_string(c.k) + (c.a_transposed ? "_at" : "") +
         (c.b_transposed ? "_bt" : "") + (c.accumulate ? "_sum" : "") + (c.padding != 0 ? "_strided" : "");
});

// bf16 against the fp32 product of the same numbers, over one tile of each kind and over several with shorter ones at their ends.
TEST(Matmul, HalvesAreMultipliedInFp32AndRoundedOnce) {
  constexpr std::int64_t padding = 3;
  for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{1, 1, 1}, {33, 1, 8}, {7, 61, 19}, {530, 25, 40}, {21, 1040, 1100}})
    for (int kind = 0; kind < 16; ++kind) {
      const ThreadsScope threads(kind == 0 ? 2 : 1);
      if (k > 1000 && kind % 5 != 0) continue;  // of the large one: each operand both ways round, summed and not
      const bool a_transposed = (kind & 1) != 0, b_transposed = (kind & 2) != 0, accumulate = (kind & 4) != 0,
                 out_transposed = (kind & 8) != 0;
      const auto rows_of = [](bool transposed, std::int64_t rows, std::int64_t columns) { return transposed ? columns : rows; };
      const auto place = [&](const Tensor& tensor, bool transposed, std::int64_t rows, std::int64_t columns) {
        if (transposed) std::swap(rows, columns);
        const Matrix matrix(tensor.data(), tensor.dtype(), rows, columns, columns + padding);
        return transposed ? matrix.transpose() : matrix;
      };
      const auto room = [&](bool transposed, std::int64_t rows, std::int64_t columns) {
        return rows_of(transposed, rows, columns) * (rows_of(transposed, columns, rows) + padding);
      };
      HalfArray a(Array::normal(1, room(a_transposed, m, k))), b(Array::normal(2, room(b_transposed, k, n)));
      HalfArray out(Array::normal(3, room(out_transposed, m, n)));
      Array wide_a = a.floats(), wide_b = b.floats(), want = out.floats(), summed = out.floats();
      const auto at = [&](auto& of_out, auto& of_a, auto& of_b) {
        multiply(place(of_out.flat(), out_transposed, m, n), place(of_a.flat(), a_transposed, m, k), place(of_b.flat(), b_transposed, k, n),
                 accumulate);
      };
      const HalfArray before = out;
      at(want, wide_a, wide_b);
      at(summed, a, b);
      at(out, a, b);
      EXPECT_LE(relative_error(summed, want.doubles()), 1e-6) << m << ' ' << n << ' ' << k << ' ' << kind;
      const double error = relative_error(out.floats(), want.doubles());
      EXPECT_LE(error, 1e-2) << m << ' ' << n << ' ' << k << ' ' << kind;
      EXPECT_LE(error, 1.5 * relative_error(HalfArray(want).floats(), want.doubles()) + 1e-6) << m << ' ' << n << ' ' << k << ' ' << kind;
      const std::int64_t stored_rows = rows_of(out_transposed, m, n), stored_columns = rows_of(out_transposed, n, m);
      for (std::int64_t row = 0; row < stored_rows; ++row)
        for (std::int64_t column = stored_columns; column < stored_columns + padding; ++column) {
          const std::int64_t i = row * (stored_columns + padding) + column;
          ASSERT_EQ(out[i].bits, before[i].bits) << "beyond the columns";
        }
    }
}

// More columns to sum over than fit in a cache; the sum is rounded once, what was there before counted in.
TEST(Matmul, DeepSumsOfHalvesAreRoundedOnce) {
  const ThreadsScope threads(2);
  constexpr std::int64_t m = 6, n = 20, k = 8200;
  HalfArray a(Array::normal(1, m * k)), b(Array::normal(2, k * n)), start(Array::normal(3, m * n));
  const Array wide_a = a.floats(), wide_b = b.floats(), wide_start = start.floats();
  for (const bool accumulate : {false, true}) {
    HalfArray out = start;
    const auto matrix = [](const Tensor& tensor, std::int64_t rows, std::int64_t columns) {
      return Matrix(tensor.data(), tensor.dtype(), rows, columns, columns);
    };
    multiply(matrix(out.flat(), m, n), matrix(a.flat(), m, k), matrix(b.flat(), k, n), accumulate);
    std::vector<double> want;
    for (std::int64_t i = 0; i < m; ++i)
      for (std::int64_t j = 0; j < n; ++j) {
        double sum = accumulate ? static_cast<double>(wide_start[i * n + j]) : 0.0;
        for (std::int64_t l = 0; l < k; ++l) sum += static_cast<double>(wide_a[i * k + l]) * wide_b[l * n + j];
        want.push_back(sum);
      }
    EXPECT_LE(relative_error(out.floats(), want), 2e-3) << accumulate;  // one rounding to 8 bits
  }
}

// The shapes of a language model's head and layers, which are cut into pieces where the processor multiplies bf16, with rows that follow
// each other as they do there, and with `padding` elements between them, beyond the columns, which may not change.
struct HalvesCase {
  std::int64_t m, n, k;
  bool a_transposed, b_transposed, wide_out;
  std::int64_t padding;
};

class MatmulOfHalves : public ::testing::TestWithParam<HalvesCase> {};

TEST_P(MatmulOfHalves, AgreesWithANaiveFloat64Product) {
  const auto [m, n, k, a_transposed, b_transposed, wide_out, padding] = GetParam();
  const ThreadsScope threads(2);
  const std::int64_t a_rows = a_transposed ? k : m, a_columns = a_transposed ? m : k, a_stride = a_columns + padding;
  const std::int64_t b_rows = b_transposed ? n : k, b_columns = b_transposed ? k : n, b_stride = b_columns + padding,
                     out_stride = n + padding;
  HalfArray a(Array::normal(1, a_rows * a_stride)), b(Array::normal(2, b_rows * b_stride)), start(Array::normal(3, m * out_stride));
  const Array wide_a = a.floats(), wide_b = b.floats(), wide_start = start.floats();
  std::vector<double> product(static_cast<std::size_t>(m * n), 0.0);
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t l = 0; l < k; ++l) {
      const double left = wide_a[a_transposed ? l * a_stride + i : i * a_stride + l];
      double* const row = product.data() + i * n;
      for (std::int64_t j = 0; j < n; ++j) row[j] += left * static_cast<double>(wide_b[b_transposed ? j * b_stride + l : l * b_stride + j]);
    }
  const auto stored = [](const Tensor& tensor, std::int64_t rows, std::int64_t columns, std::int64_t stride, bool transposed) {
    const Matrix matrix(tensor.data(), tensor.dtype(), rows, columns, stride);
    return transposed ? matrix.transpose() : matrix;
  };
  for (const bool accumulate : {false, true}) {
    Array wide = wide_start;
    HalfArray narrow = start;
    multiply(stored(wide_out ? wide.flat() : narrow.flat(), m, n, out_stride, false),
             stored(a.flat(), a_rows, a_columns, a_stride, a_transposed), stored(b.flat(), b_rows, b_columns, b_stride, b_transposed),
             accumulate);
    const Array out = wide_out ? wide : narrow.floats();
    std::vector<double> want = wide_start.doubles();
    for (std::int64_t i = 0; i < m; ++i)
      for (std::int64_t j = 0; j < n; ++j) {
        double& value = want[static_cast<std::size_t>(i * out_stride + j)];
        value = (accumulate ? value : 0.0) + product[static_cast<std::size_t>(i * n + j)];
      }
    EXPECT_LE(relative_error(out, want), wide_out ? 1e-6 : 2e-3) << accumulate;  // one rounding to 8 bits
    for (std::int64_t i = 0; i < m; ++i)
      for (std::int64_t j = n; j < out_stride; ++j) ASSERT_EQ(out[i * out_stride + j], wide_start[i * out_stride + j]) << i << ' ' << j;
  }
}

INSTANTIATE_TEST_SUITE_P(All, MatmulOfHalves,
                         ::testing::Values(HalvesCase{65, 8250, 20, false, true, false, 0},    // logits: WideProduct
                                           HalvesCase{65, 8250, 21, false, true, false, 0},    //
                                           HalvesCase{65, 8250, 20, false, true, false, 5},    //
                                           HalvesCase{514, 9, 8201, false, false, false, 0},   // their inputs' gradient: DeepRowsProduct
                                           HalvesCase{514, 9, 8200, false, false, false, 5},   //
                                           HalvesCase{2100, 162, 101, true, false, true, 0},   // a weight's gradient: TransposedProduct
                                           HalvesCase{2100, 162, 100, true, false, true, 5},   //
                                           HalvesCase{190, 166, 1101, true, false, true, 0},   // of more tokens than are taken at a time
                                           HalvesCase{600, 330, 350, false, true, false, 0},   // a layer: RowsProduct
                                           HalvesCase{600, 330, 351, false, true, false, 0},   //
                                           HalvesCase{1311, 70, 370, false, false, false, 0},  // and its input's gradient
                                           HalvesCase{1311, 70, 370, false, false, true, 0}),  //
                         [](const auto& instance) {
                           const HalvesCase& c = instance.param;
                           return std::to_string(c.m) + "x" + std::to_string(c.n) + "x" + std::to_string(c.k) +
                                  (c.a_transposed ? "_at" : "") + (c.b_transposed ? "_bt" : "") + (c.wide_out ? "_fp32" : "") +
                                  (c.padding != 0 ? "_padded" : "");
                         });

TEST(Matmul, ABiasIsAddedToEveryRow) {
  const ThreadsScope threads(2);
  struct BiasCase {
    DType dtype;
    std::int64_t m, n, k, padding;
  };
  // The last one's rows are given out to the threads where the processor multiplies bf16.
  for (const auto& [dtype, m, n, k, padding] :
       {BiasCase{DType::f32, 9, 13, 21, 4}, {DType::bf16, 9, 13, 21, 4}, {DType::bf16, 600, 330, 350, 0}}) {
    Array a = Array::normal(1, m * k), b = Array::normal(2, n * k), bias = Array::normal(3, n), out(m * (n + padding), 7.0f);
    HalfArray half_a(a), half_b(b), half_bias(bias), half_out(out);
    const bool half = dtype == DType::bf16;
    if (half) a = half_a.floats(), b = half_b.floats(), bias = half_bias.floats();
    const auto matrix = [&, of = dtype](Array& wide, HalfArray& narrow, std::int64_t rows, std::int64_t columns, std::int64_t stride) {
      return Matrix(half ? narrow.flat().data() : wide.flat().data(), of, rows, columns, stride);
    };
    const Matrix to = matrix(out, half_out, m, n, n + padding), left = matrix(a, half_a, m, k, k),
                 right = matrix(b, half_b, n, k, k).transpose();
    const Workspace workspace(cpu::matmul_workspace(to, left, right));
    cpu::matmul_with_bias(to, left, right, half ? half_bias.flat() : bias.flat(), workspace.data());
    if (half) out = half_out.floats();
    std::vector<double> want;
    for (std::int64_t i = 0; i < m; ++i)
      for (std::int64_t j = 0; j < n + padding; ++j) {
        double sum = j < n ? static_cast<double>(bias[j]) : 7.0;
        for (std::int64_t l = 0; j < n && l < k; ++l) sum += static_cast<double>(a[i * k + l]) * b[j * k + l];
        want.push_back(sum);
      }
    EXPECT_LE(relative_error(out, want), half ? 5e-3 : fp32_bound) << dtype_name(dtype) << ' ' << m;
  }
}

TEST(Matmul, ProductOverADimensionOfZeroIsZero) {
  const ThreadsScope threads(2);
  Array out(6), nothing(0);
  const Matrix a(nothing.flat().data(), DType::f32, 2, 0, 0), b(nothing.flat().data(), DType::f32, 0, 3, 3);
  multiply(Matrix(out.tensor({2, 3})), a, b, false);
  for (std::int64_t i = 0; i < 6; ++i) EXPECT_EQ(out[i], 0.0f);
  Array kept(6, 4.0f);
  multiply(Matrix(kept.tensor({2, 3})), a, b, true);
  for (std::int64_t i = 0; i < 6; ++i) EXPECT_EQ(kept[i], 4.0f);
  Array right(12, 1.0f);
  multiply(Matrix(nothing.flat().data(), DType::f32, 0, 3, 3), Matrix(nothing.flat().data(), DType::f32, 0, 4, 4),
           Matrix(right.tensor({4, 3})), false);
}

TEST(Matmul, TransposedOutIsTheTransposedProduct) {
  const ThreadsScope threads(2);
  Array a = Array::normal(1, 5 * 7), b = Array::normal(2, 7 * 3), plain(15), transposed(15);
  multiply(Matrix(plain.tensor({5, 3})), Matrix(a.tensor({5, 7})), Matrix(b.tensor({7, 3})), false);
  multiply(Matrix(transposed.tensor({3, 5})).transpose(), Matrix(a.tensor({5, 7})), Matrix(b.tensor({7, 3})), false);
  std::vector<double> want;
  for (std::int64_t j = 0; j < 3; ++j)
    for (std::int64_t i = 0; i < 5; ++i) want.push_back(plain[i * 3 + j]);
  EXPECT_LE(relative_error(transposed, want), 1e-6);
}

TEST(Matmul, ColumnRangeIsAViewOfTheColumns) {
  Array array(24);
  const Matrix whole(array.tensor({4, 6}));
  const Matrix view = whole.column_range(2, 3);
  EXPECT_EQ(view.data, static_cast<float*>(whole.data) + 2);
  EXPECT_EQ(view.rows, 4);
  EXPECT_EQ(view.columns, 3);
  EXPECT_EQ(view.stride, 6);
  EXPECT_EQ(Matrix(nullptr, DType::f32, 4, 6, 6).column_range(2, 3).data, nullptr);  // in a dry run
  EXPECT_THROW(whole.column_range(4, 3), Error);
  EXPECT_THROW(whole.transpose().column_range(0, 1), Error);
}

TEST(Matmul, RefusesShapesAndDtypesThatDoNotFit) {
  const ThreadsScope threads(2);
  Array out(6), a(8), b(12);
  EXPECT_THROW(multiply(Matrix(out.tensor({2, 3})), Matrix(a.tensor({4, 2})), Matrix(b.tensor({4, 3})), false), Error);
  const Matrix half(a.flat().data(), DType::bf16, 2, 4, 4);
  EXPECT_THROW(multiply(Matrix(out.tensor({2, 3})), half, Matrix(b.tensor({4, 3})), false), Error);
}

TEST(Matmul, ADryRunStatesTheWorkspaceAndTouchesNothing) {
  const ThreadsScope threads(2);
  const auto device = create_cpu_device();
  const auto measuring = device->create_measuring_stream();
  Arena scratch;
  Context context{*measuring, scratch};
  const Matrix out(nullptr, DType::f32, 64, 32, 32), a(nullptr, DType::f32, 64, 48, 48), b(nullptr, DType::f32, 32, 48, 48);
  matmul(context, out, a, b.transpose());
  EXPECT_GE(scratch.peak(), cpu::matmul_workspace(out, a, b.transpose()));
  EXPECT_EQ(scratch.used(), 0u);
}

TEST(Matmul, LinearLayerAgreesWithPyTorch) {
  const ThreadsScope threads(2);
  const Golden golden("linear");
  Array x = golden.array("x"), weight = golden.array("weight"), d_y = golden.array("d_y"), y(9 * 13), d_x(9 * 21), d_weight(13 * 21, 0.0f);
  const Matrix x_(x.tensor({9, 21})), weight_(weight.tensor({13, 21})), d_y_(d_y.tensor({9, 13}));
  multiply(Matrix(y.tensor({9, 13})), x_, weight_.transpose(), false);
  multiply(Matrix(d_x.tensor({9, 21})), d_y_, weight_, false);
  multiply(Matrix(d_weight.tensor({13, 21})), d_y_.transpose(), x_, true);
  EXPECT_LE(relative_error(y, golden.want("y")), fp32_bound);
  EXPECT_LE(relative_error(d_x, golden.want("d_x")), fp32_bound);
  EXPECT_LE(relative_error(d_weight, golden.want("d_weight")), fp32_bound);
}

}  // namespace
}  // namespace baleen::ops::testing
