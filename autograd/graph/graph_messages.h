#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "gradwire/autograd/graph/send_node.h"

namespace gradwire::autograd {

// The messages of a pass on one worker, for observers: those that it has sent and whose gradients have not
// arrived, and those that it has received and that its graph reaches, by their sender and number.
class GraphMessages {
 public:
  // Nothing is known.
  GraphMessages() = default;
  // Keeps at most `most` of each kind. `sent`: a map whose values have the SendNode `node` and the flag
  // `arrived`, for the gradients. `received`: a map whose keys are received messages.
  template <class SentMap, class ReceivedMap>
  GraphMessages(std::size_t most, const SentMap& sent, const ReceivedMap& received)
      : all_reached_(received.size() <= most) {
    for (const auto& [number, each] : sent) {
      if (!each.arrived && awaited_.size() < most) awaited_.push_back(each.node);
    }
    for (const auto& [message, each] : received) {
      if (reached_.size() < most) reached_.push_back(message);
    }
  }

  const std::vector<std::shared_ptr<const SendNode>>& awaited() const { return awaited_; }
  const std::vector<std::pair<uint64_t, uint64_t>>& reached() const { return reached_; }
  // Whether reached() has all of them.
  bool all_reached() const { return all_reached_; }

 private:
  std::vector<std::shared_ptr<const SendNode>> awaited_;
  std::vector<std::pair<uint64_t, uint64_t>> reached_;
  bool all_reached_ = false;
};

}  // namespace gradwire::autograd
