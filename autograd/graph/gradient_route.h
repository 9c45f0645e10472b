#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "google/protobuf/repeated_ptr_field.h"
#include "gradwire/proto/value.pb.h"

namespace gradwire::autograd {

// A set of sent tensors: all those, over any number of workers, that a gradient will reach after a given
// point of the graph (proto/value.proto, GradientRoute).
class GradientRoute {
 public:
  // Maximum number of tensors of a route in a message.
  static constexpr std::size_t kMaxTensors = 64;
  // The incarnation of the sender, and the number of the message.
  using Message = std::pair<uint64_t, uint64_t>;
  using Messages = absl::btree_map<Message, absl::btree_set<uint32_t>>;

  void add(uint64_t sender, uint64_t message, uint32_t output);
  void add(const GradientRoute& other);
  bool contains(uint64_t sender, uint64_t message, uint32_t output) const;
  bool has_sender(uint64_t sender) const;

  std::size_t tensors() const { return tensors_; }
  const Messages& messages() const { return messages_; }

 private:
  Messages messages_;
  std::size_t tensors_ = 0;
};

using SentTensorsField = google::protobuf::RepeatedPtrField<proto::SentTensors>;
void to_proto(const GradientRoute& route, SentTensorsField& out);
// Returns nullopt if there are more than GradientRoute::kMaxTensors.
std::optional<GradientRoute> gradient_route_from_proto(const SentTensorsField& in);

}  // namespace gradwire::autograd
