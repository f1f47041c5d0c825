// How products are cut into each thread's pieces does not depend on the type of their elements: here they are cut in fp32, which all
// processors multiply. Shapes of halves that are cut where the processor multiplies bf16 stand in matmul_test.cpp.
#include "ops/cpu/thread_products.h"

#include "ops/cpu/parallel.h"
#include "ops/support.h"

namespace baleen::ops::testing {
namespace {

struct Shape {
  std::int64_t m, n, k;
};

template <class P>
void run(const P& product, bool accumulate, void* workspace) {
  product.run(accumulate, workspace);
}
void run(const cpu::RowsProduct& product, bool accumulate, void* workspace) {
  product.run(cpu::sum_into(accumulate), workspace);
}

// Operands with `padding` elements beyond their rows' ends, and the product that the library makes of them at once.
class Operands {
 public:
  Operands(Shape shape, bool a_transposed, bool b_transposed, std::int64_t padding)
      : shape_(shape),
        padding_(padding),
        a_(side(1, shape.m, shape.k, a_transposed)),
        b_(side(2, shape.k, shape.n, b_transposed)),
        start_(Array::normal(3, shape.m * stride())),
        a_transposed_(a_transposed),
        b_transposed_(b_transposed) {}

  // `P` of them; what lies beyond the columns of its result must be as it was.
  template <class P>
  Array product(bool accumulate) {
    Array out = start_;
    const Matrix to = out_matrix(out);
    const P product(to, matrix(a_, shape_.m, shape_.k, a_transposed_), matrix(b_, shape_.k, shape_.n, b_transposed_));
    const Workspace workspace(product.workspace_bytes());
    run(product, accumulate, workspace.data());
    return out;
  }
  // With a bias, in pieces of rows and all at once.
  std::pair<Array, Array> biased() {
    Array out = start_, want = start_;
    const Matrix to = out_matrix(out), whole_to = out_matrix(want), a = matrix(a_, shape_.m, shape_.k, a_transposed_),
                 b = matrix(b_, shape_.k, shape_.n, b_transposed_);
    Array bias = Array::normal(4, shape_.n);
    const cpu::RowsProduct product(to, a, b);
    const Workspace workspace(product.workspace_bytes()), whole_workspace(cpu::matmul_workspace(whole_to, a, b));
    product.run(cpu::Addend::bias, workspace.data(), bias.flat().data());
    cpu::matmul_with_bias(whole_to, a, b, bias.flat(), whole_workspace.data());
    return {out, want};
  }
  Array whole(bool accumulate) {
    Array out = start_;
    const Matrix to = out_matrix(out), a = matrix(a_, shape_.m, shape_.k, a_transposed_), b = matrix(b_, shape_.k, shape_.n, b_transposed_);
    const Workspace workspace(cpu::matmul_workspace(to, a, b));
    cpu::matmul(to, a, b, accumulate, workspace.data());
    return out;
  }
  bool untouched_beyond(const Array& out) const {
    for (std::int64_t i = 0; i < shape_.m; ++i)
      for (std::int64_t j = shape_.n; j < stride(); ++j)
        if (out[i * stride() + j] != start_[i * stride() + j]) return false;
    return true;
  }

 private:
  std::int64_t stride() const { return shape_.n + padding_; }
  Array side(std::uint64_t key, std::int64_t rows, std::int64_t columns, bool transposed) const {
    if (transposed) std::swap(rows, columns);
    return Array::normal(key, rows * (columns + padding_));
  }
  Matrix matrix(Array& array, std::int64_t rows, std::int64_t columns, bool transposed) const {
    if (transposed) std::swap(rows, columns);
    const Matrix stored(array.flat().data(), DType::f32, rows, columns, columns + padding_);
    return transposed ? stored.transpose() : stored;
  }
  Matrix out_matrix(Array& out) const { return {out.flat().data(), DType::f32, shape_.m, shape_.n, stride()}; }

