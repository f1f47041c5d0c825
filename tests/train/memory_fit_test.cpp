#include "train/memory_fit.h"

#include <gtest/gtest.h>

#include "comm/thread_ranks.h"
#include "device/gpu.h"
#include "optim/adamw_optimizer.h"

namespace baleen {
namespace {

EngineOptions small(DType compute, int zero = 0) {
  ModelConfig config;
  config.hidden_size = 32;
  config.intermediate_size = 64;
  config.num_hidden_layers = 2;
  config.num_attention_heads = config.num_key_value_heads = 2;
  config.head_dim = 16;
  config.vocab_size = 300;
  config.max_position_embeddings = 64;
  EngineOptions options{config, 8, 64, 1, StorageKind::training};
  options.compute = compute;
  options.zero = zero;
  return options;
}

TEST(MemoryFit, WhatIsCountedIsWhatIsAllocated) {
  testing::run_members(2, [&](Communicator& axis) {
    for (const int zero : {0, 3})
      for (const bool offload : {false, true}) {
        EngineOptions options = small(DType::bf16, zero);
        options.offload = offload;
        options.gradient = offload ? DType::bf16 : DType::f32;
        const auto cpu = create_cpu_device();
        const TrainingMemory counted = training_memory(options, axis, *cpu);
        Engine engine(options, axis);
        const AdamWOptimizer optimizer({}, engine.device(), engine.units());
        EXPECT_EQ(counted.bytes, engine.device().peak_bytes()) << zero << offload;
        EXPECT_EQ(counted.allocations, engine.named_allocations()) << zero << offload;
      }
  });
}

TEST(MemoryFit, SaysWhatIsMissingAndWhatWouldFit) {
  testing::run_members(1, [&](Communicator& axis) {
    const EngineOptions options = small(DType::bf16);
    const auto cpu = create_cpu_device();
    const std::size_t bytes = training_memory(options, axis, *cpu).bytes;
    EXPECT_EQ(check_memory(options, axis, *cpu, bytes).micro_batch_size, 8);
    const auto refused = [&](std::size_t available) -> std::string {
      try {
        check_memory(options, axis, *cpu, available);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::out_of_memory);
        return error.what();
      }
      return "";
    };
    const std::string little = refused(bytes - 1);
    EXPECT_NE(little.find("master weights"), std::string::npos) << little;
    EXPECT_NE(little.find("micro_batch_size = 4"), std::string::npos) << little;
    EXPECT_EQ(little.find("micro_batch_size = 2"), std::string::npos) << little;
    EXPECT_NE(little.find("recompute = \"full\""), std::string::npos) << little;
    EXPECT_NE(little.find("gradient_dtype = \"bf16\""), std::string::npos) << little;
    EngineOptions least = options;
    least.micro_batch_size = 1;
    least.recompute = Recompute::full;
    least.state = least.gradient = DType::bf16;
    least.offload = true;
    const std::size_t least_bytes = training_memory(least, axis, *cpu).bytes;
    EXPECT_NE(refused(least_bytes).find("together these fit"), std::string::npos);
    EXPECT_NE(refused(least_bytes - 1).find("nothing fits"), std::string::npos);
  });
}

// Of a GPU's kind, where there is none: it measures, and nothing runs.
class PlannedGpu final : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::gpu; }
  std::string description() const override { return "a planned GPU"; }
  std::unique_ptr<Stream> create_stream() override { return std::make_unique<Measuring>(); }
  std::unique_ptr<Stream> create_measuring_stream() override { return create_stream(); }

 protected:
  void* allocate_bytes(std::size_t) override { return nullptr; }
  void free_bytes(void*, std::size_t) override {}

 private:
  class Measuring final : public Stream {
   public:
    Measuring() : Stream(DeviceKind::gpu, true) {}
    Event record() override { return {}; }
    void wait(const Event&) override {}
    void synchronize() override {}
    void copy(void*, const void*, std::size_t) override {}
    void fill_zero(void*, std::size_t) override {}
  };
};

// Issue 5: no more than LLMQ (docs/performance.md) with states and gradients of its precision; 0.6 GiB are the libraries' own.
TEST(MemoryFit, NeedsNoMoreThanLlmqWithItsPrecision) {
  if (!ops::gpu_build) GTEST_SKIP() << "a build without GPU support";
  struct Workload {
    const char* model;
    std::int64_t micro_batch;
    double llmq;  // GiB
  };
  for (const Workload& workload :
       {Workload{"qwen2.5-1.5b", 16, 45.5}, Workload{"qwen2.5-0.5b", 32, 37.3}, Workload{"qwen2.5-3b", 16, 76.3}})
    testing::run_members(1, [&](Communicator& axis) {
      EngineOptions options{model_preset(workload.model, "test"), workload.micro_batch, 1024, 1, StorageKind::training};
      options.compute = options.state = options.gradient = DType::bf16;
      const std::unique_ptr<Device> device = gpu_available() ? create_gpu_device(0) : std::make_unique<PlannedGpu>();
      Device& gpu = *device;
      const TrainingMemory memory = training_memory(options, axis, gpu);
      const double gib = static_cast<double>(memory.bytes) / (1 << 30);
      RecordProperty(workload.model, std::to_string(gib));
      EXPECT_LE(gib + 0.6, workload.llmq) << workload.model;
      options.head_chunks = 8;
      EXPECT_LE(training_memory(options, axis, gpu).bytes, memory.bytes);
      options.head_chunks = 1;
      EXPECT_GT(training_memory(options, axis, gpu).bytes, memory.bytes);
    });
}

}  // namespace
}  // namespace baleen
