// Matrix products through the vendor's library. Which of its methods is fastest for a shape is timed once, on the shape's first use outside
// of a graph, and kept in memory and on disk; small products, deterministic streams and shapes first met while a graph is recorded take
// what the library recommends.
#include "ops/matmul.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <filesystem>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/hash.h"
#include "device/gpu_api.h"
#include "ops/gpu/launch.h"
#include "ops/gpu/matmul_common.h"
#include "ops/gpu/matmul_methods.h"
#include "ops/matmul_gelu.h"

namespace baleen::ops::gpu {
namespace {

// The stride of a single row is never used; the library wants one that is not too small.
std::int64_t stride_of(const Matrix& m) {
  return m.rows == 1 ? m.columns : m.stride;
}

// Bytes that an address is surely a multiple of, as the library asks: powers of two up to 256.
std::uint32_t alignment_of(const void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  return address == 0 ? 256u : static_cast<std::uint32_t>(std::min<std::uintptr_t>(256, address & (~address + 1)));
}

// A description of the library that is destroyed with its owner.
template <class Handle>
class Owned {
 public:
  using Destroy = gpublasStatus_t (*)(Handle);
  explicit Owned(Destroy destroy) : destroy_(destroy) {}
  ~Owned() {
    if (handle_ != nullptr) destroy_(handle_);
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  Handle* out() { return &handle_; }
  Handle get() const { return handle_; }

 private:
  Handle handle_ = nullptr;
  Destroy destroy_;
};

gpublasDataType_t type_of(const Matrix& m) {
  return m.dtype == DType::bf16 ? gpublas_bf16 : gpublas_f32;
}

// What one execution multiplies.
struct Operands {
  void* out;
  const void *a, *b;
  bool accumulate;
  void* workspace;
  const void* bias = nullptr;
  void* before = nullptr;  // of an activation: written by the forward product, read by the backward one
};

// What the kernel does with a product before it writes it.
enum class Epilogue { none, bias, bias_and_gelu, gelu_gradient };
struct Behind {
  Epilogue kind = Epilogue::none;
  std::int64_t before_stride = 0;
};

// One shape's descriptions and method. The library thinks in columns: it computes outᵀ = bᵀ · aᵀ, and a row-major matrix is its transpose.
class Product {
 public:
  Product(gpublasLtHandle_t handle, const Matrix& out, const Matrix& a, const Matrix& b, const Behind& behind, const Operands& on)
      : handle_(handle), blas_(gpu_blas()) {
    blas_check(blas_.desc_create(description_.out(), gpublas_compute_f32, gpublas_f32), "describing a product");
    const gpublasOperation_t b_operation = b.transposed ? gpublas_transpose : gpublas_normal;
    const gpublasOperation_t a_operation = a.transposed ? gpublas_transpose : gpublas_normal;
    blas_check(blas_.desc_set(description_.get(), gpublas_desc_transa, &b_operation, sizeof b_operation), "describing a product");
    blas_check(blas_.desc_set(description_.get(), gpublas_desc_transb, &a_operation, sizeof a_operation), "describing a product");
    if (behind.kind != Epilogue::none) {
      const gpublasLtEpilogue_t epilogue = behind.kind == Epilogue::bias            ? gpublas_epilogue_bias
                                           : behind.kind == Epilogue::bias_and_gelu ? gpublas_epilogue_bias_and_gelu
                                                                                    : gpublas_epilogue_gelu_gradient;
      set(gpublas_desc_epilogue, epilogue);
      if (on.before != nullptr) set(gpublas_desc_before_stride, behind.before_stride);
      set_pointers(on);
    }
    describe(b_, b);
    describe(a_, a);
    describe(out_, out);
  }

