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
  // Collective over the world, whoever is a member.
  DataAxes(World& world, std::int64_t replicate, std::int64_t data);

  bool member() const { return batch_ != nullptr; }
  Communicator& batch() const { return *batch_; }
  DataGroup group() const { return {*batch_, *reduce_, *gather_, replicas_.get()}; }
  // Of all of them, since construction.
  std::uint64_t bytes_sent() const;
  std::uint64_t busy_nanoseconds() const;

 private:
  std::unique_ptr<Communicator> batch_, reduce_, gather_, replicas_;
};

// Of a training engine. `config` is resolved.
EngineOptions training_engine_options(const Config& config);

}  // namespace baleen
