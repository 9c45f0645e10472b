#include "gradwire/codec/torch/tensor_codec.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <map>
#include <string>
#include <vector>

#include "gradwire/base/threads/execution_state.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/codec/codec_test_util.h"
#include "gradwire/codec/torch/tensors/torch_tensors.h"
#include "gradwire/transport/message.h"
#include "gtest/gtest.h"

namespace gradwire::rpc {
namespace {

at::Tensor sent(const at::Tensor& tensor) {
  auto result = round_trip<at::Tensor>(tensor);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *result : at::Tensor();
}

void expect_same(const at::Tensor& got, const at::Tensor& expected) {
  ASSERT_TRUE(got.defined());
  EXPECT_EQ(got.scalar_type(), expected.scalar_type());
  EXPECT_EQ(got.sizes(), expected.sizes());
  EXPECT_TRUE(at::equal(got, expected));
}

TEST(TensorCodec, EveryNumericDtypeSmallAndLarge) {
  for (at::ScalarType dtype :
       {at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kHalf, at::kFloat, at::kDouble,
        at::kComplexFloat, at::kComplexDouble, at::kBool, at::kBFloat16}) {
    for (int64_t n : {3, 3000})
      expect_same(sent(at::arange(n).remainder(2).to(dtype)), at::arange(n).remainder(2).to(dtype));
  }
  for (at::ScalarType dtype :
       {at::kFloat8_e5m2, at::kFloat8_e4m3fn, at::kUInt16, at::kUInt32, at::kUInt64, at::kComplexHalf}) {
    const at::Tensor got = sent(at::ones({1000}, at::kFloat).to(dtype));
    EXPECT_EQ(got.scalar_type(), dtype);
    EXPECT_EQ(got.nbytes(), 1000 * c10::elementSize(dtype));
  }
}

TEST(TensorCodec, ShapesWithoutDimensionsOrElements) {
  expect_same(sent(at::scalar_tensor(2.5)), at::scalar_tensor(2.5));
  expect_same(sent(at::empty({0})), at::empty({0}));
  expect_same(sent(at::empty({3, 0, 5}, at::kLong)), at::empty({3, 0, 5}, at::kLong));
  EXPECT_FALSE(sent(at::Tensor()).defined());
}

TEST(TensorCodec, DenseStridesAreKept) {
  const at::Tensor x = at::randn({2, 3, 16, 16});
  for (const at::Tensor& y : {x.permute({1, 3, 0, 2}), x.contiguous(at::MemoryFormat::ChannelsLast)}) {
    const at::Tensor got = sent(y);
    expect_same(got, y);
    EXPECT_EQ(got.strides(), y.strides());
  }
}

TEST(TensorCodec, ViewTravelsAsItsOwnBytes) {
  const at::Tensor base = at::randn({1000, 1000});
  for (const at::Tensor& view : {base.slice(0, 10, 20), base.slice(1, 10, 20), base.slice(0, 0, 1000, 3),
                                 base.select(1, 5), base.select(0, 7).expand({50, 1000})}) {
    TestSender sender;
    ASSERT_TRUE(sender.add<at::Tensor>(view).ok());
    const WireMessage wire = *sender.finish();
    ASSERT_EQ(wire.buffers.size(), 1u);
    EXPECT_EQ(wire.buffers[0].size(), view.numel() * sizeof(float));
    expect_same(*decode_first<at::Tensor>(*receive(wire)), view);
  }
}

TEST(TensorCodec, PendingConjugationAndNegationAreResolved) {
  const at::Tensor z = at::randn({100, 2}, at::kComplexDouble);
  expect_same(sent(z.conj()), z.conj());
  EXPECT_FALSE(sent(z.conj()).is_conj());
  expect_same(sent(at::imag(z.conj())), at::imag(z.conj()));
  expect_same(sent(at::_efficientzerotensor({300})), at::zeros({300}));
}

TEST(TensorCodec, ReceivedTensorIsAlignedWritableAndResizable) {
  at::Tensor got = sent(at::ones({1000}));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(got.data_ptr()) % 64, 0u);
  got.add_(1);
  EXPECT_EQ(got.sum().item<double>(), 2000);
  got.resize_({5000});
  got.fill_(3);
  EXPECT_EQ(got.sum().item<double>(), 15000);
}

TEST(TensorCodec, CapturedTensorDoesNotSeeLaterChanges) {
  at::Tensor x = at::ones({1000});
  TestSender sender;
  ASSERT_TRUE(sender.add<at::Tensor>(x).ok());
  const WireMessage wire = *sender.finish();
  x.fill_(7);
  EXPECT_NE(wire.buffers[0].data(), x.data_ptr());
  EXPECT_EQ(decode_first<at::Tensor>(*receive(wire))->sum().item<double>(), 1000);
}

TEST(TensorCodec, BorrowedTensorIsReadInPlace) {
  const at::Tensor x = at::ones({1000});
  TestSender sender(TensorSharing::kBorrow);
  ASSERT_TRUE(sender.add<at::Tensor>(x).ok());
  const WireMessage wire = *sender.finish();
  EXPECT_EQ(wire.buffers[0].data(), x.data_ptr());
  EXPECT_EQ(wire.buffers[0].sharing(), transport::Buffer::Sharing::kBorrowed);
}

TEST(TensorCodec, TensorGivenAwayIsNotCopied) {
  at::Tensor x = at::ones({1000});
  void* const memory = x.data_ptr();
  TestSender sender;
  ASSERT_TRUE(sender.add<at::Tensor>(std::move(x)).ok());
  const WireMessage wire = *sender.finish();
  EXPECT_EQ(wire.buffers[0].data(), memory);
  EXPECT_EQ(wire.buffers[0].sharing(), transport::Buffer::Sharing::kOwned);
  EXPECT_EQ(decode_first<at::Tensor>(*receive(wire))->data_ptr(), memory);
}

TEST(TensorCodec, TemporaryViewOfALiveTensorIsCopied) {
  at::Tensor x = at::ones({1000});
  TestSender sender;
  ASSERT_TRUE(sender.add<at::Tensor>(x.view({10, 100})).ok());
  const WireMessage wire = *sender.finish();
  EXPECT_NE(wire.buffers[0].data(), x.data_ptr());
}

TEST(TensorCodec, ForeignMemoryIsCopied) {
  std::vector<float> memory(1000, 1.0f);
  TestSender sender;
  ASSERT_TRUE(sender.add<at::Tensor>(at::from_blob(memory.data(), {1000})).ok());
  const WireMessage wire = *sender.finish();
  EXPECT_NE(wire.buffers[0].data(), memory.data());
}

TEST(TensorCodec, ManyGigabytesTravelWithoutOverflow) {
  // The memory is borrowed and never touched, so its pages are never mapped.
  const int64_t n = (int64_t{1} << 32) + 12345;
  const at::Tensor x = at::empty({n}, at::kByte);
  x[n - 1] = 42;
  const auto got = round_trip<at::Tensor>(x, TensorSharing::kBorrow);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->numel(), n);
  EXPECT_EQ((*got)[n - 1].item<int>(), 42);
}

