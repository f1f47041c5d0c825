// A view of memory as an array: dtype, shape, pointer. Owns nothing; copying it copies the view. Row-major and contiguous.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "base/dtype.h"
#include "base/error.h"
#include "device/arena.h"

namespace baleen {

class Tensor {
 public:
  static constexpr int max_dims = 5;

  Tensor() = default;
  Tensor(void* data, DType dtype, std::initializer_list<std::int64_t> shape) : data_(data), dtype_(dtype) {
    BALEEN_CHECK(shape.size() <= max_dims, shape.size());
    for (std::int64_t extent : shape) shape_[dims_++] = extent;
  }

  void* data() const { return data_; }
  // The elements, which must be of type T.
  template <class T>
  T* as() const {
    BALEEN_CHECK(dtype_ == dtype_of<T>::value, "dtype", dtype_name(dtype_));
    return static_cast<T*>(data_);
  }
  DType dtype() const { return dtype_; }
  int dims() const { return dims_; }
  std::int64_t size(int dim) const { return shape_[dim < 0 ? dim + dims_ : dim]; }
  std::int64_t elements() const {
    std::int64_t product = 1;
    for (int dim = 0; dim < dims_; ++dim) product *= shape_[dim];
    return product;
  }
  std::size_t bytes() const { return static_cast<std::size_t>(elements()) * dtype_bytes(dtype_); }
  bool defined() const { return dims_ > 0; }

  // The same elements under another shape of the same count.
  Tensor reshape(std::initializer_list<std::int64_t> shape) const {
    Tensor view(data_, dtype_, shape);
    BALEEN_CHECK(view.elements() == elements(), view.elements(), elements());
    return view;
  }
  // Rows [begin, begin + count) of the first dim.
  Tensor rows(std::int64_t begin, std::int64_t count) const {
    BALEEN_CHECK(dims_ >= 1 && begin >= 0 && count >= 0 && begin + count <= shape_[0], begin, count, shape_[0]);
    Tensor view = *this;
    const std::int64_t row = shape_[0] == 0 ? 0 : elements() / shape_[0];
    view.shape_[0] = count;
    if (data_ != nullptr) view.data_ = static_cast<std::byte*>(data_) + static_cast<std::size_t>(begin * row) * dtype_bytes(dtype_);
    return view;
  }

 private:
  void* data_ = nullptr;
  std::array<std::int64_t, max_dims> shape_{};
  int dims_ = 0;
  DType dtype_ = DType::f32;
};

// The next tensor on an arena's stack; uninitialised, without memory while the arena measures.
inline Tensor allocate(Arena& arena, std::string_view name, DType dtype, std::initializer_list<std::int64_t> shape) {
  const std::size_t bytes = Tensor(nullptr, dtype, shape).bytes();
  return Tensor(arena.allocate(name, bytes), dtype, shape);
}

}  // namespace baleen
