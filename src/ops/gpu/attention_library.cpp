#include "ops/gpu/attention_library.h"

#include "device/gpu.h"
#include "device/gpu_api.h"

#ifdef BALEEN_GPU_ATTENTION

#include <dlfcn.h>

#include <array>
#include <bit>
#include <exception>
#include <memory>
#include <unordered_map>

#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

#include "base/hash.h"
#include "base/log.h"

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // NOLINT: the header's contract: the library it takes its functions from
}

namespace baleen::ops::gpu {
namespace {

namespace fe = cudnn_frontend;
using fe::graph::Tensor_attributes;

// True once the library is loaded; tried once a process.
// False without a GPU: whoever plans for one there asks the library in vain.
bool library_loaded() {
  static const bool loaded = [] {
    if (!gpu_available()) return false;
    // Its own name (the loader's paths, LD_LIBRARY_PATH), then beside the matrix library's usual place.
    for (const char* name : {BALEEN_GPU_ATTENTION, BALEEN_GPU_ATTENTION_PATH})
      if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL); library != nullptr) {
        fe::cudnn_dlhandle = library;
        return true;
      }
    log::warning("attention runs through slower kernels: cannot load {} (install it, or add its folder to LD_LIBRARY_PATH)",
                 BALEEN_GPU_ATTENTION);
    return false;
  }();
  return loaded;
}

enum Uid : std::int64_t { uid_q = 1, uid_k, uid_v, uid_out, uid_lse, uid_d_out, uid_d_q, uid_d_k, uid_d_v };

// One shape's graph with the kernel chosen for it; without `graph` the library refused the shape.
struct Plan {
  std::shared_ptr<fe::graph::Graph> graph;
  std::size_t workspace = 0;
};

using Dims = std::vector<std::int64_t>;

class PlanBuilder {
 public:
  PlanBuilder(const AttentionShape& shape, bool deterministic) : shape_(shape), deterministic_(deterministic) {
    graph_->set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
  }

  Plan build(cudnnHandle_t handle, AttentionPass pass) {
    pass == AttentionPass::forward ? describe_forward() : describe_backward();
    if (!graph_->build(handle, {fe::HeurMode_t::A}).is_good()) return {};
    std::int64_t bytes = 0;
    if (!graph_->get_workspace_size(bytes).is_good()) return {};
    return {graph_, static_cast<std::size_t>(bytes)};
  }

 private:
  using Handle = std::shared_ptr<Tensor_attributes>;

  // [B, heads, T, D] as they lie: token after token, a head after a head.
  Dims dims(std::int64_t heads, std::int64_t length) const { return {shape_.batch, heads, length, shape_.head_dim}; }
  Dims strides(std::int64_t length, std::int64_t token) const { return {length * token, shape_.head_dim, token, 1}; }
  Handle input(Uid uid, const char* name, const Dims& sizes, const Dims& steps) {
    return graph_->tensor(Tensor_attributes().set_name(name).set_uid(uid).set_dim(sizes).set_stride(steps));
  }
  static void output(const Handle& tensor, Uid uid, const Dims& sizes, const Dims& steps) {
    tensor->set_output(true).set_uid(uid).set_dim(sizes).set_stride(steps);
  }

  Dims query_dims() const { return dims(shape_.heads, shape_.query_length); }
  Dims key_dims() const { return dims(shape_.kv_heads, shape_.key_length); }
  Dims query_strides() const { return strides(shape_.query_length, shape_.query_stride); }
  Dims key_strides() const { return strides(shape_.key_length, shape_.key_stride); }
  Dims out_strides() const { return strides(shape_.query_length, shape_.out_stride); }
  Dims lse_dims() const { return {shape_.batch, shape_.heads, shape_.query_length, 1}; }
  Dims lse_strides() const { return {shape_.heads * shape_.query_length, shape_.query_length, 1, 1}; }

  void describe_inputs() {
    q_ = input(uid_q, "q", query_dims(), query_strides());
    k_ = input(uid_k, "k", key_dims(), key_strides());
    v_ = input(uid_v, "v", key_dims(), key_strides());
  }
  void describe_forward() {
    describe_inputs();
    auto options =
        fe::graph::SDPA_attributes().set_name("attention").set_generate_stats(true).set_attn_scale(shape_.scale).set_causal_mask(true);
    const auto [out, lse] = graph_->sdpa(q_, k_, v_, options);
    output(out, uid_out, query_dims(), out_strides());
    output(lse, uid_lse, lse_dims(), lse_strides());
    lse->set_data_type(fe::DataType_t::FLOAT);
  }
  void describe_backward() {
    describe_inputs();
    const Handle out = input(uid_out, "out", query_dims(), out_strides()), d_out = input(uid_d_out, "d_out", query_dims(), out_strides());
    const Handle lse = input(uid_lse, "lse", lse_dims(), lse_strides());
    lse->set_data_type(fe::DataType_t::FLOAT);
    auto options = fe::graph::SDPA_backward_attributes()
                       .set_name("attention backward")
                       .set_attn_scale(shape_.scale)
                       .set_causal_mask(true)
                       .set_deterministic_algorithm(deterministic_);
    const auto [d_q, d_k, d_v] = graph_->sdpa_backward(q_, k_, v_, out, d_out, lse, options);
    output(d_q, uid_d_q, query_dims(), query_strides());
    output(d_k, uid_d_k, key_dims(), key_strides());
    output(d_v, uid_d_v, key_dims(), key_strides());
  }

