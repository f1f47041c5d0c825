// MPI's header, its errors as ours, and counts that it can express.
#pragma once

#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#endif
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX 1
#endif
#include <mpi.h>

#include <cstddef>
#include <string>

namespace baleen::mpi {

// What MPI says about a status.
std::string error_text(int status);
// Throws Error(rank_failed) naming the call when it did not succeed.
void check(int status, const char* call);

// `bytes` as a count of a type that an int can hold.
class Block {
 public:
  Block(std::size_t bytes, std::size_t largest_count);
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  int count() const { return count_; }
  MPI_Datatype type() const { return type_; }

 private:
  int count_ = 0;
  MPI_Datatype type_ = MPI_BYTE;
};

}  // namespace baleen::mpi