  Shape shape_;
  std::int64_t padding_;
  Array a_, b_, start_;
  bool a_transposed_, b_transposed_;
};

template <class P>
void compare(Shape shape, bool a_transposed, bool b_transposed, bool accumulate) {
  for (const std::int64_t padding : {0, 5}) {
    Operands operands(shape, a_transposed, b_transposed, padding);
    const ThreadsScope two(2);
    const Array out = operands.product<P>(accumulate), want = operands.whole(accumulate);
    EXPECT_LE(relative_error(out, want.doubles()), fp32_bound) << shape.m << 'x' << shape.n << 'x' << shape.k << ' ' << accumulate;
    EXPECT_TRUE(operands.untouched_beyond(out)) << shape.m << 'x' << shape.n << 'x' << shape.k;
    EXPECT_TRUE(operands.product<P>(accumulate).same_bits(out)) << "the second time";
    const ThreadsScope one(1);
    EXPECT_LE(relative_error(operands.product<P>(accumulate), want.doubles()), fp32_bound) << "of one thread";
  }
}

// One piece; whole ones; shorter ones at both ends.
TEST(ThreadProducts, WideOnesAreTheWholeProduct) {
  for (const Shape shape : {Shape{7, 30, 3}, {512, 1024, 32}, {530, 1100, 40}, {65, 1300, 700}})
    compare<cpu::WideProduct>(shape, false, true, /*accumulate=*/false);
  Operands operands({7, 30, 3}, false, true, 5);
  EXPECT_THROW(operands.product<cpu::WideProduct>(/*accumulate=*/true), Error);
}

// Tiles are there for every thread of a larger team, and none is left out.
TEST(ThreadProducts, WideOnesOfManyThreads) {
  const ThreadsScope many(7);
  Operands operands({70, 2000, 24}, false, true, 0);
  EXPECT_LE(relative_error(operands.product<cpu::WideProduct>(false), operands.whole(false).doubles()), fp32_bound);
}

TEST(ThreadProducts, AnExceptionInATaskReachesTheCaller) {
  for (const int threads : {1, 2}) {
    const ThreadsScope scope(threads);
    const auto fail_one = [](std::int64_t task, int) { BALEEN_CHECK(task != 3, task); };
    EXPECT_THROW(parallel_tasks(8, fail_one), Error) << threads;
  }
}

TEST(ThreadProducts, TransposedOnesAreTheWholeProduct) {
  for (const bool accumulate : {false, true})
    for (const Shape shape : {Shape{5, 9, 4}, {512, 64, 1024}, {700, 33, 130}, {70, 20, 2100}})
      compare<cpu::TransposedProduct>(shape, true, false, accumulate);
}

// The last one's rows are taken in several groups.
TEST(ThreadProducts, SumsOverManyColumnsAreTheWholeProduct) {
  for (const bool accumulate : {false, true})
    for (const Shape shape : {Shape{5, 9, 4}, {512, 16, 2048}, {1100, 20, 1500}, {37, 50, 5000}, {1100, 2048, 1200}})
      compare<cpu::DeepRowsProduct>(shape, false, false, accumulate);
}

// Of one piece of rows, of several and a shorter last one, with b both ways.
TEST(ThreadProducts, ThoseByRowsAreTheWholeProduct) {
  for (const Shape shape : {Shape{5, 9, 4}, {256, 64, 96}, {700, 33, 130}, {131, 200, 70}})
    for (const bool b_transposed : {false, true}) {
      for (const bool accumulate : {false, true}) compare<cpu::RowsProduct>(shape, false, b_transposed, accumulate);
      const ThreadsScope two(2);
      Operands operands(shape, false, b_transposed, 0);
      const auto [out, want] = operands.biased();
      EXPECT_LE(relative_error(out, want.doubles()), fp32_bound) << shape.m << 'x' << shape.n << 'x' << shape.k << " with a bias";
    }
}

}  // namespace
}  // namespace baleen::ops::testing
