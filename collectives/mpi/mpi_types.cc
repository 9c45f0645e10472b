// Reductions with libtorch's meaning, and messages longer than MPI's counts. MPI's own operations are used
// where they give the same result as libtorch. For other dtypes and operations this file makes its own, which
// call libtorch.

#include "gradwire/collectives/mpi/mpi_types.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/collectives/checks/reduction_meaning.h"

namespace gradwire::collectives {
namespace {

using c10::ScalarType;

template <ScalarType kDtype, ReduceOp kOp>
void reduce_in_mpi(void* from, void* into, int* count, MPI_Datatype*) {
  // MPI may call this on any thread. It does not throw: probe() has already run the same reduction.
  const c10::InferenceMode no_grad;
  at::Tensor to = at::from_blob(into, {*count}, kDtype);
  combine_tensors(kOp, to, to, at::from_blob(from, {*count}, kDtype));
}

template <ScalarType kDtype>
MPI_User_function* function_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      return &reduce_in_mpi<kDtype, ReduceOp::kSum>;
    case ReduceOp::kProduct:
      return &reduce_in_mpi<kDtype, ReduceOp::kProduct>;
    case ReduceOp::kMin:
      return &reduce_in_mpi<kDtype, ReduceOp::kMin>;
    case ReduceOp::kMax:
      return &reduce_in_mpi<kDtype, ReduceOp::kMax>;
    case ReduceOp::kBand:
      return &reduce_in_mpi<kDtype, ReduceOp::kBand>;
    case ReduceOp::kBor:
      return &reduce_in_mpi<kDtype, ReduceOp::kBor>;
    case ReduceOp::kBxor:
      return &reduce_in_mpi<kDtype, ReduceOp::kBxor>;
  }
  return nullptr;
}

MPI_User_function* function_of(ScalarType dtype, ReduceOp op) {
  switch (dtype) {
    case ScalarType::Byte:
      return function_of<ScalarType::Byte>(op);
    case ScalarType::Char:
      return function_of<ScalarType::Char>(op);
    case ScalarType::Short:
      return function_of<ScalarType::Short>(op);
    case ScalarType::Half:
      return function_of<ScalarType::Half>(op);
    case ScalarType::BFloat16:
      return function_of<ScalarType::BFloat16>(op);
    case ScalarType::Bool:
      return function_of<ScalarType::Bool>(op);
    case ScalarType::Float:
      return function_of<ScalarType::Float>(op);
    case ScalarType::Double:
      return function_of<ScalarType::Double>(op);
    default:
      return nullptr;
  }
}

// MPI_DATATYPE_NULL for a dtype that MPI does not have.
MPI_Datatype own_type_of_mpi(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Byte:
      return MPI_UINT8_T;
    case ScalarType::Char:
      return MPI_INT8_T;
    case ScalarType::Short:
      return MPI_INT16_T;
    case ScalarType::Int:
      return MPI_INT32_T;
    case ScalarType::Long:
      return MPI_INT64_T;
    case ScalarType::UInt16:
      return MPI_UINT16_T;
    case ScalarType::UInt32:
      return MPI_UINT32_T;
    case ScalarType::UInt64:
      return MPI_UINT64_T;
    case ScalarType::Float:
      return MPI_FLOAT;
    case ScalarType::Double:
      return MPI_DOUBLE;
    case ScalarType::ComplexFloat:
      return MPI_C_FLOAT_COMPLEX;
    case ScalarType::ComplexDouble:
      return MPI_C_DOUBLE_COMPLEX;
    default:
      return MPI_DATATYPE_NULL;
  }
}

MPI_Op own_op_of_mpi(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      return MPI_SUM;
    case ReduceOp::kProduct:
      return MPI_PROD;
    case ReduceOp::kMin:
      return MPI_MIN;
    case ReduceOp::kMax:
      return MPI_MAX;
    case ReduceOp::kBand:
      return MPI_BAND;
    case ReduceOp::kBor:
      return MPI_BOR;
    case ReduceOp::kBxor:
      return MPI_BXOR;
  }
  return MPI_OP_NULL;
}

// Whether MPI's operation gives the same result as libtorch's, for dtypes that MPI has.
bool agrees_with_libtorch(ScalarType dtype, ReduceOp op) {
  // If an argument is NaN, libtorch's minimum and maximum are NaN; MPI does not promise that.
  if (op == ReduceOp::kMin || op == ReduceOp::kMax) return !c10::isFloatingType(dtype);
  // In Open MPI 4.1, sums of 8 and 16 bit integers saturate in the vector code but wrap around in the
  // remaining elements. libtorch's sums always wrap around.
  const bool narrow = c10::isIntegralType(dtype, /*includeBool=*/false) && c10::elementSize(dtype) <= 2;
  return !(op == ReduceOp::kSum && narrow);
}

