#include "gradwire/rpc/stock_modules.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>

#include <functional>
#include <initializer_list>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gradwire/base/testing/status_of.h"
#include "gradwire/codec/encoder.h"
#include "gradwire/rpc/testing/group.h"

namespace gradwire::rpc {
namespace {

namespace nn = torch::nn;
using ::testing::AllOf;
using ::testing::HasSubstr;

class StockModules : public ::testing::Test {
 protected:
  ~StockModules() override {
    guard_.reset();
    group_.expect_empty();
  }

  // A module of the other worker with the weights of `local`.
  template <class M, class... A>
  RemoteModule<M> like(M& local, A&&... arguments) {
    RemoteModule<M> remote("worker1", std::forward<A>(arguments)...);
    remote.load_state_dict(state_dict(local));
    remote.eval();
    local.eval();
    return remote;
  }

  testing::Group group_{2};
  std::optional<AgentGuard> guard_{std::in_place, group_[0]};
};

bool same(const at::Tensor& a, const at::Tensor& b) { return at::equal(a.detach(), b.detach()); }

// The options of `M`, sent with all fields, make the same module.
template <class M, class Options, class... In>
void expect_same(const Options& options, const In&... inputs) {
  M local(options);
  RemoteModule<M> remote("worker1", options);
  remote.load_state_dict(state_dict(local));
  remote.eval();
  local.eval();
  EXPECT_TRUE(same(remote.forward(inputs...), local.forward(inputs...))) << local.name();
}

TEST_F(StockModules, OptionsTravelWithAllFields) {
  const at::Tensor x = at::rand({4, 6});
  const at::Tensor image = at::rand({2, 4, 8, 8});
  expect_same<nn::LinearImpl>(nn::LinearOptions(6, 3).bias(false), x);
  expect_same<nn::Conv1dImpl>(nn::Conv1dOptions(4, 6, 3).stride(2).padding(torch::kValid),
                              at::rand({2, 4, 9}));
  expect_same<nn::Conv2dImpl>(
      nn::Conv2dOptions(4, 6, {3, 2}).stride({1, 2}).padding({2, 1}).groups(2).padding_mode(torch::kReflect),
      image);
  expect_same<nn::Conv2dImpl>(nn::Conv2dOptions(4, 6, 3).padding(torch::kSame).dilation(2).bias(false),
                              image);
  expect_same<nn::Conv3dImpl>(nn::Conv3dOptions(1, 2, 2), at::rand({1, 1, 4, 4, 4}));
  expect_same<nn::FlattenImpl>(nn::FlattenOptions().start_dim(2), image);
  expect_same<nn::EmbeddingImpl>(nn::EmbeddingOptions(10, 4).padding_idx(2), at::tensor({1, 2, 3}));
  expect_same<nn::EmbeddingImpl>(nn::EmbeddingOptions(10, 4)._weight(at::rand({10, 4})),
                                 at::tensor({1, 2, 3}));
  expect_same<nn::LayerNormImpl>(nn::LayerNormOptions({6}).eps(0.5).elementwise_affine(false), x);
  expect_same<nn::GroupNormImpl>(nn::GroupNormOptions(2, 4).eps(0.5), image);
  expect_same<nn::LocalResponseNormImpl>(nn::LocalResponseNormOptions(2).alpha(0.5).k(3), image);
  expect_same<nn::BatchNorm2dImpl>(nn::BatchNorm2dOptions(4).eps(0.5).affine(false), image);
  expect_same<nn::InstanceNorm2dImpl>(nn::InstanceNorm2dOptions(4).eps(0.5).affine(true), image);
  expect_same<nn::ELUImpl>(nn::ELUOptions().alpha(0.3), x - 0.5);
  expect_same<nn::GELUImpl>(nn::GELUOptions().approximate("tanh"), x);
  expect_same<nn::HardtanhImpl>(nn::HardtanhOptions().min_val(0.2).max_val(0.4), x);
  expect_same<nn::LeakyReLUImpl>(nn::LeakyReLUOptions().negative_slope(0.3), x - 0.5);
  expect_same<nn::ThresholdImpl>(nn::ThresholdOptions(0.5, 7), x);
  expect_same<nn::SoftplusImpl>(nn::SoftplusOptions().beta(0.3), x);
  expect_same<nn::SoftmaxImpl>(nn::SoftmaxOptions(0), x);
  expect_same<nn::PReLUImpl>(nn::PReLUOptions().num_parameters(6).init(0.5), x - 0.5);
  expect_same<nn::AvgPool2dImpl>(nn::AvgPool2dOptions(2).padding(1).count_include_pad(false), image);
  expect_same<nn::AvgPool2dImpl>(nn::AvgPool2dOptions(2).divisor_override(3), image);
  expect_same<nn::MaxPool2dImpl>(nn::MaxPool2dOptions({2, 3}).stride(1).dilation(2), image);
  expect_same<nn::AdaptiveAvgPool2dImpl>(nn::AdaptiveAvgPool2dOptions({3, std::nullopt}), image);
  expect_same<nn::UpsampleImpl>(nn::UpsampleOptions()
                                    .scale_factor(std::vector<double>{2, 2})
                                    .mode(torch::kBilinear)
                                    .align_corners(true),
                                image);
  expect_same<nn::BilinearImpl>(nn::BilinearOptions(6, 6, 2).bias(false), x, x);
  expect_same<nn::EmbeddingBagImpl>(nn::EmbeddingBagOptions(10, 4).mode(torch::kMax),
                                    at::tensor({1, 2, 4, 5}), at::tensor({0, 2}));
  expect_same<nn::RNNCellImpl>(nn::RNNCellOptions(6, 3).nonlinearity(torch::kReLU), x);
  expect_same<nn::GRUCellImpl>(nn::GRUCellOptions(6, 3).bias(false), x);
}

TEST_F(StockModules, NumbersMakeTheOptions) {
  EXPECT_EQ(RemoteModule<nn::LinearImpl>("worker1", 6, 3).forward(at::rand({4, 6})).sizes(),
            (std::vector<int64_t>{4, 3}));
  EXPECT_EQ(RemoteModule<nn::BatchNorm1dImpl>("worker1", 6).forward(at::rand({4, 6})).size(1), 6);
  EXPECT_TRUE(at::equal(RemoteModule<nn::ReLUImpl>("worker1").forward(at::full({2}, -1.0)), at::zeros({2})));
  EXPECT_TRUE(
      at::equal(RemoteModule<nn::SoftmaxImpl>("worker1", 0).forward(at::ones({2})), at::full({2}, 0.5)));
  EXPECT_EQ(
      RemoteModule<nn::LayerNormImpl>("worker1", std::vector<int64_t>{6}).forward(at::rand({4, 6})).size(1),
      6);
  // As an RRef, without RemoteModule.
  const RRef<nn::LinearImpl> linear = remote<nn::LinearImpl>("worker1", 6, 3);
  EXPECT_EQ(linear.rpc_sync<&nn::LinearImpl::forward>(at::rand({4, 6})).size(1), 3);
}

TEST_F(StockModules, RecurrentModulesTakeAndReturnTuples) {
  const at::Tensor x = at::rand({5, 2, 4});
  nn::LSTMImpl local(nn::LSTMOptions(4, 6).num_layers(2).bidirectional(true));
  const auto remote = like(local, nn::LSTMOptions(4, 6).num_layers(2).bidirectional(true));
  auto [output, state] = local.forward(x);
  auto [there, there_state] = remote.forward(x);
  EXPECT_TRUE(same(there, output));
  EXPECT_TRUE(same(std::get<1>(there_state), std::get<1>(state)));
  EXPECT_TRUE(same(std::get<0>(remote.forward(x, state)), std::get<0>(local.forward(x, state))));
  EXPECT_TRUE(same(std::get<0>(remote.forward_async(x).wait()), output));

  nn::GRUImpl gru(nn::GRUOptions(4, 6).batch_first(true));
  const auto remote_gru = like(gru, nn::GRUOptions(4, 6).batch_first(true));
  EXPECT_TRUE(same(std::get<1>(remote_gru.forward(x)), std::get<1>(gru.forward(x))));
  nn::RNNImpl rnn(nn::RNNOptions(4, 6).nonlinearity(torch::kReLU));
  const auto remote_rnn = like(rnn, nn::RNNOptions(4, 6).nonlinearity(torch::kReLU));
  EXPECT_TRUE(same(std::get<0>(remote_rnn.forward(x)), std::get<0>(rnn.forward(x))));
  nn::LSTMCellImpl cell(nn::LSTMCellOptions(4, 6));
  const auto remote_cell = like(cell, 4, 6);
  EXPECT_TRUE(same(std::get<1>(remote_cell.forward(x[0])), std::get<1>(cell.forward(x[0]))));
}

TEST_F(StockModules, TransformersLeaveOutTheirMasks) {
  const at::Tensor source = at::rand({5, 2, 8});
  const at::Tensor target = at::rand({3, 2, 8});
  const auto layer = nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(16).activation(torch::kGELU);
  nn::TransformerEncoderLayerImpl encoder_layer(layer);
  EXPECT_TRUE(same(like(encoder_layer, layer).forward(source), encoder_layer.forward(source)));

  const nn::TransformerEncoderOptions stack = nn::TransformerEncoderOptions(layer, 2).norm(
      nn::AnyModule(nn::LayerNorm(nn::LayerNormOptions({8}).eps(0.1))));
  nn::TransformerEncoderImpl encoder(stack);
  const auto remote_encoder = like(encoder, stack);
  EXPECT_TRUE(same(remote_encoder.forward(source), encoder.forward(source)));
  const at::Tensor mask = at::ones({5, 5}).triu(1) * -1e9;
  EXPECT_TRUE(same(remote_encoder.forward(source, mask), encoder.forward(source, mask)));

  const auto decoder_layer_options = nn::TransformerDecoderLayerOptions(8, 2).dim_feedforward(16);
  nn::TransformerDecoderLayerImpl decoder_layer(decoder_layer_options);
  EXPECT_TRUE(same(like(decoder_layer, decoder_layer_options).forward(target, source),
                   decoder_layer.forward(target, source)));
  const nn::TransformerDecoderOptions decoders(decoder_layer_options, 2);
  nn::TransformerDecoderImpl decoder(decoders);
  EXPECT_TRUE(same(like(decoder, decoders).forward(target, source), decoder.forward(target, source)));

  const auto options =
      nn::TransformerOptions(8, 2).num_encoder_layers(1).num_decoder_layers(2).dim_feedforward(16);
  nn::TransformerImpl transformer(options);
  EXPECT_TRUE(same(like(transformer, options).forward(source, target), transformer.forward(source, target)));

  nn::MultiheadAttentionImpl attention(nn::MultiheadAttentionOptions(8, 2));
  const auto remote_attention = like(attention, 8, 2);
  const auto [output, weights] = remote_attention.forward(target, source, source);
  const auto [expected, expected_weights] = attention.forward(target, source, source);
  EXPECT_TRUE(same(output, expected));
  EXPECT_TRUE(same(weights, expected_weights));
  EXPECT_FALSE(std::get<1>(remote_attention.forward(target, source, source, at::Tensor(), false)).defined());
}

TEST_F(StockModules, OptionsWithCodeOfThisProcessAreRefused) {
  const auto options = nn::TransformerEncoderLayerOptions(8, 2).activation(
      std::function<at::Tensor(const at::Tensor&)>([](const at::Tensor& x) { return x; }));
  absl::Status status = status_of([&] { RemoteModule<nn::TransformerEncoderLayerImpl>("worker1", options); });
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("the activation is a function of this program"));