TEST(TensorCodec, SparseCooRoundTrip) {
  const at::Tensor indices = at::tensor({0, 2, 2, 1, 0, 0}, at::kLong).view({2, 3});
  const at::Tensor values = at::randn({3, 500});
  const at::Tensor sparse = at::sparse_coo_tensor(indices, values, {3, 2, 500});
  for (const at::Tensor& x : {sparse, sparse.coalesce()}) {
    const at::Tensor got = sent(x);
    EXPECT_EQ(got.is_coalesced(), x.is_coalesced());
    EXPECT_EQ(got._nnz(), x._nnz());
    expect_same(got.to_dense(), x.to_dense());
  }
  EXPECT_EQ(sent(at::sparse_coo_tensor({4, 5}, at::kFloat))._nnz(), 0);
}

TEST(TensorCodec, SparseCsrRoundTrip) {
  const at::Tensor dense = at::eye(50) * 3;
  const at::Tensor got = sent(dense.to_sparse_csr());
  EXPECT_EQ(got.layout(), at::kSparseCsr);
  expect_same(got.to_dense(), dense);
  expect_same(at::matmul(got, at::ones({50, 1})), at::full({50, 1}, 3.0));
}

TEST(TensorCodec, QuantizedRoundTrip) {
  const at::Tensor x = at::randn({4, 200});
  for (const at::Tensor& q :
       {at::quantize_per_tensor(x, 0.05, 10, at::kQInt8), at::quantize_per_tensor(x, 0.05, 10, at::kQUInt8),
        at::quantize_per_tensor(x.t(), 0.05, 0, at::kQInt32),
        at::quantize_per_channel(x, at::full({4}, 0.1, at::kDouble), at::arange(4), 0, at::kQInt8)}) {
    const at::Tensor got = sent(q);
    EXPECT_EQ(got.qscheme(), q.qscheme());
    expect_same(got.dequantize(), q.dequantize());
  }
}

