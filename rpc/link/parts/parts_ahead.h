#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "gradwire/codec/encoded_tensors.h"
#include "gradwire/rpc/link/link_sender.h"
#include "gradwire/rpc/link/parts/parts_in_flight.h"

namespace gradwire::rpc {

// The first buffers of one message, which are sent on a link ahead of it (rpc.proto, "Parts"). If the message
// never refers to them, the destructor has the receiver drop them. Not thread-safe.
class PartsAhead : public SentAhead {
 public:
  explicit PartsAhead(std::shared_ptr<LinkSender> link);
  ~PartsAhead() override;

  // Sends the next buffers of the message, which must be owned. Returns false, and sends nothing, if the
  // connection has ended or has no room for more parts.
  bool send(std::vector<transport::Buffer> buffers);

  uint64_t join(uint64_t link, std::vector<transport::Buffer>& buffers) override;

 private:
  const std::shared_ptr<LinkSender> link_;
  const uint64_t number_;
  // The buffers that were sent. They are kept in case that the message is sent on another link.
  std::vector<transport::Buffer> sent_;
  PartsInFlight::Size size_;
  bool joined_ = false;
};

}  // namespace gradwire::rpc
