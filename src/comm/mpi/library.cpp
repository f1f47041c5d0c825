#include "comm/mpi/library.h"

#include <array>
#include <string>

#include "base/error.h"
#include "comm/ring/reducer.h"

namespace baleen::mpi {
namespace {

template <DType dtype, ReduceOp op>
void combine(void* in, void* in_and_out, int* count, MPI_Datatype*) {
  reducer_for(dtype, op).combine(in_and_out, in, in_and_out, static_cast<std::size_t>(*count));
}

template <DType dtype, ReduceOp op>
MPI_Op make() {
  MPI_Op out = MPI_OP_NULL;
  check(MPI_Op_create(&combine<dtype, op>, 1, &out), "MPI_Op_create");
  return out;
}

}  // namespace

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

MPI_Datatype reduction_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
    case DType::bf16: return MPI_FLOAT;
    case DType::f64: return MPI_DOUBLE;
    case DType::i32: return MPI_INT32_T;
    case DType::u64: return MPI_UINT64_T;
    case DType::u8: break;
  }
  BALEEN_CHECK(false, "cannot reduce dtype", dtype_name(dtype));
  return MPI_DATATYPE_NULL;
}

Operators::Operators()
    : max32_(make<DType::f32, ReduceOp::max>()),
      min32_(make<DType::f32, ReduceOp::min>()),
      max64_(make<DType::f64, ReduceOp::max>()),
      min64_(make<DType::f64, ReduceOp::min>()) {}

void Operators::free() {
  for (MPI_Op* op : {&max32_, &min32_, &max64_, &min64_}) MPI_Op_free(op);
}

MPI_Op Operators::get(DType dtype, ReduceOp op) const {
  if (op == ReduceOp::sum || op == ReduceOp::avg) return MPI_SUM;
  const bool maximum = op == ReduceOp::max;
  if (dtype == DType::f32 || dtype == DType::bf16) return maximum ? max32_ : min32_;
  if (dtype == DType::f64) return maximum ? max64_ : min64_;
  return maximum ? MPI_MAX : MPI_MIN;
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
