// Memory on the GPUs of one host that several ranks reach, each in its own address space.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace baleen {

class PeerMemory {
 public:
  // Collective over `host`, whose members are processes: every member gives memory of its GPU, of as many bytes, that was allocated by its
  // Device. The same answer on every member: nullptr, with a reason in `why`, where some member cannot reach another's, or gives a `why`
  // of its own.
  static std::unique_ptr<PeerMemory> exchange(Communicator& host, int device, void* memory, std::size_t bytes, std::string& why);

  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  bool holds(const void* data, std::size_t bytes) const;
  // Where member `rank` has what this one has at `data`.
  std::byte* of(int rank, const void* data) const;

 private:
  PeerMemory(std::byte* own, std::size_t bytes) : own_(own), bytes_(bytes) {}

  std::byte* own_;
  std::size_t bytes_;
  std::vector<std::byte*> members_;  // by rank
  std::vector<void*> opened_;
};

}  // namespace baleen
