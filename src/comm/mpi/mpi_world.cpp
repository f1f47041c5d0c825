#include "comm/mpi/mpi_world.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "comm/mpi/engine.h"
#include "comm/queued_communicator.h"

namespace baleen {
namespace mpi {
namespace {

class MpiCommunicator final : public QueuedCommunicator {
 public:
  MpiCommunicator(std::shared_ptr<Engine> engine, const std::vector<int>& ranks, int rank, const std::string& name)
      : QueuedCommunicator(rank, static_cast<int>(ranks.size()), name), engine_(std::move(engine)) {}
  ~MpiCommunicator() override {
    if (channel_ != nullptr) engine_->close(channel_);
  }
  // A second step, because the channel counts into this object.
  void open(const std::vector<int>& ranks) { channel_ = engine_->create(ranks, name(), bytes_sent_, busy_nanoseconds_); }

  void abort(const std::string& reason) override { engine_->abort(channel_->id(), reason); }
  std::string failure() const override { return channel_->failure(); }
  void observe(CommObserver* observer) override { channel_->observe(observer); }

 private:
  Event enqueue(const Request& request, Event after) override {
    auto operation = std::make_shared<Operation>(request, std::move(after));
    engine_->enqueue(*channel_, operation);
    return Event(std::move(operation));
  }

  std::shared_ptr<Engine> engine_;
  std::shared_ptr<Channel> channel_;
};

class MpiWorld final : public World {
 public:
  explicit MpiWorld(const EngineOptions& options) : engine_(std::make_shared<Engine>(options)) {}

  int rank() const override { return engine_->rank(); }
  int size() const override { return engine_->size(); }
  std::string backend() const override { return "mpi"; }
  std::unique_ptr<Communicator> create_communicator(const std::vector<int>& ranks, const std::string& name) override {
    if (ranks.empty()) {
      std::atomic<std::uint64_t> nothing{0};
      engine_->create(ranks, name, nothing, nothing);
      return nullptr;
    }
    BALEEN_CHECK(std::is_sorted(ranks.begin(), ranks.end()) && std::adjacent_find(ranks.begin(), ranks.end()) == ranks.end(), "name", name);
    BALEEN_CHECK(ranks.front() >= 0 && ranks.back() < size(), "first", ranks.front(), "last", ranks.back(), "world", size());
    const auto here = std::find(ranks.begin(), ranks.end(), rank());
    BALEEN_CHECK(here != ranks.end(), "rank", rank(), "is not in its own group", name);
    auto communicator = std::make_unique<MpiCommunicator>(engine_, ranks, static_cast<int>(here - ranks.begin()), name);
    communicator->open(ranks);
    return communicator;
  }
  void abort(const std::string& reason) override { engine_->abort(0, reason); }

 private:
  std::shared_ptr<Engine> engine_;
};

}  // namespace
}  // namespace mpi

std::string mpi_library() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING + 1> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);  // may be called before MPI_Init
  std::string out(text.data(), static_cast<std::size_t>(length));
  out = out.substr(0, out.find_first_of(",\n"));
  if (out.starts_with("Open MPI v")) out.erase(9, 1);
  if (constexpr std::string_view label = "MPICH Version:\t"; out.starts_with(label)) out.replace(0, label.size(), "MPICH ");
  return out;
}

std::unique_ptr<World> create_mpi_world(int rank, int size, const MpiOptions& options) {
  auto world = std::make_unique<mpi::MpiWorld>(mpi::EngineOptions{options.timeout, options.largest_count});
  if (world->rank() != rank || world->size() != size)
    throw Error(ExitCode::bad_config,
                "MPI says this is rank " + std::to_string(world->rank()) + " of " + std::to_string(world->size()) +
                    ", the launcher says rank " + std::to_string(rank) + " of " + std::to_string(size),
                "[comm] backend = \"mpi\"",
                "start the ranks with the mpirun (or srun --mpi=pmix) of " + mpi_library() + ", with which baleen was built");
  return world;
}

}  // namespace baleen