  // Methods in the order in which the library recommends them, at most `most`; none where it cannot do what stands behind the product.
  std::vector<gpublasLtMatmulAlgo_t> candidates(const Matrix& out, const Matrix& a, const Matrix& b, int most) const {
    Owned<gpublasLtMatmulPreference_t> preference(blas_.preference_destroy);
    blas_check(blas_.preference_create(preference.out()), "choosing a method");
    const auto prefer = [&](auto attribute, auto value) {
      blas_check(blas_.preference_set(preference.get(), attribute, &value, sizeof value), "choosing a method");
    };
    prefer(gpublas_pref_workspace, static_cast<std::uint64_t>(matmul_workspace));
    prefer(gpublas_pref_align_a, alignment_of(b.data));
    prefer(gpublas_pref_align_b, alignment_of(a.data));
    prefer(gpublas_pref_align_c, alignment_of(out.data));
    prefer(gpublas_pref_align_d, alignment_of(out.data));
    if (out.dtype == DType::bf16)
      prefer(gpublas_pref_reductions, gpublas_reduction_in_compute_type);  // else parts are rounded before their sum
    std::vector<gpublasLtMatmulHeuristicResult_t> results(static_cast<std::size_t>(most));
    int found = 0;
    const gpublasStatus_t status = blas_.heuristic(handle_, description_.get(), b_.get(), a_.get(), out_.get(), out_.get(),
                                                   preference.get(), most, results.data(), &found);
    if (status == gpublas_not_supported) return {};
    blas_check(status, "choosing a method");
    std::vector<gpublasLtMatmulAlgo_t> methods;
    for (int i = 0; i < found; ++i)
      if (results[static_cast<std::size_t>(i)].state == gpublas_success) methods.push_back(results[static_cast<std::size_t>(i)].algo);
    return methods;
  }
  // Whether the library takes a method that was kept from an earlier run.
  bool accepts(const gpublasLtMatmulAlgo_t& method) const {
    gpublasLtMatmulHeuristicResult_t result{};
    return blas_.check(handle_, description_.get(), b_.get(), a_.get(), out_.get(), out_.get(), &method, &result) == gpublas_success &&
           result.state == gpublas_success && result.workspaceSize <= matmul_workspace;
  }

  gpublasStatus_t run(gpuStream_t stream, const Operands& on, const gpublasLtMatmulAlgo_t& method) const {
    const float one = 1.0f, before = on.accumulate ? 1.0f : 0.0f;
    set_pointers(on);
    return blas_.matmul(handle_, description_.get(), &one, on.b, b_.get(), on.a, a_.get(), &before, on.out, out_.get(), on.out, out_.get(),
                        &method, on.workspace, matmul_workspace, stream);
  }
  void execute(gpuStream_t stream, const Operands& on) const { blas_check(run(stream, on, method_), "a matrix product"); }

  void set_method(const gpublasLtMatmulAlgo_t& method) {
    method_ = method;
    possible_ = true;
  }
  bool possible() const { return possible_; }
  const gpublasLtMatmulAlgo_t& method() const { return method_; }

 private:
  template <class Attribute, class Value>
  void set(Attribute attribute, const Value& value) const {
    blas_check(blas_.desc_set(description_.get(), attribute, static_cast<const void*>(&value), sizeof value), "describing a product");
  }
  void set_pointers(const Operands& on) const {
    if (on.bias != nullptr) set(gpublas_desc_bias, on.bias);
    if (on.before != nullptr) set(gpublas_desc_before, on.before);
  }
  void describe(Owned<gpublasLtMatrixLayout_t>& layout, const Matrix& m) const {
    blas_check(blas_.layout_create(layout.out(), type_of(m), static_cast<std::uint64_t>(m.columns), static_cast<std::uint64_t>(m.rows),
                                   stride_of(m)),
               "describing a matrix");
  }

