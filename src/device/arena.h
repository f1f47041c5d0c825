// A stack of named allocations inside one buffer. The same code runs twice over it: first in measure mode, where allocations have no memory
// and only the high-water mark counts, then bound to a buffer of that size. Nothing is allocated inside a step.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace baleen {

class Arena {
 public:
  static constexpr std::size_t alignment = 256;  // bytes

  // In measure mode until bound. Binding an arena that is not empty is an error.
  void bind(void* base, std::size_t bytes);
  bool bound() const { return base_ != nullptr; }

  // The next `bytes` on the stack, aligned and uninitialised; nullptr in measure mode. (tensor/tensor.h has the typed form.)
  void* allocate(std::string_view name, std::size_t bytes);

  std::size_t used() const { return used_; }
  // The most bytes ever used at once, and at that moment's stack the bytes under each name (measure mode only).
  std::size_t peak() const { return peak_; }
  const std::map<std::string, std::size_t>& peak_by_name() const { return peak_by_name_; }

  // Gives back everything allocated since the scope began.
  class Scope {
   public:
    explicit Scope(Arena& arena) : arena_(arena), mark_(arena.used_) {}
    ~Scope() { arena_.release(mark_); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Arena& arena_;
    std::size_t mark_;
  };
  void release(std::size_t mark);

 private:
  std::byte* base_ = nullptr;
  std::size_t capacity_ = 0, used_ = 0, peak_ = 0;
  std::map<std::size_t, std::pair<std::string, std::size_t>> live_;  // start → (name, bytes); measure mode only
  std::map<std::string, std::size_t> peak_by_name_;
};

}  // namespace baleen
