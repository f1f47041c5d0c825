#include "comm/mpi/library.h"

#include <array>
#include <string>

#include "base/error.h"

namespace baleen::mpi {

std::string error_text(int status) {
  std::array<char, MPI_MAX_ERROR_STRING + 1> text{};
  int length = 0;
  MPI_Error_string(status, text.data(), &length);
  return text.data();
}

void check(int status, const char* call) {
  if (status == MPI_SUCCESS) return;
  throw Error(ExitCode::rank_failed, "MPI: " + error_text(status), call, "see what mpirun printed; run the same command again: it resumes");
}

Block::Block(std::size_t bytes, std::size_t largest_count) {
  if (bytes <= largest_count) {
    count_ = static_cast<int>(bytes);
    return;
  }
  // One element: as many whole pieces as fit, and the rest behind them.
  const std::size_t pieces = bytes / largest_count, rest = bytes % largest_count;
  MPI_Datatype piece = MPI_DATATYPE_NULL, body = MPI_DATATYPE_NULL;
  check(MPI_Type_contiguous(static_cast<int>(largest_count), MPI_BYTE, &piece), "MPI_Type_contiguous");
  check(MPI_Type_contiguous(static_cast<int>(pieces), piece, &body), "MPI_Type_contiguous");
  std::array<int, 2> lengths{1, static_cast<int>(rest)};
  std::array<MPI_Aint, 2> places{0, static_cast<MPI_Aint>(pieces * largest_count)};
  std::array<MPI_Datatype, 2> types{body, MPI_BYTE};
  check(MPI_Type_create_struct(2, lengths.data(), places.data(), types.data(), &type_), "MPI_Type_create_struct");
  check(MPI_Type_commit(&type_), "MPI_Type_commit");
  MPI_Type_free(&piece);
  MPI_Type_free(&body);
  count_ = 1;
}

Block::~Block() {
  if (type_ != MPI_BYTE) MPI_Type_free(&type_);  // lives on in the operations that use it
}

}  // namespace baleen::mpi
