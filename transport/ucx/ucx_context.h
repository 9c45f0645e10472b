#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/transport/common/loop_context.h"
#include "gradwire/transport/event_loop.h"
#include "gradwire/transport/tcp/socket/address.h"
#include "gradwire/transport/tcp/socket/name_lookups.h"
#include "gradwire/transport/ucx/ucx_arrivals.h"
#include "gradwire/transport/ucx/ucx_transport.h"
#include "gradwire/transport/ucx/ucx_worker.h"

namespace gradwire::transport {

class UcxConnection;
class UcxListener;

// An address that UCX has reported.
SocketAddress socket_address(const sockaddr_storage& storage);

// The state that a ucx transport shares with its connections, some of which outlive it: the worker, and the
// rounds in which the worker makes progress.
//
// UCX calls its callbacks while it makes progress. They must not call listeners, close endpoints or send. So
// they only record what happened and mark ("touch") the connection. Then each touched connection settles: it
// does that work.
//
// The work is bounded by the time of the loop's round (turns.h). Its units are a call of progress, an
// accepted connection, and a message that is delivered or passed to UCX. Progress reads the messages of all
// connections: UCX cannot be made to read those of some only. So while messages wait for a later round, a
// round makes progress once, and not at all while kMostWaiting or more of them wait.
//
// All methods are for the loop's driver, except the constructor and start().
class UcxContext : public LoopContext, public Pollable, public EventHandler {
 public:
  UcxContext(UcxOptions given, std::shared_ptr<EventLoop> given_loop);
  ~UcxContext() override;

  // Creates the worker. Must be called before any task is posted to the loop.
  absl::Status start();
  void start_in_loop();
  // Starts to listen and returns the port. Unavailable with the cause.
  absl::StatusOr<int> listen_in_loop(Transport::AcceptHandler on_accept);
  void shut_down_in_loop() override;
  // Ends the worker after the last connection.
  void end_if_done_in_loop() override;

  // Returns a pointer to the context or one of its bases that keeps the context alive.
  template <class Base>
  std::shared_ptr<Base> keep() {
    return std::shared_ptr<Base>(shared_from_this(), this);
  }

  // Makes the connection settle after the progress of this round, or of the next one.
  void touch_in_loop(UcxConnection& connection);
  // Must be called after a call to UCX: starts to poll the worker.
  void activate_in_loop();
  // Destroys a user's buffer later, when no lock of UCX is held.
  void release_in_loop(Buffer buffer) { released_.push_back(std::move(buffer)); }

  // Returns the listener of a connection whose peer has proved who it is; nullptr: refuse it.
  std::shared_ptr<ConnectionListener> accepted_in_loop(UcxConnection& connection);

  void add_endpoint_in_loop(ucp_ep_h endpoint, UcxConnection& connection);
  // Closes the endpoint; its outstanding operations end. Must not be called from UCX's callbacks.
  void close_endpoint_in_loop(ucp_ep_h endpoint);
  // The handler to which endpoints report errors.
  ucp_err_handler_t error_handler_in_loop() { return {&UcxContext::on_endpoint_error, this}; }

  // See above.
  static constexpr std::size_t kMostWaiting = 1024;

  // `credentials` is set.
  const UcxOptions options;
  // The lookups of host names. Thread-safe.
  NameLookups lookups;
  // This member and the following ones are used only by the loop's driver.
  std::unique_ptr<UcxWorker> worker;
  UcxArrivals arrivals;
  // Closed connections for which UCX still has outstanding operations.
  HashSet<std::shared_ptr<UcxConnection>> retiring;
  // Number of messages that have arrived and wait for a later round.
  std::size_t waiting_messages = 0;

 private:
  // Pollable
  bool poll_in_loop() override;
  void arm_in_loop() override;
  void disarm_in_loop() override { armed_ = false; }
  bool has_data_in_loop() override;

  // EventHandler
  void on_events_in_loop(uint32_t events) override;
  void failed_in_loop(const absl::Status& error) override;

  // UCX's callbacks.
  static ucs_status_t on_active_message(void* context, const void* head, std::size_t head_bytes, void* data,
                                        std::size_t data_bytes, const ucp_am_recv_param_t* param);
  static void on_endpoint_error(void* context, ucp_ep_h endpoint, ucs_status_t status);

  // Whether there is work besides the progress of UCX.
  bool has_work_in_loop() const;
  void settle_in_loop();
  void end_in_loop();

  // UCX signals its descriptor at the next event.
  bool armed_ = false;
  // The last arm() failed because UCX has pending events.
  bool refused_arming_ = false;
  uint64_t handler_id_ = 0;
  uint64_t end_timer_ = 0;
  int closing_endpoints_ = 0;
  std::unique_ptr<UcxListener> listener_;
  HashMap<ucp_ep_h, UcxConnection*> by_endpoint_;
  std::vector<std::shared_ptr<UcxConnection>> touched_;
  std::vector<Buffer> released_;
  // Number of messages and buffers that have arrived in this round.
  std::size_t arrived_in_round_ = 0;
};

}  // namespace gradwire::transport