  gpublasLtHandle_t handle_;
  const GpuBlasFunctions& blas_;
  Owned<gpublasLtMatmulDesc_t> description_{gpu_blas().desc_destroy};
  Owned<gpublasLtMatrixLayout_t> a_{gpu_blas().layout_destroy}, b_{gpu_blas().layout_destroy}, out_{gpu_blas().layout_destroy};
  gpublasLtMatmulAlgo_t method_{};
  bool possible_ = false;
};

class Timer {
 public:
  Timer() {
    gpu_check(gpuEventCreateWithFlags(&begin_, gpuEventDefault), "creating an event");
    gpu_check(gpuEventCreateWithFlags(&end_, gpuEventDefault), "creating an event");
  }
  ~Timer() {
    gpuEventDestroy(begin_);
    gpuEventDestroy(end_);
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  // Milliseconds that what `enqueue` puts on the stream takes.
  template <class Enqueue>
  float measure(gpuStream_t stream, const Enqueue& enqueue) {
    gpu_check(gpuEventRecord(begin_, stream), "timing");
    enqueue();
    gpu_check(gpuEventRecord(end_, stream), "timing");
    gpu_check(gpuEventSynchronize(end_), "timing");
    float milliseconds = 0;
    gpu_check(gpuEventElapsedTime(&milliseconds, begin_, end_), "timing");
    return milliseconds;
  }

 private:
  gpuEvent_t begin_ = nullptr, end_ = nullptr;
};

// The fastest of the methods on these operands, written to `on.out`, of whose present content nobody has any use.
gpublasLtMatmulAlgo_t fastest(const Product& product, gpuStream_t stream, const Operands& on,
                              const std::vector<gpublasLtMatmulAlgo_t>& methods) {
  constexpr float least_milliseconds = 2.0f;  // of measured work for each method
  constexpr int rounds = 3;
  Timer timer;
  std::vector<float> best(methods.size(), INFINITY);
  for (int round = 0; round < rounds; ++round)  // interleaved: a slow moment of the machine hits all of them
    for (std::size_t i = 0; i < methods.size(); ++i) {
      if (round > 0 && best[i] == INFINITY) continue;
      bool works = true;
      const auto repeat = [&](int times) {
        return timer.measure(stream, [&] {
          for (int t = 0; t < times; ++t) works = works && product.run(stream, on, methods[i]) == gpublas_success;
        });
      };
      const float once = repeat(1);  // also: the method is loaded
      const int times = std::clamp(static_cast<int>(least_milliseconds / rounds / std::max(once, 1e-3f)), 1, 20);
      const float each = repeat(times) / static_cast<float>(times);
      if (works) best[i] = std::min(best[i], each);
    }
  return methods[static_cast<std::size_t>(std::min_element(best.begin(), best.end()) - best.begin())];
}

ProductKey key_of(const Matrix& out, const Matrix& a, const Matrix& b, const Behind& behind, const Operands& on) {
  const auto types =
      static_cast<std::int64_t>(a.dtype) * 100 + static_cast<std::int64_t>(b.dtype) * 10 + static_cast<std::int64_t>(out.dtype);
  return {rows_of(out),           columns_of(out),
          columns_of(a),          stride_of(a),
          stride_of(b),           stride_of(out),
          a.transposed,           b.transposed,
          alignment_of(a.data),   alignment_of(b.data),
          alignment_of(out.data), types,
          on.accumulate,          static_cast<std::int64_t>(behind.kind),
          behind.before_stride};
}

struct ProductKeyHash {
  std::size_t operator()(const ProductKey& key) const { return hash_bytes(key.data(), sizeof(key)); }
};

MethodFile method_file(int device) {
  gpuDeviceProp properties{};
  gpu_check(gpuGetDeviceProperties(&properties, device), "asking for a GPU's properties");
  const std::string version = std::to_string(gpu_blas().version()), name = std::string(properties.name) + ", library " + version;
  const std::filesystem::path directory = cache_directory();
  std::string file = "matmul-" + std::string(properties.name) + "-" + version + ".txt";
  std::replace_if(file.begin(), file.end(), [](char c) { return c == ' ' || c == '/'; }, '-');
  return MethodFile(directory.empty() ? directory : directory / file, name);
}

class ProductCache {
 public:
  explicit ProductCache(int device) : file_(method_file(device)) { blas_check(gpu_blas().create(&handle_), "starting the matrix library"); }
  ~ProductCache() {
    products_.clear();
    gpu_blas().destroy(handle_);
  }
  ProductCache(const ProductCache&) = delete;
  ProductCache& operator=(const ProductCache&) = delete;

  const Product& find(Stream& stream, const Matrix& out, const Matrix& a, const Matrix& b, const Behind& behind, const Operands& on) {
    const ProductKey key = key_of(out, a, b, behind, on);
    if (const auto found = products_.find(key); found != products_.end()) return found->second;
    if (products_.size() >= most_products) products_.clear();  // generation may meet a new length at each call
    Product& product = products_.try_emplace(key, handle_, out, a, b, behind, on).first->second;
    choose(product, stream, key, out, a, b, on);
    return product;
  }

 private:
  // Leaves the product without a method where the library has none.
  void choose(Product& product, Stream& stream, const ProductKey& key, const Matrix& out, const Matrix& a, const Matrix& b, Operands on) {
    constexpr double worth_timing = 1e9;  // multiplications
    const GpuStreamTraits traits = gpu_stream_traits(stream);
    const double size = static_cast<double>(rows_of(out)) * static_cast<double>(columns_of(out)) * static_cast<double>(columns_of(a));
    const bool timed = !traits.deterministic && size >= worth_timing;
    if (const auto kept = timed ? file_.find(key) : std::nullopt) {
      const auto method = std::bit_cast<gpublasLtMatmulAlgo_t>(*kept);
      if (product.accepts(method)) return product.set_method(method);
    }
    const std::vector<gpublasLtMatmulAlgo_t> methods = product.candidates(out, a, b, timed ? most_candidates : 1);
    if (methods.empty()) return;
    product.set_method(methods.front());
    if (!timed || traits.recording || methods.size() == 1) return;
    const gpuStream_t native = native_stream(stream);
    if (on.accumulate) {  // out is a sum that is not done: results go elsewhere. Where there is no room, the recommendation stands
      const std::size_t bytes = static_cast<std::size_t>((out.rows - 1) * stride_of(out) + out.columns) * dtype_bytes(out.dtype);
      if (gpuMalloc(&on.out, bytes) != gpuSuccess) {
        gpuGetLastError();
        return;
      }
      gpu_check(gpuMemsetAsync(on.out, 0, bytes, native), "filling with zeros");
    }
    product.set_method(fastest(product, native, on, methods));
    if (on.accumulate) gpuFree(on.out);
    file_.add(key, std::bit_cast<MethodBits>(product.method()));
  }

