// What every command that trains or verifies builds its engine from: the data axis and the options that the configuration implies.
#pragma once

#include <memory>

#include "comm/communicator.h"
#include "train/config.h"
#include "train/engine.h"

namespace baleen {

// The communicator of the first `degree` ranks of the world; nullptr on the others. Collective over the world.
std::unique_ptr<Communicator> create_data_axis(World& world, std::int64_t degree);

// Of a training engine. `config` is resolved.
EngineOptions training_engine_options(const Config& config);

}  // namespace baleen
