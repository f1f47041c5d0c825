// What the two forms of matrix products on a GPU have in common: matmul.cpp, which chooses a method, and plain_matmul.cpp.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"
#include "device/gpu_api.h"
#include "ops/gpu/launch.h"
#include "ops/matmul.h"

namespace baleen::ops::gpu {

inline void blas_check(gpublasStatus_t status, const char* call) {
  if (status != gpublas_success)
    throw Error(ExitCode::rank_failed, "the GPU's matrix library failed with status " + std::to_string(static_cast<int>(status)), call,
                "run again; if it stays, report it with the command and config");
}

inline std::int64_t rows_of(const Matrix& m) {
  return m.transposed ? m.columns : m.rows;
}

inline std::int64_t columns_of(const Matrix& m) {
  return m.transposed ? m.rows : m.columns;
}

inline void check_shapes(const Matrix& out, const Matrix& a, const Matrix& b) {
  BALEEN_CHECK(rows_of(a) == rows_of(out) && columns_of(a) == rows_of(b) && columns_of(b) == columns_of(out), rows_of(out), columns_of(out),
               rows_of(a), columns_of(a), rows_of(b), columns_of(b));
  for (const Matrix* m : {&out, &a, &b}) {
    BALEEN_CHECK(m->rows <= 1 || m->stride >= m->columns, m->rows, m->columns, m->stride);
    if (m->dtype != DType::f32 && m->dtype != DType::bf16) refuse_dtype("the matrix product", m->dtype);
  }
  BALEEN_CHECK(a.dtype == b.dtype && (out.dtype == a.dtype || out.dtype == DType::f32), dtype_name(a.dtype), dtype_name(b.dtype),
               dtype_name(out.dtype));
}

}  // namespace baleen::ops::gpu