  static constexpr std::size_t most_products = 1024;
  static constexpr int most_candidates = 16;
  gpublasLtHandle_t handle_ = nullptr;
  MethodFile file_;
  std::unordered_map<ProductKey, Product, ProductKeyHash> products_;
};

// One cache a thread and device, as on the CPU: a rank has one device and one thread that enqueues. Deterministic streams have their own,
// whose methods do not depend on what was timed before.
ProductCache& product_cache(const GpuStreamTraits& traits) {
  thread_local std::unordered_map<int, ProductCache> caches;
  return caches.try_emplace(2 * traits.device + (traits.deterministic ? 1 : 0), traits.device).first->second;
}

}  // namespace

void matmul(Stream& stream, const Matrix& out, const Matrix& a, const Matrix& b, bool accumulate, const Tensor& bias, void* workspace) {
  if (out.transposed) {
    BALEEN_CHECK(!bias.defined(), "a bias of an out that is stored transposed");
    return matmul(stream, out.transpose(), b.transpose(), a.transpose(), accumulate, bias, workspace);
  }
  check_shapes(out, a, b);
  if (out.rows == 0 || out.columns == 0) return;
  BALEEN_CHECK(!bias.defined() || (bias.elements() == out.columns && bias.dtype() == out.dtype && columns_of(a) > 0), bias.elements(),
               out.columns, columns_of(a));
  const gpuStream_t native = native_stream(stream);
  if (columns_of(a) == 0) {  // the sum of nothing
    const std::size_t row = dtype_bytes(out.dtype);
    if (!accumulate)
      gpu_check(gpuMemset2DAsync(out.data, static_cast<std::size_t>(stride_of(out)) * row, 0, static_cast<std::size_t>(out.columns) * row,
                                 static_cast<std::size_t>(out.rows), native),
                "filling with zeros");
    return;
  }
  const Operands on{out.data, a.data, b.data, accumulate, workspace, bias.defined() ? bias.data() : nullptr};
  const Behind behind{bias.defined() ? Epilogue::bias : Epilogue::none};
  const Product& product = product_cache(gpu_stream_traits(stream)).find(stream, out, a, b, behind, on);
  BALEEN_CHECK(product.possible(), "no method for the product", rows_of(out), columns_of(out), columns_of(a));
  product.execute(native, on);
}

namespace {

// A product with an activation: bf16 alone, and rows of whole accesses, as the library asks.
bool multiply_with_gelu(Stream& stream, const Matrix& out, const Matrix& before, const Matrix& a, const Matrix& b, Epilogue epilogue,
                        const void* bias, void* workspace) {
  check_shapes(out, a, b);
  BALEEN_CHECK(before.rows == out.rows && before.columns == out.columns && before.dtype == out.dtype, before.rows, before.columns);
  if (out.dtype != DType::bf16 || out.columns % 8 != 0 || before.stride % 8 != 0 || alignment_of(before.data) < 16) return false;
  if (out.rows == 0 || columns_of(a) == 0) return false;
  const Operands on{out.data, a.data, b.data, false, workspace, bias, before.data};
  const Product& product = product_cache(gpu_stream_traits(stream)).find(stream, out, a, b, {epilogue, before.stride}, on);
  if (product.possible()) product.execute(native_stream(stream), on);
  return product.possible();
}

}  // namespace

bool matmul_gelu(Stream& stream, const Matrix& out, const Matrix& before, const Matrix& a, const Matrix& b, const Tensor& bias,
                 void* workspace) {
  BALEEN_CHECK(bias.elements() == out.columns && bias.dtype() == out.dtype, bias.elements(), out.columns);
  return multiply_with_gelu(stream, out, before, a, b, Epilogue::bias_and_gelu, bias.data(), workspace);
}

bool matmul_gelu_backward(Stream& stream, const Matrix& out, const Matrix& a, const Matrix& b, const Matrix& before, void* workspace) {
  return multiply_with_gelu(stream, out, before, a, b, Epilogue::gelu_gradient, nullptr, workspace);
}

}  // namespace baleen::ops::gpu
