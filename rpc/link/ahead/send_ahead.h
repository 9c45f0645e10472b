#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "gradwire/codec/encoded_tensors.h"
#include "gradwire/rpc/link/link.h"
#include "gradwire/rpc/link/parts/parts_in_flight.h"
#include "gradwire/rpc/order/fence_watch.h"

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

// Waits, without a thread, until the bytes of a message have been copied from their devices. Buffers that are
// complete before the others are sent ahead, so that the copies and the network work at the same time.
// The callback for the point that it waits for keeps it alive.
class SendAhead : public std::enable_shared_from_this<SendAhead> {
 public:
  // Returns the link on which the message will be sent, as far as is known; nullptr if the worker is not
  // connected. Called once at most, on the executor.
  using FindLink = std::function<std::shared_ptr<LinkSender>()>;
  // Called once, on the executor, or on the thread that stops the watch. The message may be sent now with
  // these tensors (LinkSender::send_encoded), unless a device is lost, or the watch has been stopped.
  using Done = absl::AnyInvocable<void(const absl::Status& copied, EncodedTensors tensors)>;

  // `tensors.copies` must not be nullptr. Borrowed buffers are not sent ahead.
  static void start(std::shared_ptr<FenceWatch> watch, EncodedTensors tensors, FindLink find_link, Done done);

 private:
  SendAhead(std::shared_ptr<FenceWatch> watch, EncodedTensors tensors, FindLink find_link, Done done);

  // An exception ends these with its error.
  void wait() noexcept;
  void advance(const absl::Status& copied) noexcept;
  void advance_or_throw(const absl::Status& copied);
  // Returns how many buffers are complete now. An error means that a device is lost.
  absl::StatusOr<std::size_t> complete();
  void send_until(std::size_t end);
  void finish(const absl::Status& copied);

  const std::shared_ptr<FenceWatch> watch_;
  EncodedTensors tensors_;
  FindLink find_link_;
  Done done_;
  // The first point of EncodedTensors::progress that has not been reached.
  std::size_t next_ = 0;
  // Number of buffers that may be sent ahead, and that were.
  std::size_t sendable_ = 0;
  std::size_t sent_ = 0;
  // nullptr before the first part.
  std::shared_ptr<PartsAhead> ahead_;
};

}  // namespace gradwire::rpc