  status = status_of([&] {
    RemoteModule<nn::TransformerEncoderImpl>(
        "worker1", nn::TransformerEncoderOptions(nn::TransformerEncoderLayerOptions(8, 2), 1)
                       .norm(nn::AnyModule(nn::ReLU())));
  });
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("expected a LayerNorm"));

  status = status_of([&] {
    RemoteModule<nn::TransformerImpl>("worker1",
                                      nn::TransformerOptions().custom_encoder(nn::AnyModule(nn::ReLU())));
  });
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
}

TEST_F(StockModules, InheritedForwardIsRegistered) {
  const at::Tensor x = at::rand({8, 3});
  nn::BatchNorm1dImpl local(3);
  RemoteModule<nn::BatchNorm1dImpl> remote("worker1", 3);
  EXPECT_TRUE(same(remote.forward(x), local.forward(x)));
  // Training has changed the running mean, which is a buffer.
  EXPECT_TRUE(same(remote.state_dict().at("running_mean"), local.running_mean));
}

// Returns the status of decoding these options after their field was set to `number` on the way. `path`: the
// field's index, in those of each tuple that contains it.
template <class Options>
absl::Status decode_with(const Options& options, std::initializer_list<int> path, int64_t number) {
  proto::Payload payload;
  Encoder encoder(payload, nullptr);
  proto::Value value;
  if (absl::Status encoded = encode_value<Options>(options, encoder, value); !encoded.ok()) {
    ADD_FAILURE() << encoded;
    return encoded;
  }
  proto::Value* field = &value;
  for (const int index : path) field = field->mutable_list()->mutable_values(index);
  if (field->has_integers()) {
    for (int64_t& each : *field->mutable_integers()->mutable_values()) each = number;
  } else {
    EXPECT_TRUE(field->has_integer());
    field->set_integer(number);
  }
  const std::vector<std::shared_ptr<RRefHandle>> no_references;
  Decoder decoder(payload, nullptr, no_references);
  return decode_value<Options>(value, decoder).status();
}

