#include "gradwire/gateway/values/dtypes.h"

#include "gradwire/codec/dtype.h"

namespace gradwire::gateway {
namespace {

struct DTypeRow {
  v1::DType dtype;
  int torch;
};

// The numbers are those of c10::ScalarType. gateway/torch checks them against libtorch.
constexpr DTypeRow kDTypes[] = {
    {v1::DTYPE_BOOL, 11},     {v1::DTYPE_UINT8, 0},          {v1::DTYPE_INT8, 1},
    {v1::DTYPE_INT16, 2},     {v1::DTYPE_INT32, 3},          {v1::DTYPE_INT64, 4},
    {v1::DTYPE_FLOAT16, 5},   {v1::DTYPE_BFLOAT16, 15},      {v1::DTYPE_FLOAT32, 6},
    {v1::DTYPE_FLOAT64, 7},   {v1::DTYPE_COMPLEX64, 9},      {v1::DTYPE_COMPLEX128, 10},
    {v1::DTYPE_UINT16, 27},   {v1::DTYPE_UINT32, 28},        {v1::DTYPE_UINT64, 29},
    {v1::DTYPE_COMPLEX32, 8}, {v1::DTYPE_FLOAT8_E4M3FN, 24}, {v1::DTYPE_FLOAT8_E5M2, 23},
};

}  // namespace

int torch_number(v1::DType dtype) {
  for (const DTypeRow& row : kDTypes) {
    if (row.dtype == dtype) return row.torch;
  }
  return -1;
}

int64_t item_size(v1::DType dtype) { return rpc::element_bytes(torch_number(dtype)); }

v1::DType dtype_of(int torch_number) {
  for (const DTypeRow& row : kDTypes) {
    if (row.torch == torch_number) return row.dtype;
  }
  return v1::DTYPE_UNSPECIFIED;
}

}  // namespace gradwire::gateway
