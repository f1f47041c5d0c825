// What every command that trains or verifies builds its engine from: the mesh of ranks with its communicators, and the options that the
// configuration implies.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/mesh.h"
#include "train/config.h"
#include "train/engine.h"
#include "train/layout.h"

namespace baleen {

Mesh mesh_of(const ParallelLayout& layout);

// The communicators of a layout over the first ranks of the world (docs/parallelism.md, "The mesh").
class ParallelAxes {
 public:
  // Collective over the world, whoever is a member. `device`: where the buffers will be, which must live as long; nullptr: in host memory.
  // `observer` hears of every operation and must live as long too.
  ParallelAxes(World& world, const ParallelLayout& layout, const ModelConfig& model, Device* device = nullptr,
               CommObserver* observer = nullptr);

  bool member() const { return everyone_ != nullptr; }
  const Mesh& mesh() const { return mesh_; }
  // Every rank of the layout: what the run agrees over.
  Communicator& everyone() const { return *everyone_; }
  const EngineGroups& groups() const { return *groups_; }
  // Of all of them, since construction; and by communicator ("dp", "dp (weights)", "tp", "cp", "pp activations and gradients", …).
  std::uint64_t bytes_sent() const;
  std::map<std::string, std::uint64_t> bytes_by_communicator() const;
  std::uint64_t busy_nanoseconds() const;

 private:
  // Whether a communicator of a single rank is made too.
  enum class Alone { no, yes };
  // Over the ranks that differ from this one in the given axes only; nullptr where that is nobody else.
  Communicator* create(World& world, std::initializer_list<Axis> axes, const char* name, Alone alone = Alone::no);
  Communicator* create(World& world, std::vector<int> ranks, const char* name, Alone alone = Alone::no);
  std::unique_ptr<Communicator> create_on_device(World& world, const std::vector<int>& ranks, const std::string& name) const;
  Communicator* create_tied(World& world, const ModelConfig& model);
  void create_links(World& world, bool ring);

  Mesh mesh_;
  Device* device_;
  CommObserver* observer_;
  std::vector<std::unique_ptr<Communicator>> all_;
  std::unique_ptr<PipelineLinks> links_;
  Communicator* everyone_ = nullptr;
  std::optional<EngineGroups> groups_;
};

// The device that `config` asks for: the processor, or the GPU of World::local_rank(), modulo those that it sees. `config` is resolved.
// Where ranks share memory, what they exchange lies there.
std::shared_ptr<Device> create_training_device(const Config& config, World& world);
// Of a training engine in the layout that `config` asks for. `config` is resolved.
EngineOptions training_engine_options(const Config& config, std::shared_ptr<Device> device);

}  // namespace baleen
