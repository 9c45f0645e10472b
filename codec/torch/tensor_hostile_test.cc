// Tests with payloads that no honest sender creates. Decoding must return an error or a tensor that kernels
// can use.
#include <ATen/ATen.h>

#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gradwire/codec/codec_test_util.h"
#include "gradwire/codec/torch/tensor_codec.h"
#include "gradwire/codec/torch/tensors/tensor_reader.h"
#include "gradwire/codec/torch/tensors/torch_tensors.h"
#include "gradwire/transport/message.h"
#include "gtest/gtest.h"

namespace gradwire::rpc {
namespace {

std::vector<at::Tensor> honest_tensors() {
  const at::Tensor dense = at::randn({6, 8});
  return {
      dense,
      dense.t(),
      at::randn({40, 40}).t(),
      at::arange(300),
      at::randn({20, 20}) > 0,
      at::scalar_tensor(1.5).requires_grad_(),
      at::empty({0, 4}),
      at::randn({30, 30}, at::kComplexDouble),
      at::sparse_coo_tensor(at::tensor({0, 2, 2, 1, 0, 0}, at::kLong).view({2, 3}), at::randn({3, 100}),
                            {3, 2, 100}),
      dense.to_sparse().coalesce(),
      (dense * (dense > 0)).to_sparse_csr(),
      at::_sparse_csr_tensor_unsafe(at::tensor({0, 1, 2}, at::kInt), at::tensor({1, 0}, at::kInt),
                                    at::randn({2}), {2, 2},
                                    at::TensorOptions().dtype(at::kFloat).layout(at::kSparseCsr)),
      at::quantize_per_tensor(dense, 0.05, 10, at::kQUInt8),
      at::quantize_per_channel(dense, at::full({6}, 0.1, at::kDouble), at::arange(6), 0, at::kQInt8),
  };
}

// Runs the kernels that depend most on the internal consistency of a tensor. Exceptions of libtorch are
// allowed. Dense forms of large tensors are skipped.
void use(const at::Tensor& tensor) {
  const auto attempt = [](const std::function<void()>& use) {
    try {
      use();
    } catch (const c10::Error&) {
    } catch (const std::exception&) {
    }
  };
  const bool small = tensor.numel() <= 1 << 20;
  const at::Tensor plain = tensor.detach();
  attempt([&] { plain.sum(); });
  if (tensor.is_quantized()) attempt([&] { plain.dequantize().sum(); });
  if (!small) return;
  attempt([&] { plain.clone(); });
  if (tensor.is_sparse() || tensor.layout() == at::kSparseCsr) attempt([&] { plain.to_dense().sum(); });
  if (tensor.is_sparse()) attempt([&] { plain.coalesce().to_dense(); });
  if (tensor.dim() == 2)
    attempt([&] { at::mm(plain, at::ones({plain.size(1), 3}, plain.options().layout(at::kStrided))); });
  if (tensor.scalar_type() == at::kBool && tensor.layout() == at::kStrided) {
    attempt([&] { at::ones(plain.sizes()).masked_select(plain); });
    attempt([&] { plain.nonzero(); });
  }
  attempt([&] { plain.contiguous().add_(1); });
}

int64_t hostile_number(std::mt19937_64& random) {
  switch (random() % 8) {
    case 0:
      return -1;
    case 1:
      return 0;
    case 2:
      return int64_t{1} << (random() % 63);
    case 3:
      return std::numeric_limits<int64_t>::max() - static_cast<int64_t>(random() % 3);
    case 4:
      return std::numeric_limits<int64_t>::min();
    default:
      return static_cast<int64_t>(random() % 200) - 10;
  }
}

void mutate_bytes(char* data, std::size_t size, std::mt19937_64& random) {
  if (size == 0) return;
  if (size >= 8 && random() % 2 == 0) {
    const int64_t number = hostile_number(random);
    std::memcpy(data + random() % (size / 8) * 8, &number, 8);
  } else {
    data[random() % size] ^= static_cast<char>(1 << random() % 8);
  }
}

// Changes one field of a description, of one of its parts, or of its data.
void mutate(proto::Tensor& tensor, std::vector<transport::Buffer>& buffers, std::mt19937_64& random) {
  if (tensor.parts_size() > 0 && random() % 2 == 0) {
    mutate(*tensor.mutable_parts(static_cast<int>(random() % tensor.parts_size())), buffers, random);
    return;
  }
  switch (random() % 14) {
    case 0:
      tensor.set_kind(static_cast<proto::Tensor::Kind>(random() % 6));
      break;
    case 1:
      tensor.set_dtype(static_cast<uint32_t>(random() % 50));
      break;
    case 2:
      if (tensor.sizes_size() > 0)
        tensor.set_sizes(static_cast<int>(random() % tensor.sizes_size()), hostile_number(random));
      break;
    case 3:
      tensor.add_sizes(hostile_number(random));
      break;
    case 4:
      if (tensor.sizes_size() > 0) tensor.mutable_sizes()->RemoveLast();
      break;
    case 5:
      tensor.add_strides(hostile_number(random));
      break;
    case 6:
      if (tensor.strides_size() > 0) {
        tensor.set_strides(static_cast<int>(random() % tensor.strides_size()), hostile_number(random));
      }
      break;
    case 7:
      tensor.set_buffer(static_cast<uint32_t>(random() % 5));
      if (random() % 2 == 0) tensor.mutable_on_device()->set_buffers(static_cast<uint32_t>(random() % 4));
      break;
    case 8:
      tensor.set_coalesced(!tensor.coalesced());
      break;
    case 9:
      tensor.set_requires_grad(!tensor.requires_grad());
      break;
    case 10:
      tensor.mutable_quantization()->set_channel_axis(static_cast<uint32_t>(random() % 4));
      break;
    case 11:
      if (random() % 2 == 0) {
        tensor.mutable_quantization()->set_zero_point(hostile_number(random));
      } else {
        tensor.mutable_quantization()->set_scale(
            random() % 2 == 0 ? 0.0 : std::numeric_limits<double>::quiet_NaN());
      }
      break;
    case 12:
      if (random() % 2 == 0 && tensor.parts_size() > 0) {
        tensor.mutable_parts()->RemoveLast();
      } else {
        *tensor.add_parts() = proto::Tensor(tensor);
      }
      break;
    default:
      if (tensor.buffer() != 0 && tensor.buffer() <= buffers.size()) {
        transport::Buffer& buffer = buffers[tensor.buffer() - 1];
        mutate_bytes(static_cast<char*>(buffer.data()), buffer.size(), random);
      } else {
        mutate_bytes(tensor.mutable_inline_data()->data(), tensor.inline_data().size(), random);
      }
  }
}

// Copies the buffers, because a decoded tensor may be modified.
std::vector<transport::Buffer> copies(const std::vector<transport::Buffer>& buffers) {
  std::vector<transport::Buffer> result;
  for (const transport::Buffer& buffer : buffers) {
    auto memory = std::make_shared<at::Tensor>(at::empty({static_cast<int64_t>(buffer.size())}, at::kByte));
    std::memcpy(memory->data_ptr(), buffer.data(), buffer.size());
    void* const data = memory->data_ptr();
    result.emplace_back(data, buffer.size(), std::move(memory));
  }
  return result;
}

TEST(HostileTensor, MutatedDescriptionsGiveAnErrorOrAUsableTensor) {
  std::mt19937_64 random(20240229);
  int refused = 0;
  int accepted = 0;
  for (const at::Tensor& honest : honest_tensors()) {
    TestSender sender;
    ASSERT_TRUE(sender.add<at::Tensor>(honest).ok());
    const auto wire = sender.finish();
    ASSERT_TRUE(wire.ok()) << wire.status();
    ASSERT_TRUE(tensor_backend()->decode(sender.payload(), copies(wire->buffers)).ok());
    for (int i = 0; i < 400; ++i) {
      proto::Payload payload = sender.payload();
      std::vector<transport::Buffer> buffers = copies(wire->buffers);
      for (uint64_t n = 1 + random() % 3; n > 0; --n) mutate(*payload.mutable_tensors(0), buffers, random);
      auto set = tensor_backend()->decode(payload, std::move(buffers));
      if (!set.ok()) {
        ++refused;
        EXPECT_EQ(set.status().code(), absl::StatusCode::kInvalidArgument) << set.status();
        continue;
      }
      ++accepted;
      use(static_cast<TorchTensors&>(**set).tensors[0]);
    }
  }
  EXPECT_GT(refused, 500);
  EXPECT_GT(accepted, 500);
}

TEST(HostileTensor, FlippedBitsOfTheEnvelopeNeverCrash) {
  std::mt19937_64 random(7);
  for (const at::Tensor& honest : honest_tensors()) {
    TestSender sender;
    ASSERT_TRUE(sender.add<at::Tensor>(honest).ok());
    const WireMessage wire = *sender.finish();
    for (int i = 0; i < 150; ++i) {
      WireMessage bad{wire.payload, copies(wire.buffers)};
      for (int n = 0; n < 3; ++n)
        bad.payload[random() % bad.payload.size()] ^= static_cast<char>(1 << random() % 8);
      if (random() % 4 == 0) bad.payload.resize(random() % bad.payload.size());
      const auto in = receive(std::move(bad));
      if (!in.ok()) continue;
      const auto tensor = decode_first<at::Tensor>(*in);
      if (tensor.ok() && tensor->defined()) use(*tensor);
    }
  }
}

proto::Tensor described(std::vector<int64_t> sizes, at::ScalarType dtype, const std::string& data) {
  proto::Tensor tensor;
  tensor.set_dtype(static_cast<uint32_t>(dtype));
  tensor.mutable_sizes()->Add(sizes.begin(), sizes.end());
  tensor.set_inline_data(data);
  return tensor;
}

absl::Status refusal(const proto::Tensor& tensor, std::vector<transport::Buffer> buffers = {}) {
  proto::Payload payload;
  *payload.add_tensors() = tensor;
  return tensor_backend()->decode(payload, std::move(buffers)).status();
}

template <class T>
std::string bytes_of(std::vector<T> values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

TEST(HostileTensor, SizesThatOverflowAreRefused) {
  const int64_t big = int64_t{1} << 32;
  EXPECT_FALSE(refusal(described({big, big}, at::kFloat, "")).ok());
  EXPECT_FALSE(refusal(described({int64_t{1} << 62}, at::kFloat, "")).ok());
  EXPECT_FALSE(refusal(described({0, big, big}, at::kFloat, "")).ok());
  EXPECT_FALSE(refusal(described({2}, at::kFloat, "abc")).ok());
}

TEST(HostileTensor, BufferSharedByTwoTensorsIsRefused) {
  proto::Payload payload;
  proto::Tensor tensor = described({1000}, at::kByte, "");
  tensor.set_buffer(1);
  *payload.add_tensors() = tensor;
  *payload.add_tensors() = tensor;
  auto memory = std::make_shared<std::string>(1000, 'x');
  std::vector<transport::Buffer> buffers = {transport::Buffer(memory->data(), 1000, memory)};
  const absl::Status status = tensor_backend()->decode(payload, buffers).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("tensor 1"), std::string::npos) << status;
}

// A tensor of 100 floats that are in buffers with these numbers of bytes, from the first one on.
struct InBuffers {
  explicit InBuffers(const std::vector<std::size_t>& sizes) : tensor(described({100}, at::kFloat, "")) {
    tensor.set_buffer(1);
    tensor.mutable_on_device()->set_buffers(static_cast<uint32_t>(sizes.size()));
    std::size_t next = 0;
    for (std::size_t size : sizes) {
      auto memory = std::make_shared<std::string>(size, '\0');
      for (char& byte : *memory) byte = static_cast<char>(next++ % 61);
      buffers.emplace_back(memory->data(), size, memory);
    }
  }
  absl::StatusOr<TensorPieces> pieces() const { return TensorReader(buffers).read_pieces(tensor); }
  absl::StatusOr<at::Tensor> whole() const { return TensorReader(buffers).read(tensor); }
  bool refused() const {
    return pieces().status().code() == absl::StatusCode::kInvalidArgument &&
           whole().status().code() == absl::StatusCode::kInvalidArgument;
  }
  proto::Tensor tensor;
  std::vector<transport::Buffer> buffers;
};

TEST(HostileTensor, SeveralBuffersOfATensorAreReadOneAfterTheOther) {
  const InBuffers one({400}), three({40, 200, 160});
  const auto expected = one.whole(), whole = three.whole();
  ASSERT_TRUE(expected.ok() && whole.ok()) << whole.status();
  EXPECT_TRUE(at::equal(*whole, *expected));
  const auto pieces = three.pieces();
  ASSERT_TRUE(pieces.ok()) << pieces.status();
  EXPECT_EQ(pieces->sizes, std::vector<int64_t>{100});
  EXPECT_EQ(pieces->buffers.size(), 3u);
  // Bools are checked in one memory.
  proto::Tensor bools = described({100}, at::kBool, "");
  bools.mutable_on_device()->set_buffers(2);
  EXPECT_FALSE(TensorReader::has_pieces(bools));
}

TEST(HostileTensor, SeveralBuffersMustHaveExactlyTheBytesOfTheTensor) {
  EXPECT_TRUE(InBuffers({200, 196}).refused());
  EXPECT_TRUE(InBuffers({200, 204}).refused());
  EXPECT_TRUE(InBuffers({200, 200, 4}).refused());
  EXPECT_TRUE(InBuffers({400, 400}).refused());
  // Elements that are divided between two buffers.
  EXPECT_EQ(InBuffers({198, 202}).pieces().status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(HostileTensor, BuffersThatTheMessageDoesNotHaveAreRefused) {
  for (uint32_t first : {0u, 2u, 3u, 4u, 0xFFFFFFFFu}) {
    for (uint32_t count : {2u, 3u, 0xFFFFFFFFu}) {
      InBuffers in({200, 200});
      in.tensor.set_buffer(first);
      in.tensor.mutable_on_device()->set_buffers(count);
      EXPECT_EQ(in.pieces().status().code(), absl::StatusCode::kInvalidArgument) << first << " " << count;
      if (first != 0) {
        EXPECT_TRUE(in.refused()) << first << " " << count;
      }
    }
  }
  InBuffers inline_too({200, 200});
  inline_too.tensor.set_inline_data(std::string(400, 'x'));
  EXPECT_TRUE(inline_too.refused());
  InBuffers no_elements({200, 200});
  no_elements.tensor.set_sizes(0, 0);
  EXPECT_TRUE(no_elements.refused());
  InBuffers gaps({200, 200});
  gaps.tensor.add_strides(2);
  EXPECT_TRUE(gaps.refused());
}

TEST(HostileTensor, CsrColumnsOutOfRangeAreRefused) {
  proto::Tensor csr = described({2, 2}, at::kFloat, "");
  csr.set_kind(proto::Tensor::SPARSE_CSR);
  *csr.add_parts() = described({3}, at::kLong, bytes_of<int64_t>({0, 1, 2}));
  *csr.add_parts() = described({2}, at::kLong, bytes_of<int64_t>({0, 1}));
  *csr.add_parts() = described({2}, at::kFloat, bytes_of<float>({1, 2}));
  EXPECT_TRUE(refusal(csr).ok()) << refusal(csr);
  csr.mutable_parts(1)->set_inline_data(bytes_of<int64_t>({0, 1 << 20}));
  EXPECT_EQ(refusal(csr).code(), absl::StatusCode::kInvalidArgument);
  csr.mutable_parts(1)->set_inline_data(bytes_of<int64_t>({0, 1}));
  csr.mutable_parts(0)->set_inline_data(bytes_of<int64_t>({0, 1 << 20, 2}));
  EXPECT_EQ(refusal(csr).code(), absl::StatusCode::kInvalidArgument);
}

TEST(HostileTensor, CooMarkedCoalescedWithoutBeingSoIsRefused) {
  proto::Tensor coo = described({3}, at::kFloat, "");
  coo.set_kind(proto::Tensor::SPARSE_COO);
  coo.set_coalesced(true);
  *coo.add_parts() = described({1, 2}, at::kLong, bytes_of<int64_t>({1, 1}));
  *coo.add_parts() = described({2}, at::kFloat, bytes_of<float>({1, 2}));
  EXPECT_EQ(refusal(coo).code(), absl::StatusCode::kInvalidArgument);
  coo.set_coalesced(false);
  EXPECT_TRUE(refusal(coo).ok()) << refusal(coo);
}

TEST(HostileTensor, BoolsThatAreNeitherTrueNorFalseAreRefused) {
  EXPECT_TRUE(refusal(described({2}, at::kBool, std::string("\0\1", 2))).ok());
  EXPECT_FALSE(refusal(described({2}, at::kBool, "\2\3")).ok());
}

TEST(HostileTensor, RequiresGradOfAnIntegerIsRefused) {
  proto::Tensor tensor = described({1}, at::kLong, bytes_of<int64_t>({1}));
  tensor.set_requires_grad(true);
  EXPECT_EQ(refusal(tensor).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace gradwire::rpc
