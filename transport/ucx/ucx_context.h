#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "gradwire/transport/common/loop_context.h"
#include "gradwire/transport/event_loop.h"
#include "gradwire/transport/ucx/ucx_transport.h"
#include "gradwire/transport/ucx/ucx_worker.h"

namespace gradwire::transport {

class UcxConnection;
class UcxListener;

// What a ucx transport shares with its connections, some of which live longer than it: the worker, and the
// rounds in which it makes progress. UCX's callbacks, which come while it makes progress, only take notes;
// what follows from them (calling listeners, closing endpoints, sending) happens behind them, when the
// connections that they touched settle.
//
// Its methods are for the loop's driver, but for the constructor and start().
class UcxContext : public LoopContext, public Pollable, public EventHandler {
 public:
  UcxContext(UcxOptions given, std::shared_ptr<EventLoop> given_loop);
  ~UcxContext() override;

  // Makes the worker. Before anything is posted to the loop.
  absl::Status start();
  void start_in_loop();
  // The port. Unavailable with the cause.
  absl::StatusOr<int> listen_in_loop(Transport::AcceptHandler on_accept);
  void shut_down_in_loop() override;
  // The worker ends after the last connection.
  void end_if_done_in_loop() override;

  // A pointer that keeps the context to it or one of its bases.
  template <class Base>
  std::shared_ptr<Base> keep() {
    return std::shared_ptr<Base>(shared_from_this(), this);
  }

  // The connection settles at the end of the round.
  void touch_in_loop(UcxConnection& connection);
  // UCX has been called: what follows is looked for.
  void activate_in_loop();
  // Destroys what belongs to users where no lock of UCX is held.
  void release_in_loop(Buffer buffer) { released_.push_back(std::move(buffer)); }

  void add_endpoint_in_loop(ucp_ep_h endpoint, UcxConnection& connection);
  // Whatever is under way there ends. Not from UCX's callbacks.
  void close_endpoint_in_loop(ucp_ep_h endpoint);
  // How endpoints tell of errors.
  ucp_err_handler_t error_handler_in_loop() { return {&UcxContext::on_endpoint_error, this}; }

  const UcxOptions options;
  // Belongs to the loop's driver, as what follows.
  std::unique_ptr<UcxWorker> worker;
  // Connections that have ended, for which UCX has something under way still.
  absl::flat_hash_set<std::shared_ptr<UcxConnection>> retiring;

 private:
  // Pollable
  bool poll_in_loop() override;
  void arm_in_loop() override;
  void disarm_in_loop() override { armed_ = false; }
  bool has_data_in_loop() override;

  // EventHandler
  void on_events_in_loop(uint32_t events) override;

  // UCX's callbacks.
  static ucs_status_t on_active_message(void* context, const void* head, std::size_t head_bytes, void* data,
                                        std::size_t data_bytes, const ucp_am_recv_param_t* param);
  static void on_endpoint_error(void* context, ucp_ep_h endpoint, ucs_status_t status);
  static void on_endpoint_closed(void* request, ucs_status_t status, void* context);

  void settle_in_loop();
  void end_in_loop();

  // UCX rings when there is news.
  bool armed_ = false;
  // UCX would not be armed: it has news.
  bool refused_arming_ = false;
  uint64_t handler_id_ = 0;
  uint64_t end_timer_ = 0;
  int closing_endpoints_ = 0;
  std::unique_ptr<UcxListener> listener_;
  absl::flat_hash_map<ucp_ep_h, UcxConnection*> by_endpoint_;
  std::vector<std::shared_ptr<UcxConnection>> touched_;
  std::vector<Buffer> released_;
};

}  // namespace gradwire::transport