TEST(TensorCodec, RequiresGradTravelsAndMakesALeaf) {
  const at::Tensor x = at::ones({1000}).requires_grad_();
  const at::Tensor got = sent(x * 2);
  EXPECT_TRUE(got.requires_grad());
  EXPECT_TRUE(got.is_leaf());
  got.sum().backward();
  EXPECT_TRUE(got.grad().defined());
  EXPECT_FALSE(sent(x.detach()).requires_grad());
}

TEST(TensorCodec, TensorInTheGraphIsSentWithoutRequiresGrad) {
  TestSender sender;
  ASSERT_TRUE(sender.add<at::Tensor>(at::ones({3}).requires_grad_()).ok());
  sender.payload().mutable_graph()->add_tensors(0);
  const auto in = receive(*sender.finish());
  ASSERT_TRUE(in.ok()) << in.status();
  EXPECT_FALSE(in->payload->tensors(0).requires_grad());
  EXPECT_FALSE(decode_first<at::Tensor>(*in)->requires_grad());
}

TEST(TensorCodec, UnsupportedTensorIsNamedInTheError) {
  const auto device = round_trip<at::Tensor>(at::empty({2}, at::TensorOptions().device(at::kMeta)));
  EXPECT_EQ(device.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(device.status().message().find("meta"), std::string::npos) << device.status();
  EXPECT_FALSE(round_trip<at::Tensor>(at::eye(4).to_sparse_csc()).ok());
}

TEST(TensorCodec, StateDictTravels) {
  const std::map<std::string, at::Tensor> state = {{"bias", at::randn({10})},
                                                   {"weight", at::randn({100, 10})}};
  const auto got = round_trip<std::map<std::string, at::Tensor>>(state);
  ASSERT_TRUE(got.ok()) << got.status();
  ASSERT_EQ(got->size(), 2u);
  for (const auto& [name, tensor] : state) expect_same(got->at(name), tensor);
}

TEST(TensorCodec, SettingsTravel) {
  EXPECT_EQ(*round_trip<c10::ScalarType>(at::kHalf), at::kHalf);
  EXPECT_EQ(*round_trip<c10::Layout>(at::kSparse), at::kSparse);
  EXPECT_EQ(*round_trip<c10::MemoryFormat>(at::MemoryFormat::ChannelsLast), at::MemoryFormat::ChannelsLast);
  EXPECT_EQ(*round_trip<c10::Device>(at::Device("cuda:3")), at::Device("cuda:3"));
  EXPECT_EQ(round_trip<c10::Scalar>(c10::Scalar(7))->toLong(), 7);
  EXPECT_TRUE(round_trip<c10::Scalar>(c10::Scalar(true))->isBoolean());
  EXPECT_EQ(round_trip<c10::Scalar>(c10::Scalar(2.5))->toDouble(), 2.5);
  EXPECT_EQ(round_trip<c10::complex<float>>(c10::complex<float>(1, 2))->imag(), 2);
  const auto hostile = round_trip<int64_t, c10::ScalarType>(int64_t{99});
  EXPECT_EQ(hostile.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(TorchRuntime, ErrorsOfLibtorchCarryNoBacktrace) {
  absl::Status status;
  try {
    at::ones({2, 3}).matmul(at::ones({2, 3}));
  } catch (...) {
    status = status_from_exception(std::current_exception());
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kUnknown);
  EXPECT_NE(status.message().find("c10::Error"), std::string::npos) << status;
  EXPECT_EQ(status.message().find("frame #"), std::string::npos) << status;
}

TEST(TorchRuntime, ModesBelongToTheExecutionState) {
  ExecutionState no_grad;
  {
    const c10::NoGradGuard guard;
    no_grad = ExecutionState::capture();
  }
  {
    const c10::InferenceMode inference;
    const ScopedExecutionState clean;
    EXPECT_TRUE(c10::GradMode::is_enabled());
    EXPECT_FALSE(c10::InferenceMode::is_enabled());
    EXPECT_TRUE((at::ones({2}).requires_grad_() * 2).requires_grad());
  }
  const ScopedExecutionState scope(no_grad);
  EXPECT_FALSE(c10::GradMode::is_enabled());
}

}  // namespace
}  // namespace gradwire::rpc
