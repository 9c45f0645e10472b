#include "gradwire/autograd/graph/onward.h"

namespace gradwire::autograd {

void Onward::add(uint64_t sender, uint64_t message, uint32_t output) {
  if (messages_[{sender, message}].insert(output).second) ++tensors_;
}

void Onward::add(const Onward& other) {
  for (const auto& [message, outputs] : other.messages_) {
    for (uint32_t output : outputs) add(message.first, message.second, output);
  }
}

bool Onward::contains(uint64_t sender, uint64_t message, uint32_t output) const {
  auto found = messages_.find({sender, message});
  return found != messages_.end() && found->second.contains(output);
}

bool Onward::has_sender(uint64_t sender) const {
  auto first = messages_.lower_bound({sender, 0});
  return first != messages_.end() && first->first.first == sender;
}

void to_proto(const Onward& onward, SentTensorsField& out) {
  for (const auto& [message, outputs] : onward.messages()) {
    proto::SentTensors& sent = *out.Add();
    sent.set_sender(message.first);
    sent.set_message(message.second);
    for (uint32_t output : outputs) sent.add_outputs(output);
  }
}

std::optional<Onward> onward_from_proto(const SentTensorsField& in) {
  Onward onward;
  for (const proto::SentTensors& sent : in) {
    if (sent.outputs_size() > static_cast<int>(Onward::kMaxTensors)) return std::nullopt;
    for (uint32_t output : sent.outputs()) onward.add(sent.sender(), sent.message(), output);
    if (onward.tensors() > Onward::kMaxTensors) return std::nullopt;
  }
  return onward;
}

}  // namespace gradwire::autograd
