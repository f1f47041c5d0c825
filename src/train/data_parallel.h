// What every command that trains or verifies builds its engine from: the data axis and the options that the configuration implies.
#pragma once

#include <memory>

#include "comm/communicator.h"
#include "train/config.h"
#include "train/engine.h"

namespace baleen {

// The communicators of data parallelism over the first replicate · data ranks of the world (DESIGN.md decision 5).
class DataAxes {
 public:
  // Collective over the world, whoever is a member. `device`: where the buffers will be, which must live as long; nullptr: in host memory.
  DataAxes(World& world, std::int64_t replicate, std::int64_t data, Device* device = nullptr);

  bool member() const { return batch_ != nullptr; }
  Communicator& batch() const { return *batch_; }
  DataGroup group() const { return {*batch_, *reduce_, *gather_, replicas_.get()}; }
  // Of all of them, since construction.
  std::uint64_t bytes_sent() const;
  std::uint64_t busy_nanoseconds() const;

 private:
  std::unique_ptr<Communicator> batch_, reduce_, gather_, replicas_;
};

// The device that `config` asks for: the processor, or the GPU of this rank, where several may share one. `config` is resolved.
std::shared_ptr<Device> create_training_device(const Config& config, int rank);
// Of a training engine. `config` is resolved.
EngineOptions training_engine_options(const Config& config, std::shared_ptr<Device> device);

}  // namespace baleen
