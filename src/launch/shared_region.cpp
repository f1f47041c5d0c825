#include "launch/shared_region.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <new>
#include <thread>

#include "base/error.h"
#include "launch/memory_file.h"

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

namespace {

struct RegionSizes {
  std::uint64_t magic;
  std::uint32_t version, world_size;
  std::uint64_t bytes, heap_bytes;  // the heap follows
};

constexpr std::uint64_t region_magic = 0x6e65656c6162;  // "baleen", little-endian
constexpr std::uint32_t region_version = 3;
constexpr std::size_t page = 4096;
// Address space for every ordered pair of ranks; only what communicators touch becomes memory.
constexpr std::size_t payload_bytes_per_pair = std::size_t{64} << 20;

// Of the heap, too: more than a rank can ever fill. A machine may show less memory at first than it has.
std::size_t heap_bytes_per_rank(std::size_t ranks) {
  constexpr std::size_t least = std::size_t{64} << 30, most_in_all = std::size_t{8} << 40;
  const std::size_t memory = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return std::min(std::max(2 * memory, least), most_in_all / ranks) / huge_page * huge_page;
}

std::byte* map_region(int file, std::size_t bytes) {
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  if (base == MAP_FAILED)
    throw Error(ExitCode::out_of_memory, "cannot map " + std::to_string(bytes) + " bytes of shared memory: " + std::strerror(errno), "",
                "check `ulimit -v`: the region is sparse, so it needs address space rather than memory");
  madvise(base, bytes, MADV_DONTDUMP);  // advice: keeps a core dump to the rank's own memory
  return static_cast<std::byte*>(base);
}

}  // namespace

struct SharedRegion::Header : RegionSizes {
  AbortCell abort_cell;
};

std::shared_ptr<SharedRegion> SharedRegion::create(int world_size, bool keep_descriptor) {
  static_assert(sizeof(Header) <= page);
  BALEEN_CHECK(world_size >= 1, world_size);
  const auto ranks = static_cast<std::size_t>(world_size);
  // The heap begins with a huge page of the file, as it does in memory.
  const std::size_t bytes = huge_page + ranks * ranks * payload_bytes_per_pair, heap_bytes = ranks * heap_bytes_per_rank(ranks);
  static_assert(payload_bytes_per_pair % huge_page == 0);
  Descriptor file = make_memory_file(bytes + heap_bytes);
  std::byte* base = map_region(file.get(), bytes);
  auto* header = new (base) Header;  // zero-filled by the system: the abort cell is clear
  header->magic = region_magic;
  header->version = region_version;
  header->world_size = static_cast<std::uint32_t>(world_size);
  header->bytes = bytes;
  header->heap_bytes = heap_bytes;
  std::shared_ptr<SharedRegion> region(new SharedRegion(std::move(file), base, bytes));
  region->map_heap(region->descriptor(), heap_bytes);
  if (!keep_descriptor) region->close_descriptor();
  return region;
}

std::shared_ptr<SharedRegion> SharedRegion::attach(Descriptor file, int world_size) {
  const auto refuse = [](const std::string& why) {
    return Error(ExitCode::rank_failed, "the shared memory handed to this rank is not usable: " + why, "",
                 "start all ranks with one command and one version of baleen");
  };
  struct stat status{};
  if (fstat(file.get(), &status) != 0) throw refuse(std::strerror(errno));
  if (!S_ISREG(status.st_mode) || status.st_size < static_cast<off_t>(page)) throw refuse("the descriptor is no region");
  RegionSizes said{};
  if (pread(file.get(), &said, sizeof said, 0) != sizeof said) throw refuse(std::strerror(errno));
  if (said.magic != region_magic || said.version != region_version || said.bytes < page ||
      said.bytes > static_cast<std::uint64_t>(status.st_size) || said.heap_bytes != static_cast<std::uint64_t>(status.st_size) - said.bytes)
    throw refuse("it is of another version");
  std::shared_ptr<SharedRegion> region(new SharedRegion(Descriptor(), map_region(file.get(), said.bytes), said.bytes));
  const Header& header = region->header();
  if (header.world_size != static_cast<std::uint32_t>(world_size))
    throw refuse("it was made for " + std::to_string(header.world_size) + " ranks, not " + std::to_string(world_size));
  region->map_heap(file.get(), said.heap_bytes);
  return region;
}

void SharedRegion::map_heap(int file, std::size_t bytes) {
  // Address space for one huge page more, of which the heap takes what begins with one.
  void* const room = mmap(nullptr, bytes + huge_page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return;  // collectives then copy through their slots
  auto* const begin = static_cast<std::byte*>(room);
  const std::size_t before = (huge_page - reinterpret_cast<std::uintptr_t>(room) % huge_page) % huge_page;
  if (before != 0) munmap(begin, before);
  munmap(begin + before + bytes, huge_page - before);
  void* const base =
      mmap(begin + before, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, file, static_cast<off_t>(bytes_));
  if (base == MAP_FAILED) {
    munmap(begin + before, bytes);
    return;
  }
  madvise(base, bytes, MADV_DONTDUMP);
  madvise(base, bytes, MADV_HUGEPAGE);  // advice: see make_memory_file()
  heap_ = {static_cast<std::byte*>(base), bytes};
}

SharedRegion::~SharedRegion() {
  if (!heap_.empty()) munmap(heap_.data(), heap_.size());
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