  const AttentionShape& shape_;
  bool deterministic_;
  std::shared_ptr<fe::graph::Graph> graph_ = std::make_shared<fe::graph::Graph>();
  Handle q_, k_, v_;
};

using PlanKey = std::array<std::int64_t, 13>;
struct PlanKeyHash {
  std::size_t operator()(const PlanKey& key) const { return hash_bytes(key.data(), sizeof(key)); }
};

PlanKey key_of(const AttentionShape& s, AttentionPass pass, const GpuStreamTraits& traits) {
  return {traits.device,
          traits.deterministic,
          pass == AttentionPass::backward,
          s.batch,
          s.query_length,
          s.key_length,
          s.heads,
          s.kv_heads,
          s.head_dim,
          s.query_stride,
          s.key_stride,
          s.out_stride,
          std::bit_cast<std::int32_t>(s.scale)};
}

// One a thread, as of the matrix products: a rank has one device and one thread that enqueues.
class PlanCache {
 public:
  ~PlanCache() {
    plans_.clear();
    for (const auto& [device, handle] : handles_) fe::detail::destroy_handle(handle);
  }

  const Plan& find(const AttentionShape& shape, AttentionPass pass, const GpuStreamTraits& traits) {
    const PlanKey key = key_of(shape, pass, traits);
    if (const auto found = plans_.find(key); found != plans_.end()) return found->second;
    Plan plan;
    try {
      plan = PlanBuilder(shape, traits.deterministic).build(handle(traits.device), pass);
    } catch (const std::exception& error) {  // the header's way to say that its own libraries are missing
      log::warning("attention runs through slower kernels: {}", error.what());
    }
    if (plans_.size() >= most_plans) plans_.clear();
    return plans_.try_emplace(key, std::move(plan)).first->second;
  }
  cudnnHandle_t handle(int device) {
    auto& handle = handles_[device];
    if (handle == nullptr && fe::detail::create_handle(&handle) != CUDNN_STATUS_SUCCESS)
      throw std::runtime_error("the library does not start");
    return handle;
  }

 private:
  static constexpr std::size_t most_plans = 256;
  std::unordered_map<PlanKey, Plan, PlanKeyHash> plans_;
  std::unordered_map<int, cudnnHandle_t> handles_;
};

PlanCache& plan_cache() {
  thread_local PlanCache cache;
  return cache;
}

// What the graphs above say: bf16, every sequence whole, query i sees keys 0 … i.
bool plainly_causal(const AttentionShape& shape, DType dtype, bool documents) {
  return dtype == DType::bf16 && !documents && shape.query_length == shape.key_length && shape.query_offset == shape.key_offset &&
         (shape.key_batch_stride == 0 || shape.key_batch_stride == shape.key_length * shape.key_stride) && shape.batch > 0 &&
         shape.query_length > 1;
}

bool aligned(const AttentionTensors& t) {
  for (const Tensor* tensor : {&t.out, &t.q, &t.k, &t.v, &t.d_out, &t.d_q, &t.d_k, &t.d_v})
    if (reinterpret_cast<std::uintptr_t>(tensor->data()) % 16 != 0) return false;
  return true;
}

}  // namespace

std::optional<std::size_t> attention_library_workspace(Stream& stream, const AttentionShape& shape, DType dtype, bool documents,
                                                       AttentionPass pass) {
  if (!plainly_causal(shape, dtype, documents) || !library_loaded()) return std::nullopt;
  const Plan& plan = plan_cache().find(shape, pass, gpu_stream_traits(stream));
  return plan.graph == nullptr ? std::nullopt : std::optional(plan.workspace);
}

bool attention_library_run(Stream& stream, const AttentionShape& shape, AttentionPass pass, const AttentionTensors& t, void* workspace) {
  if (!aligned(t)) return false;
  PlanCache& cache = plan_cache();
  const GpuStreamTraits traits = gpu_stream_traits(stream);
  const Plan& plan = cache.find(shape, pass, traits);
  const cudnnHandle_t handle = cache.handle(traits.device);
  std::unordered_map<std::int64_t, void*> arrays{
      {uid_q, t.q.data()}, {uid_k, t.k.data()}, {uid_v, t.v.data()}, {uid_out, t.out.data()}, {uid_lse, t.lse.data()}};
  if (pass == AttentionPass::backward)
    arrays.insert({{uid_d_out, t.d_out.data()}, {uid_d_q, t.d_q.data()}, {uid_d_k, t.d_k.data()}, {uid_d_v, t.d_v.data()}});
  fe::detail::set_stream(handle, native_stream(stream));
  if (auto status = plan.graph->execute(handle, arrays, workspace); !status.is_good())
    throw Error(ExitCode::rank_failed, "the GPU's attention library failed: " + status.get_message(), "attention",
                "run again; if it stays, report it with the command and config");
  return true;
}

}  // namespace baleen::ops::gpu

#else

namespace baleen::ops::gpu {

std::optional<std::size_t> attention_library_workspace(Stream&, const AttentionShape&, DType, bool, AttentionPass) {
  return std::nullopt;
}
bool attention_library_run(Stream&, const AttentionShape&, AttentionPass, const AttentionTensors&, void*) {
  return false;
}

}  // namespace baleen::ops::gpu

#endif
