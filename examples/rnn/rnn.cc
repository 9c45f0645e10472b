// A recurrent network with remote parts, as in PyTorch's tutorial "Getting Started with Distributed RPC
// Framework". The embedding table and the decoder are on the parameter server "ps", the LSTM between them is
// on "trainer". The backward pass crosses both workers, and one optimizer steps the parameters of both.
//
//   bazel build //tools:launch //examples/rnn
//   bazel run //tools:launch -- --standalone --nproc_per_node=2 $PWD/bazel-bin/examples/rnn/rnn
//
// The network learns a sentence, character by character. The trainer prints the loss of every tenth epoch,
// then what the network continues a beginning with, and last "final loss: ", the average of the last epoch.

#include <ATen/ATen.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <torch/optim/sgd.h>

#include <cstdio>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "gradwire/autograd/autograd.h"
#include "gradwire/autograd/context.h"
#include "gradwire/autograd/distributed_optimizer.h"
#include "gradwire/base/error.h"
#include "gradwire/rpc/init_rpc.h"
#include "gradwire/rpc/remote_module.h"
#include "gradwire/tools/launch_info.h"

ABSL_FLAG(int, epochs, 80, "number of times that the sentence is read");
ABSL_FLAG(double, learning_rate, 0.3, "learning rate of the optimizer, SGD with momentum 0.9");
ABSL_FLAG(int, seed, 1, "seed of the random numbers");

namespace gradwire::examples {

constexpr std::string_view kText =
    "a worker calls a function of another worker and keeps a reference to the result there ";
constexpr int64_t kTokens = 27;  // a space and the letters
constexpr int64_t kChunk = 20;   // the backward pass goes back so many characters

struct EmbeddingTableImpl : torch::nn::Module {
  EmbeddingTableImpl(int64_t width, double dropout)
      : encoder(register_module("encoder", torch::nn::Embedding(kTokens, width))),
        drop(register_module("drop", torch::nn::Dropout(dropout))) {}
  at::Tensor forward(const at::Tensor& tokens) { return drop(encoder(tokens)); }
  torch::nn::Embedding encoder;
  torch::nn::Dropout drop;
};
GRADWIRE_RPC_MODULE(EmbeddingTableImpl, int64_t, double)

struct DecoderImpl : torch::nn::Module {
  DecoderImpl(int64_t hidden, double dropout)
      : decoder(register_module("decoder", torch::nn::Linear(hidden, kTokens))),
        drop(register_module("drop", torch::nn::Dropout(dropout))) {}
  at::Tensor forward(const at::Tensor& output) { return decoder(drop(output)); }
  torch::nn::Linear decoder;
  torch::nn::Dropout drop;
};
GRADWIRE_RPC_MODULE(DecoderImpl, int64_t, double)

class RnnModel {
 public:
  using State = std::tuple<at::Tensor, at::Tensor>;

  RnnModel(const std::string& ps, int64_t width, int64_t hidden, int64_t layers, double dropout)
      : table_(ps, width, dropout),
        lstm_(torch::nn::LSTMOptions(width, hidden).num_layers(layers).dropout(dropout)),
        decoder_(ps, hidden, dropout),
        initial_(at::zeros({layers, 1, hidden}), at::zeros({layers, 1, hidden})) {}

  // int64 [length, 1], tokens -> scores of each next token, float [length, 1, kTokens]
  at::Tensor forward(const at::Tensor& tokens, State& state) {
    const at::Tensor embedded = table_.forward(tokens);
    auto [output, next] = lstm_(embedded, state);
    state = std::move(next);
    return decoder_.forward(output);
  }
  std::vector<rpc::RRef<at::Tensor>> parameter_rrefs() const {
    std::vector<rpc::RRef<at::Tensor>> all = table_.remote_parameters();
    for (const at::Tensor& parameter : lstm_->parameters()) all.emplace_back(parameter);
    for (const rpc::RRef<at::Tensor>& parameter : decoder_.remote_parameters()) all.push_back(parameter);
    return all;
  }
  void eval() {
    table_.eval();
    lstm_->eval();
    decoder_.eval();
  }
  const State& initial() const { return initial_; }

