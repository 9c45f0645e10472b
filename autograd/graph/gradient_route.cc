#include "gradwire/autograd/graph/gradient_route.h"

namespace gradwire::autograd {

void GradientRoute::add(uint64_t sender, uint64_t message, uint32_t output) {
  if (messages_[{sender, message}].insert(output).second) ++tensors_;
}

void GradientRoute::add(const GradientRoute& other) {
  for (const auto& [message, outputs] : other.messages_) {
    for (uint32_t output : outputs) add(message.first, message.second, output);
  }
}

bool GradientRoute::contains(uint64_t sender, uint64_t message, uint32_t output) const {
  auto found = messages_.find({sender, message});
  return found != messages_.end() && found->second.contains(output);
}

// The map is ordered by sender first, so the messages of one sender are next to each other.
bool GradientRoute::has_sender(uint64_t sender) const {
  auto first = messages_.lower_bound({sender, 0});
  return first != messages_.end() && first->first.first == sender;
}

void to_proto(const GradientRoute& route, SentTensorsField& out) {
  for (const auto& [message, outputs] : route.messages()) {
    proto::SentTensors& sent = *out.Add();
    sent.set_sender(message.first);
    sent.set_message(message.second);
    for (uint32_t output : outputs) sent.add_outputs(output);
  }
}

std::optional<GradientRoute> gradient_route_from_proto(const SentTensorsField& in) {
  GradientRoute route;
  for (const proto::SentTensors& sent : in) {
    // A peer can send any list. The limit is checked before and after each message is added, so the route
    // never has more than twice kMaxTensors tensors while it is read.
    if (sent.outputs_size() > static_cast<int>(GradientRoute::kMaxTensors)) return std::nullopt;
    for (uint32_t output : sent.outputs()) route.add(sent.sender(), sent.message(), output);
    if (route.tensors() > GradientRoute::kMaxTensors) return std::nullopt;
  }
  return route;
}

}  // namespace gradwire::autograd
