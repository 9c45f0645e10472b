#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/transport/event_loop.h"
#include "gradwire/transport/turns/read_size.h"

namespace gradwire::store {

// The bytes of one client of PyTorch's TCPStore: reads what arrives, and sends what it is given as the socket
// has room.
//
// States: open (start_in_loop), closing (the rest is being sent), closed. Used only on the thread that drives
// the loop, which keeps it alive while it is open. The handlers are called from the loop, never inside a call
// to this object, and not after the end has been reported.
class C10dConnection : public transport::EventHandler, public std::enable_shared_from_this<C10dConnection> {
 public:
  struct Handlers {
    // Bytes have arrived.
    std::function<void(absl::string_view bytes)> on_bytes;
    // The connection has ended, whichever end closed it. The last call.
    std::function<void()> on_closed;
  };
  C10dConnection(std::shared_ptr<transport::EventLoop> loop, Descriptor socket)
      : loop_(std::move(loop)), socket_(std::move(socket)) {}

  void start_in_loop(Handlers handlers);
  void send_in_loop(absl::string_view bytes);
  // Sends the rest for at most `flush`, then closes the socket. No more bytes are delivered.
  void close_in_loop(absl::Duration flush);
  std::size_t unsent_bytes() const { return unsent_.size() - sent_; }

 private:
  void on_events_in_loop(uint32_t events) override;
  // Handles what has arrived, until the time of the loop's round is over (turns.h). A later round goes on.
  void read_in_loop();
  void defer_read_in_loop();
  void write_in_loop();
  void finish_in_loop();

  const std::shared_ptr<transport::EventLoop> loop_;
  Descriptor socket_;
  Handlers handlers_;
  uint64_t handler_id_ = 0;
  uint64_t timer_ = 0;
  bool closing_ = false;
  // A deferred task will read.
  bool deferred_ = false;
  // Requests are short, so many of them fit into one read.
  transport::ReadSize read_size_{1 << 10, 16 << 10, 64 << 10};
  // The first sent_ bytes of unsent_ have been sent.
  std::string unsent_;
  std::size_t sent_ = 0;
};

}  // namespace gradwire::store
