#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstring>

#include "gradwire/codec/torch/tensors/torch_tensors.h"
#include "gradwire/gateway/values/dtypes.h"
#include "gradwire/gateway/values/tensors.h"

namespace gradwire::gateway {
namespace {

TEST(GatewayTorch, NumbersAndSizesAreThoseOfLibtorch) {
  for (int number = 0; number < static_cast<int>(at::ScalarType::NumOptions); ++number) {
    const v1::DType dtype = dtype_of(number);
    if (dtype == v1::DTYPE_UNSPECIFIED) continue;
    EXPECT_EQ(item_size(dtype), static_cast<int64_t>(c10::elementSize(static_cast<at::ScalarType>(number))));
    EXPECT_EQ(torch_number(dtype), number);
  }
  EXPECT_EQ(torch_number(v1::DTYPE_FLOAT32), static_cast<int>(at::kFloat));
  EXPECT_EQ(torch_number(v1::DTYPE_BOOL), static_cast<int>(at::kBool));
  EXPECT_EQ(torch_number(v1::DTYPE_BFLOAT16), static_cast<int>(at::kBFloat16));
  EXPECT_EQ(torch_number(v1::DTYPE_UINT64), static_cast<int>(at::kUInt64));
  EXPECT_EQ(torch_number(v1::DTYPE_FLOAT8_E4M3FN), static_cast<int>(at::kFloat8_e4m3fn));
  EXPECT_EQ(torch_number(v1::DTYPE_FLOAT8_E5M2), static_cast<int>(at::kFloat8_e5m2));
  EXPECT_EQ(torch_number(v1::DTYPE_COMPLEX32), static_cast<int>(at::kComplexHalf));
}

TEST(GatewayTorch, TensorsBecomeRowMajorBytesAndBack) {
  ASSERT_NE(tensor_bridge(), nullptr);
  rpc::TorchTensors set;
  set.add(at::arange(6, at::kFloat).view({2, 3}).t(), false);
  const absl::StatusOr<TensorBytes> bytes = tensor_bridge()->read(set, 0);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_EQ(bytes->shape, (std::vector<int64_t>{3, 2}));
  ASSERT_EQ(bytes->bytes.size(), 24u);
  const float expected[] = {0, 3, 1, 4, 2, 5};
  EXPECT_EQ(std::memcmp(bytes->bytes.data(), expected, 24), 0);

  absl::StatusOr<transport::Buffer> memory = tensor_bridge()->allocate(24);
  ASSERT_TRUE(memory.ok());
  std::memcpy(memory->data(), expected, 24);
  proto::Payload payload;
  rpc::Encoder encoder(payload, nullptr);
  EXPECT_EQ(tensor_bridge()->add({v1::DTYPE_FLOAT32, {3, 2}, *memory}, encoder), 0u);
  EXPECT_TRUE(at::equal(encoder.tensors<rpc::TorchTensors>().tensors[0], set.tensors[0]));
}

TEST(GatewayTorch, SparseTensorsAreRefused) {
  rpc::TorchTensors set;
  set.add(at::ones({2, 2}).to_sparse(), false);
  EXPECT_EQ(tensor_bridge()->read(set, 0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(tensor_bridge()->read(set, 7).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace gradwire::gateway