// Libtorch divides by these numbers, or loops so many times, without a check.
TEST(StockOptions, NumbersThatWouldEndTheReceiverAreRefused) {
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  const auto refused = [](const absl::Status& status, const std::string& name) {
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(name + " out of range"));
  };
  for (const int64_t heads : {int64_t{0}, int64_t{-1}, kMin}) {
    refused(decode_with(nn::MultiheadAttentionOptions(8, 2), {1}, heads), "num_heads");
    refused(decode_with(nn::MultiheadAttentionOptions(8, 2), {0}, heads), "embed_dim");
    refused(decode_with(nn::TransformerEncoderLayerOptions(8, 2), {1}, heads), "nhead");
    refused(decode_with(nn::TransformerDecoderLayerOptions(8, 2), {0}, heads), "d_model");
    refused(decode_with(nn::TransformerOptions(8, 2), {1}, heads), "nhead");
  }
  const nn::TransformerEncoderOptions encoders(nn::TransformerEncoderLayerOptions(8, 2), 1);
  const nn::TransformerDecoderOptions decoders(nn::TransformerDecoderLayerOptions(8, 2), 1);
  refused(decode_with(encoders, {0, 1}, 0), "nhead");
  refused(decode_with(decoders, {0, 1}, 0), "nhead");
  for (const int64_t layers : {kMin, int64_t{-1}, int64_t{0}, int64_t{4097}, int64_t{1} << 40, kMax}) {
    refused(decode_with(nn::RNNOptions(1, 1), {2}, layers), "num_layers");
    refused(decode_with(nn::LSTMOptions(1, 1), {2}, layers), "num_layers");
    refused(decode_with(nn::GRUOptions(1, 1), {2}, layers), "num_layers");
    refused(decode_with(encoders, {1}, layers), "num_layers");
    refused(decode_with(decoders, {1}, layers), "num_layers");
    refused(decode_with(nn::TransformerOptions(8, 2), {2}, layers), "num_encoder_layers");
    refused(decode_with(nn::TransformerOptions(8, 2), {3}, layers), "num_decoder_layers");
  }
  EXPECT_TRUE(decode_with(nn::LSTMOptions(1, 1), {2}, 4096).ok());
  for (const int64_t size : {kMin, int64_t{-1}, int64_t{1} << 40, kMax}) {
    refused(decode_with(nn::MaxPool1dOptions(2), {0}, size), "kernel_size");
    refused(decode_with(nn::MaxPool1dOptions(2), {1}, size), "stride");
    refused(decode_with(nn::MaxPool1dOptions(2), {2}, size), "padding");
    refused(decode_with(nn::MaxPool1dOptions(2), {3}, size), "dilation");
    refused(decode_with(nn::MaxPool3dOptions(2), {0}, size), "kernel_size");
    refused(decode_with(nn::AvgPool2dOptions(2), {1}, size), "stride");
  }
  refused(decode_with(nn::MaxPool1dOptions(2), {1}, 0), "stride");
  EXPECT_TRUE(decode_with(nn::MaxPool1dOptions(2), {2}, 0).ok());
}