 private:
  rpc::RemoteModule<EmbeddingTableImpl> table_;
  torch::nn::LSTM lstm_;
  rpc::RemoteModule<DecoderImpl> decoder_;
  State initial_;
};

at::Tensor tokens_of(std::string_view text) {
  std::vector<int64_t> tokens;
  for (char each : text) tokens.push_back(each == ' ' ? 0 : each - 'a' + 1);
  return at::tensor(tokens).unsqueeze(1);
}

// Returns `text` with `length` more characters, each the one that the model finds most likely.
std::string continued(RnnModel& model, std::string text, int64_t length) {
  const at::NoGradGuard no_grad;
  RnnModel::State state = model.initial();
  std::string next = text;
  for (int64_t i = 0; i < length; ++i) {
    const auto token = model.forward(tokens_of(next), state)[-1][0].argmax().item<int64_t>();
    next = token == 0 ? " " : std::string(1, static_cast<char>('a' + token - 1));
    text += next;
  }
  return text;
}

double train() {
  RnnModel model("ps", /*width=*/16, /*hidden=*/64, /*layers=*/2, /*dropout=*/0.1);
  autograd::DistributedOptimizer<torch::optim::SGD> optimizer(
      model.parameter_rrefs(), torch::optim::SGDOptions(absl::GetFlag(FLAGS_learning_rate)).momentum(0.9));
  const at::Tensor text = tokens_of(kText);
  double loss_sum = 0;
  for (int epoch = 1; epoch <= absl::GetFlag(FLAGS_epochs); ++epoch) {
    RnnModel::State state = model.initial();
    loss_sum = 0;
    for (int64_t first = 0; first + 1 < text.size(0); first += kChunk) {
      const int64_t end = std::min(first + kChunk, text.size(0) - 1);
      state = {std::get<0>(state).detach(), std::get<1>(state).detach()};
      autograd::Context context;
      const at::Tensor scores = model.forward(text.slice(0, first, end), state);
      const at::Tensor target = text.slice(0, first + 1, end + 1);
      const at::Tensor loss = at::cross_entropy_loss(scores.flatten(0, 1), target.flatten());
      autograd::backward(context, {loss});
      optimizer.step(context);
      loss_sum += loss.item<double>() * static_cast<double>(end - first);
    }
    loss_sum /= static_cast<double>(text.size(0) - 1);
    if (epoch % 10 == 0) std::printf("epoch %2d  loss %.4f\n", epoch, loss_sum);
    std::fflush(stdout);
  }
  model.eval();
  std::printf("\"%s\"\n", continued(model, "a worker ", 50).c_str());
  return loss_sum;
}

}  // namespace gradwire::examples

int main(int argc, char** argv) {
  using namespace gradwire;  // NOLINT
  absl::SetProgramUsageMessage("one of the two ranks of a job with a remote network; see //tools:launch");
  try {
    if (absl::ParseCommandLine(argc, argv).size() > 1)
      throw Error(absl::InvalidArgumentError("unexpected argument: see --help for the flags"));
    const LaunchInfo info = LaunchInfo::from_env();
    if (info.world_size != 2)
      throw Error(absl::InvalidArgumentError("wrong number of processes: start it with --nproc_per_node=2"));
    at::manual_seed(absl::GetFlag(FLAGS_seed));
    rpc::init_rpc(info.rank == 0 ? "ps" : "trainer");
    double loss = 0;
    if (info.rank == 1) loss = examples::train();
    rpc::shutdown();
    if (info.rank == 1) std::printf("final loss: %.4f\n", loss);
    return 0;
  } catch (...) {
    // Converts exceptions of libtorch too, without their backtraces.
    const Error error(status_from_exception(std::current_exception()));
    record_error(error);  // for the summary of the launcher
    std::fprintf(stderr, "rnn: %s\n", error.what());
    // The group is broken, so a graceful shutdown would wait for workers that never call it.
    rpc::shutdown(/*graceful=*/false);
    return 1;
  }
}
