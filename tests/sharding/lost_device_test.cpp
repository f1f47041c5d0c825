// Threads that read and write weights of a device that fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <new>

#include "base/error.h"
#include "comm/idle_communicator.h"
#include "device/device.h"
#include "sharding/replica_check.h"
#include "sharding/unit_storage.h"

namespace baleen {
namespace {

// Of a GPU's kind: its memory is the host's, and no copy comes back from it.
class LostGpu final : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::gpu; }
  std::string description() const override { return "a lost GPU"; }
  std::unique_ptr<Stream> create_stream() override { return std::make_unique<Failing>(); }
  std::unique_ptr<Stream> create_measuring_stream() override { return create_stream(); }

 protected:
  void* allocate_bytes(std::size_t bytes) override { return ::operator new(bytes, std::align_val_t{256}); }
  void free_bytes(void* data, std::size_t) override { ::operator delete(data, std::align_val_t{256}); }

 private:
  class Failing final : public Stream {
   public:
    Failing() : Stream(DeviceKind::gpu, false) {}
    Event record() override { return {}; }
    void wait(const Event&) override {}
    void synchronize() override {}
    void copy(void*, const void*, std::size_t) override { throw Error(ExitCode::rank_failed, "the GPU is lost"); }
    void fill_zero(void*, std::size_t) override {}
  };
};

// No exception may leave the threads that hash: that would be std::terminate, and no rank would hear why.
TEST(ReplicaCheck, AFailureOfTheDeviceReachesTheCaller) {
  LostGpu gpu;
  const UnitStorage storage(gpu, {{"block 0", {{"a", {30, 11}}, {"b", {129}}}}, {"head", {{"norm", {5}}}}}, StorageOptions{});
  testing::IdleCommunicator alone(0, 1, "dp");
  try {
    check_replicas(alone, storage);
    ADD_FAILURE() << "the failure was lost";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("the GPU is lost"));
  }
}

TEST(UnitStorage, AFailureOfTheDeviceWhileFillingReachesTheCaller) {
  LostGpu gpu;
  UnitStorage storage(gpu, {{"block 0", {{"a", {300, 1100}}}}}, StorageOptions{});  // several pieces
  try {
    storage.initialize_weights(1);
    ADD_FAILURE() << "the failure was lost";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("the GPU is lost"));
  }
}

}  // namespace
}  // namespace baleen
