// MPI's header, its errors as ours, and its names for element types and operations.
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

#include "comm/communicator.h"

namespace baleen::mpi {

// What MPI says about a status.
std::string error_text(int status);
// Throws Error(rank_failed) naming the call when it did not succeed.
void check(int status, const char* call);

// The type that a reduction of `dtype` is made in; bf16's is fp32.
MPI_Datatype reduction_type(DType dtype);

// What the library's own operations do not do: maxima and minima that keep a NaN wherever it stands. To be made after MPI_Init and freed
// before MPI_Finalize.
class Operators {
 public:
  Operators();
  Operators(const Operators&) = delete;
  Operators& operator=(const Operators&) = delete;
  void free();
  // For elements of reduction_type(dtype).
  MPI_Op get(DType dtype, ReduceOp op) const;

 private:
  MPI_Op max32_ = MPI_OP_NULL, min32_ = MPI_OP_NULL, max64_ = MPI_OP_NULL, min64_ = MPI_OP_NULL;
};

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