// The caller need not make the call to see the error.
TEST_F(StockModules, TheCallerOfAModuleWithoutHeadsIsTold) {
  absl::Status status = status_of([&] { RemoteModule<nn::MultiheadAttentionImpl>("worker1", 8, 0); });
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("torch::nn::MultiheadAttentionOptions: num_heads out of range: got 0, expected"));
  status = status_of([&] { RemoteModule<nn::TransformerImpl>("worker1", 8, 0); });
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  status = status_of([&] {
    RemoteModule<SequentialImpl>("worker1", layer<nn::MaxPool1dImpl>(std::numeric_limits<int64_t>::max()));
  });
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("kernel_size out of range"));
}

struct ScaleImpl : nn::Module {
  explicit ScaleImpl(double by) : by_(by) {}
  at::Tensor forward(const at::Tensor& x) { return x * by_; }
  double by_;
};
GRADWIRE_RPC_LAYER(ScaleImpl, double)

struct RefuseImpl : nn::Module {
  explicit RefuseImpl(int64_t) { throw std::runtime_error("no such size"); }
  at::Tensor forward(const at::Tensor& x) { return x; }
};
GRADWIRE_RPC_LAYER(RefuseImpl, int64_t)

struct StrangerImpl : nn::Module {
  at::Tensor forward(const at::Tensor& x) { return x; }
};
GRADWIRE_RPC_CONSTRUCTOR(StrangerImpl)

