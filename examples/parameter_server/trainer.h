#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "examples/parameter_server/network.h"
#include "examples/worker_report.h"
#include "gradwire/codec/torch/tensor_codec.h"
#include "gradwire/rpc/rref.h"

namespace gradwire::examples {

// The options that the server sends to a trainer. They travel as a tuple.
struct TrainOptions {
  int64_t trainer = 0;  // 0, 1, ...: the first sample; the trainer uses every trainers-th sample from there.
  int64_t trainers = 1;
  int64_t epochs = 1;
  int64_t batch = 32;
  double learning_rate = 0.1;
  std::string data;  // A directory with MNIST's files. If it is empty, the digits are used.
};

// Runs on a trainer. Trains the network behind `network` with this trainer's share of the data, with a
// Context for each step, and prints a line for each epoch.
WorkerReport train(const rpc::RRef<NetworkImpl>& network,
                   const std::vector<rpc::RRef<at::Tensor>>& parameters, const TrainOptions& options);

}  // namespace gradwire::examples

template <>
struct gradwire::rpc::Codec<gradwire::examples::TrainOptions> {
  using Options = gradwire::examples::TrainOptions;
  using Tuple = std::tuple<int64_t, int64_t, int64_t, int64_t, double, std::string>;
  static std::string type_name() { return "gradwire::examples::TrainOptions"; }
  static absl::Status encode(const Options& o, Encoder& encoder, proto::Value& out) {
    return encode_value<Tuple>(Tuple(o.trainer, o.trainers, o.epochs, o.batch, o.learning_rate, o.data),
                               encoder, out);
  }
  static absl::StatusOr<Options> decode(const proto::Value& in, Decoder& decoder) {
    GRADWIRE_ASSIGN_OR_RETURN(Tuple parts, decode_value<Tuple>(in, decoder));
    return std::apply([](auto&&... part) { return Options{std::move(part)...}; }, std::move(parts));
  }
};
