#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>

#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "gradwire/codec/codec_test_util.h"
#include "gradwire/codec/torch/ivalue_codec.h"
#include "gradwire/codec/torch/tensor_codec.h"
#include "gradwire/tests/fuzz/fuzzing.h"
#include "gtest/gtest.h"

namespace gradwire::rpc {
namespace {

std::vector<at::Tensor> tensors() {
  at::manual_seed(1);
  const at::Tensor dense = at::randn({6, 8});
  return {
      dense,
      dense.t(),
      at::randn({20, 20}).t(),
      at::arange(200),
      at::arange(12, at::kByte).view({3, 4}).slice(1, 1, 3),
      at::randn({20}) > 0,
      at::scalar_tensor(1.5).requires_grad_(),
      at::empty({0, 4}),
      at::ones({1}).expand({50}),
      at::randn({4}, at::kComplexDouble),
      at::randn({4}).to(at::kHalf),
      dense.to_sparse(),
      at::sparse_coo_tensor(at::tensor({0, 2, 2, 1, 0, 0}, at::kLong).view({2, 3}), at::randn({3}), {3, 2}),
      (dense * (dense > 0)).to_sparse_csr(),
      at::quantize_per_tensor(dense, 0.05, 10, at::kQUInt8),
      at::quantize_per_channel(dense, at::full({6}, 0.1, at::kDouble), at::arange(6), 0, at::kQInt8),
      at::Tensor(),
  };
}

std::vector<c10::IValue> values() {
  c10::impl::GenericList mixed(c10::AnyType::get());
  mixed.push_back(c10::IValue(1));
  mixed.push_back(c10::IValue("two"));
  c10::impl::GenericDict named(c10::StringType::get(), c10::TensorType::get());
  named.insert("weight", at::ones({2}));
  c10::impl::GenericDict numbered(c10::IntType::get(), c10::AnyType::get());
  numbered.insert(3, c10::IValue(mixed));
  return {
      c10::IValue(),
      c10::IValue(true),
      c10::IValue(int64_t{-5}),
      c10::IValue(2.5),
      c10::IValue(c10::complex<double>(1, -2)),
      c10::IValue("text"),
      c10::IValue(at::Device("cpu")),
      c10::IValue(std::vector<int64_t>{1, 2}),
      c10::IValue(std::vector<double>{}),
      c10::IValue(c10::List<bool>({true, false})),
      c10::IValue(std::vector<at::Tensor>{at::ones({2}), at::zeros({40})}),
      c10::IValue(c10::List<std::optional<at::Tensor>>({at::ones({2}), std::nullopt})),
      c10::IValue(std::vector<std::string>{"a", ""}),
      c10::IValue(std::make_tuple(int64_t{1}, at::ones({1}), std::string("x"))),
      c10::IValue(mixed),
      c10::IValue(named),
      c10::IValue(numbered),
  };
}

std::string encoded(const c10::IValue& value) {
  TestSender sender;
  EXPECT_TRUE(sender.add<c10::IValue>(value).ok());
  const absl::StatusOr<WireMessage> wire = sender.finish();
  EXPECT_TRUE(wire.ok()) << wire.status();
  std::string bytes(1, static_cast<char>(wire->buffers.size()));
  for (const transport::Buffer& buffer : wire->buffers) {
    bytes.push_back(static_cast<char>(buffer.size()));
    bytes.push_back(static_cast<char>(buffer.size() >> 8));
    bytes.append(static_cast<const char*>(buffer.data()), buffer.size());
  }
  return bytes + wire->payload;
}

TEST(ValuesFuzzer, SeededMutationsGiveAnErrorOrAUsableValue) {
  std::vector<std::string> honest;
  for (const at::Tensor& tensor : tensors()) honest.push_back(encoded(c10::IValue(tensor)));
  for (const c10::IValue& value : values()) honest.push_back(encoded(value));
  for (const std::string& bytes : honest) fuzzing::run(bytes);
  for (unsigned seed = 0; seed < 5'000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::string bytes = honest[random() % honest.size()];
    fuzzing::mutate(bytes, random);
    fuzzing::run(bytes);
  }
}

}  // namespace
}  // namespace gradwire::rpc
