// A thousand steps need no more memory than a hundred.
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "comm/thread_ranks.h"
#include "train/step.h"

namespace baleen {
namespace {

constexpr std::int64_t length = 16;

class ConstantBatches : public BatchSource {
 public:
  void fill(std::uint64_t step, std::int64_t, std::int64_t count, std::int32_t* inputs, std::int32_t* targets) const override {
    for (std::int64_t i = 0; i < count * length; ++i) {
      inputs[i] = static_cast<std::int32_t>((static_cast<std::int64_t>(step) + i) % 19);
      targets[i] = static_cast<std::int32_t>((static_cast<std::int64_t>(step) + i + 1) % 19);
    }
  }
  std::int64_t sequence_length() const override { return length; }
  std::int64_t global_batch_size() const override { return 4; }
};

std::size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::size_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

TEST(Memory, DoesNotGrowOverAThousandSteps) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "AddressSanitizer keeps what is freed in a quarantine";
#endif
  ModelConfig config;
  config.hidden_size = 16;
  config.intermediate_size = 24;
  config.num_hidden_layers = 1;
  config.num_attention_heads = config.num_key_value_heads = 2;
  config.head_dim = 8;
  config.vocab_size = 19;
  config.max_position_embeddings = length;
  testing::run_members(2, [&](Communicator& axis) {
    Engine engine({config, 1, length, 1, StorageKind::training, ReduceOp::sum}, axis);
    engine.units().initialize_weights(1);
    AdamWOptimizer optimizer({}, engine.device(), engine.units());
    const ConstantBatches batches;
    TrainingStep training_step(engine, optimizer, batches, LrSchedule{LrScheduleKind::constant, 1e-3, 0, 0, 1000, 0.1}, 1.0);
    std::size_t early = 0;
    for (std::int64_t step = 1; step <= 1000; ++step) {
      training_step.run(step, false);
      if (step == 100) early = resident_bytes();
    }
    // 900 steps that lost a kilobyte each would show.
    EXPECT_LT(resident_bytes(), early + (std::size_t{512} << 10));
  });
}

}  // namespace
}  // namespace baleen
