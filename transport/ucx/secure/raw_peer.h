#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "gradwire/security/message_handshake.h"
#include "gradwire/transport/ucx/ucx_frame.h"
#include "gradwire/transport/ucx/ucx_worker.h"

namespace gradwire::transport {

// A process that speaks UCX but sends what a test wants: one endpoint, and the messages that arrive on it.
// The test fails if UCX fails. Must be used by one thread. All waits end after kTestTimeout.
class RawPeer {
 public:
  struct Received {
    UcxHead head;
    std::string data;
  };
  // The end that connects to "host:port".
  static std::unique_ptr<RawPeer> connect(const std::string& address);
  // The end that accepts, at address(). Its endpoint exists after accept().
  static std::unique_ptr<RawPeer> listen();
  ~RawPeer();
  RawPeer(const RawPeer&) = delete;
  RawPeer& operator=(const RawPeer&) = delete;

  std::string address() const;
  void accept();
  // The facts of this end that a handshake covers.
  security::MessageChannel channel() const;

  // Sends an active message. It may fail if the peer has closed the connection.
  void send(const UcxHead& head, absl::string_view data = "", bool rendezvous = false);
  void send(absl::string_view head, absl::string_view data, bool rendezvous = false);
  // A message of the handshake.
  void send_record(absl::string_view record);
  // Waits until UCX has sent all messages.
  void flush();

  // The next message of the peer; nullopt: the peer has closed the connection, or the time is over.
  std::optional<Received> receive();
  // As receive(), for a message of the handshake that is a refusal: its sentence, otherwise what it is.
  std::string receive_refusal();
  // Waits until the peer has closed the connection.
  bool wait_closed();
  bool closed() const { return closed_; }

  // From now on waits call `step` again and again, for example to drive the other end.
  void set_meanwhile(std::function<void()> step) { meanwhile_ = std::move(step); }

 private:
  RawPeer();
  void run_until(const std::function<bool()>& done);

  std::unique_ptr<UcxWorker> worker_;
  ucp_listener_h listener_ = nullptr;
  ucp_conn_request_h request_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
  bool accepted_ = false;
  bool closed_ = false;
  std::function<void()> meanwhile_;
  // Number of messages that UCX has not sent.
  int unsent_ = 0;
  std::deque<Received> received_;
  // The bytes that UCX may still be reading.
  std::deque<std::string> sent_;
};

}  // namespace gradwire::transport
