#include "gradwire/gateway/values/tensors.h"

#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace gradwire::gateway {
namespace {

v1::Tensor tensor(v1::DType dtype, std::vector<int64_t> shape, std::size_t bytes) {
  v1::Tensor tensor;
  tensor.set_dtype(dtype);
  tensor.mutable_shape()->Add(shape.begin(), shape.end());
  tensor.set_data(std::string(bytes, 'x'));
  return tensor;
}

TEST(GatewayTensors, LengthIsShapeTimesItemSize) {
  EXPECT_EQ(*checked_bytes(tensor(v1::DTYPE_FLOAT32, {2, 3}, 24)), 24u);
  EXPECT_EQ(*checked_bytes(tensor(v1::DTYPE_COMPLEX128, {}, 16)), 16u);
  EXPECT_EQ(*checked_bytes(tensor(v1::DTYPE_INT64, {0, 5}, 0)), 0u);
  EXPECT_FALSE(checked_bytes(tensor(v1::DTYPE_FLOAT32, {2, 3}, 23)).ok());
  v1::Tensor chunked = tensor(v1::DTYPE_FLOAT32, {1024, 1024}, 0);
  chunked.set_chunked(true);
  EXPECT_EQ(*checked_bytes(chunked), 4u << 20);
  chunked.set_data("x");
  EXPECT_FALSE(checked_bytes(chunked).ok());
}

TEST(GatewayTensors, AbsurdShapesAreRefused) {
  const int64_t huge = std::numeric_limits<int64_t>::max();
  const int64_t root = int64_t{1} << 32;
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{-1},
                                            {huge},
                                            {root, root},
                                            {huge, 0},
                                            {2, huge, 2},
                                            std::vector<int64_t>(65, 1)}) {
    v1::Tensor chunked = tensor(v1::DTYPE_INT64, shape, 0);
    chunked.set_chunked(true);
    EXPECT_EQ(checked_bytes(chunked).status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_FALSE(checked_bytes(tensor(v1::DTYPE_UNSPECIFIED, {1}, 1)).ok());
  EXPECT_FALSE(checked_bytes(tensor(static_cast<v1::DType>(9999), {1}, 1)).ok());
}

}  // namespace
}  // namespace gradwire::gateway