TEST_F(StockModules, SequentialIsMadeOfLayers) {
  nn::Sequential local(nn::Conv2d(1, 2, 3), nn::BatchNorm2d(2), nn::ReLU(), nn::ConvTranspose2d(2, 1, 3),
                       nn::Flatten(), nn::Linear(nn::LinearOptions(64, 5).bias(false)));
  RemoteModule<SequentialImpl> remote("worker1", layer<nn::Conv2dImpl>(1, 2, 3),
                                      layer<nn::BatchNorm2dImpl>(2), layer<nn::ReLUImpl>(),
                                      layer<nn::ConvTranspose2dImpl>(2, 1, 3), layer<nn::FlattenImpl>(),
                                      layer<nn::LinearImpl>(nn::LinearOptions(64, 5).bias(false)));
  remote.load_state_dict(state_dict(*local));
  const at::Tensor x = at::rand({2, 1, 8, 8});
  EXPECT_TRUE(same(remote.forward(x), local->forward(x)));
  EXPECT_EQ(remote.remote_parameters().size(), local->parameters().size());
  EXPECT_TRUE(remote.remote_parameters(/*recurse=*/false).empty());
}

TEST_F(StockModules, LayersHaveNamesAndNest) {
  RemoteModule<SequentialImpl> remote(
      "worker1", layer<ScaleImpl>(2.0).named("twice"),
      layer<SequentialImpl>(layer<nn::LinearImpl>(3, 3).named("weights"), layer<ScaleImpl>(5))
          .named("inner"));
  EXPECT_EQ(remote.state_dict().count("inner.weights.bias"), 1u);
  RemoteModule<SequentialImpl> scales("worker1", layer<ScaleImpl>(2.0),
                                      layer<SequentialImpl>(layer<ScaleImpl>(5)));
  EXPECT_TRUE(at::equal(scales.forward(at::ones({2})), at::full({2}, 10.0)));
  // A list that is known at run time.
  std::vector<Layer> list;
  for (int i = 0; i < 10; ++i) list.push_back(layer<ScaleImpl>(2.0));
  RemoteModule<SequentialImpl> many("worker1", Layers(list));
  EXPECT_TRUE(at::equal(many.forward(at::ones({2})), at::full({2}, 1024.0)));
}

TEST_F(StockModules, LayersThatCannotBeMadeAreNamed) {
  absl::Status status = status_of(
      [] { RemoteModule<SequentialImpl>("worker1", layer<StrangerImpl>()).forward(at::ones({1})); });
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("StrangerImpl"), HasSubstr("register it with GRADWIRE_RPC_LAYER")));

  status =
      status_of([] { RemoteModule<SequentialImpl>("worker1", layer<RefuseImpl>(3)).forward(at::ones({1})); });
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("RefuseImpl"), HasSubstr("no such size")));

  status = status_of([] {
    RemoteModule<SequentialImpl>("worker1", layer<ScaleImpl>(1).named("a"), layer<ScaleImpl>(1).named("a"))
        .forward(at::ones({1}));
  });
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("two layers have the name \"a\""));
  EXPECT_TRUE(absl::IsInvalidArgument(status_of([] { SequentialImpl local(Layers(layer<ScaleImpl>(1))); })));
}

}  // namespace
}  // namespace gradwire::rpc