absl::Status probe(ScalarType dtype, ReduceOp op) {
  try {
    const c10::InferenceMode no_grad;
    at::Tensor zero = at::zeros({1}, dtype);
    combine_tensors(op, zero, zero, at::zeros({1}, dtype));
    return absl::OkStatus();
  } catch (const std::exception&) {
    return absl::InvalidArgumentError(
        absl::StrCat("libtorch does not support ", to_string(op), " of ", c10::toString(dtype)));
  }
}

absl::StatusOr<MpiReduction> make_own(MpiRuntime& runtime, ScalarType dtype, ReduceOp op) {
  MPI_User_function* const function = function_of(dtype, op);
  if (function == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("mpi cannot reduce tensors of ", c10::toString(dtype)));
  }
  GRADWIRE_RETURN_IF_ERROR(probe(dtype, op));
  MpiReduction made{.type = own_type_of_mpi(dtype), .op = MPI_OP_NULL};
  if (made.type == MPI_DATATYPE_NULL) {
    GRADWIRE_RETURN_IF_ERROR(runtime.call("MPI_Type_contiguous", [&] {
      return MPI_Type_contiguous(static_cast<int>(c10::elementSize(dtype)), MPI_BYTE, &made.type);
    }));
    GRADWIRE_RETURN_IF_ERROR(runtime.call("MPI_Type_commit", [&] { return MPI_Type_commit(&made.type); }));
  }
  // 1: the operation is commutative, as all reductions here are.
  GRADWIRE_RETURN_IF_ERROR(
      runtime.call("MPI_Op_create", [&] { return MPI_Op_create(function, 1, &made.op); }));
  return made;
}

}  // namespace

absl::StatusOr<MpiReduction> mpi_reduction(MpiRuntime& runtime, ScalarType dtype, ReduceOp op) {
  const MPI_Datatype type = own_type_of_mpi(dtype);
  if (type != MPI_DATATYPE_NULL && agrees_with_libtorch(dtype, op)) {
    return MpiReduction{.type = type, .op = own_op_of_mpi(op)};
  }
  // The types and operations are kept until the process ends.
  static Mutex* mutex = new Mutex;
  static auto& made = *new std::map<std::pair<ScalarType, ReduceOp>, MpiReduction>;
  MutexLock lock(*mutex);
  const auto found = made.find({dtype, op});
  if (found != made.end()) return found->second;
  GRADWIRE_ASSIGN_OR_RETURN(const MpiReduction own, make_own(runtime, dtype, op));
  made.insert({{dtype, op}, own});
  return own;
}

absl::Status start(MpiRuntime& runtime, const MpiMessage& message, int64_t block, MPI_Request* request) {
  const auto start_elements = [&](int count, MPI_Datatype type) {
    return runtime.call(message.sends ? "MPI_Isend" : "MPI_Irecv", [&] {
      return message.sends
                 ? MPI_Isend(message.data, count, type, message.peer, message.tag, message.comm, request)
                 : MPI_Irecv(message.data, count, type, message.peer, message.tag, message.comm, request);
    });
  };
  if (message.bytes <= block) return start_elements(static_cast<int>(message.bytes), MPI_BYTE);
  // A type for the whole message: as many blocks as fit, followed by the remaining bytes.
  MPI_Datatype whole = MPI_DATATYPE_NULL;
  MPI_Datatype both = MPI_DATATYPE_NULL;
  GRADWIRE_RETURN_IF_ERROR(runtime.call(
      "MPI_Type_contiguous", [&] { return MPI_Type_contiguous(static_cast<int>(block), MPI_BYTE, &whole); }));
  int counts[] = {static_cast<int>(message.bytes / block), static_cast<int>(message.bytes % block)};
  MPI_Aint places[] = {0, static_cast<MPI_Aint>(message.bytes / block * block)};
  MPI_Datatype types[] = {whole, MPI_BYTE};
  absl::Status status = runtime.call("MPI_Type_create_struct",
                                     [&] { return MPI_Type_create_struct(2, counts, places, types, &both); });
  if (status.ok()) status = runtime.call("MPI_Type_commit", [&] { return MPI_Type_commit(&both); });
  (void)runtime.call("MPI_Type_free", [&] { return MPI_Type_free(&whole); });
  if (!status.ok()) return status;
  status = start_elements(1, both);
  // MPI keeps a freed type until the calls that use it have ended.
  (void)runtime.call("MPI_Type_free", [&] { return MPI_Type_free(&both); });
  return status;
}

}  // namespace gradwire::collectives
