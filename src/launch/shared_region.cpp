#include "launch/shared_region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <new>
#include <thread>

#include "base/error.h"

namespace baleen {

static_assert(std::atomic<std::uint32_t>::is_always_lock_free, "an atomic in shared memory must not hide a lock of one process");

void AbortCell::raise(const std::string& reason) {
  std::uint32_t expected = clear;
  if (!state_.compare_exchange_strong(expected, writing, std::memory_order_acq_rel)) return;
  const std::size_t length = std::min(reason.size(), sizeof reason_ - 1);
  std::memcpy(reason_, reason.data(), length);
  reason_[length] = '\0';
  state_.store(written, std::memory_order_release);
}

std::string AbortCell::reason() const {
  // The writer may be between its two stores; it may also have died there, which must not keep the others here.
  for (int attempt = 0; attempt < 100; ++attempt) {
    const std::uint32_t state = state_.load(std::memory_order_acquire);
    if (state == clear) return "";
    if (state == written) return reason_;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return "the rank that stopped the job died before it could say why";
}

struct SharedRegion::Header {
  std::uint64_t magic;
  std::uint32_t version, world_size;
  std::uint64_t bytes;
  AbortCell abort_cell;
};

namespace {

constexpr std::uint64_t region_magic = 0x6e65656c6162;  // "baleen", little-endian
constexpr std::uint32_t region_version = 1;
constexpr std::size_t page = 4096;
// Address space for every ordered pair of ranks; only what communicators touch becomes memory.
constexpr std::size_t payload_bytes_per_pair = std::size_t{64} << 20;

std::byte* map_region(int file, std::size_t bytes) {
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  if (base == MAP_FAILED)
    throw Error(ExitCode::out_of_memory, "cannot map " + std::to_string(bytes) + " bytes of shared memory: " + std::strerror(errno), "",
                "check `ulimit -v`: the region is sparse, so it needs address space rather than memory");
  madvise(base, bytes, MADV_DONTDUMP);  // advice: keeps a core dump to the rank's own memory
  return static_cast<std::byte*>(base);
}

}  // namespace

std::shared_ptr<SharedRegion> SharedRegion::create(int world_size, bool keep_descriptor) {
  static_assert(sizeof(Header) <= page);
  BALEEN_CHECK(world_size >= 1, world_size);
  const auto ranks = static_cast<std::size_t>(world_size);
  const std::size_t bytes = page + ranks * ranks * payload_bytes_per_pair;
  Descriptor file(memfd_create("baleen", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  // Sealed against resizing: a shorter file would turn the other ranks' accesses into SIGBUS.
  if (!file.valid() || ftruncate(file.get(), static_cast<off_t>(bytes)) != 0 ||
      fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    throw Error(ExitCode::out_of_memory, std::string("cannot make shared memory for the ranks: ") + std::strerror(errno));
  std::byte* base = map_region(file.get(), bytes);
  auto* header = new (base) Header;  // zero-filled by the system: the abort cell is clear
  header->magic = region_magic;
  header->version = region_version;
  header->world_size = static_cast<std::uint32_t>(world_size);
  header->bytes = bytes;
  if (!keep_descriptor) file.reset();
  return std::shared_ptr<SharedRegion>(new SharedRegion(std::move(file), base, bytes));
}

std::shared_ptr<SharedRegion> SharedRegion::attach(Descriptor file, int world_size) {
  const auto refuse = [](const std::string& why) {
    return Error(ExitCode::rank_failed, "the shared memory handed to this rank is not usable: " + why, "",
                 "start all ranks with one command and one version of baleen");
  };
  struct stat status {};
  if (fstat(file.get(), &status) != 0) throw refuse(std::strerror(errno));
  if (!S_ISREG(status.st_mode) || status.st_size < static_cast<off_t>(page)) throw refuse("the descriptor is no region");
  const auto bytes = static_cast<std::size_t>(status.st_size);
  std::shared_ptr<SharedRegion> region(new SharedRegion(Descriptor(), map_region(file.get(), bytes), bytes));
  const Header& header = region->header();
  if (header.magic != region_magic || header.version != region_version || header.bytes != bytes) throw refuse("it is of another version");
  if (header.world_size != static_cast<std::uint32_t>(world_size))
    throw refuse("it was made for " + std::to_string(header.world_size) + " ranks, not " + std::to_string(world_size));
  return region;
}

SharedRegion::~SharedRegion() {
  munmap(base_, bytes_);
}

SharedRegion::Header& SharedRegion::header() const {
  return *std::launder(reinterpret_cast<Header*>(base_));
}

int SharedRegion::world_size() const {
  return static_cast<int>(header().world_size);
}

AbortCell& SharedRegion::abort_cell() const {
  return header().abort_cell;
}

std::span<std::byte> SharedRegion::payload() const {
  return {base_ + page, bytes_ - page};
}

void SharedRegion::discard(std::span<std::byte> range) const {
  if (madvise(range.data(), range.size(), MADV_REMOVE) != 0) std::memset(range.data(), 0, range.size());
}

}  // namespace baleen
