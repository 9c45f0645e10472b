#pragma once

#include <ucp/api/ucp.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "gradwire/transport/buffer_pool.h"
#include "gradwire/transport/event_loop.h"
#include "gradwire/transport/ucx/ucx_transport.h"
#include "gradwire/transport/ucx/ucx_worker.h"

namespace gradwire::transport {

class UcxConnection;
class UcxListener;

// What a ucx transport shares with its connections, some of which live longer than it: the worker, and the rounds in
// which it makes progress. UCX's callbacks, which come while it makes progress, only take notes; what follows from them
// (calling listeners, closing endpoints, sending) happens behind them, when the connections that they touched settle.
//
// Its methods are for the loop's driver, but for the constructor and start().
class UcxContext : public Pollable, public EventHandler, public std::enable_shared_from_this<UcxContext> {
 public:
  UcxContext(UcxOptions given, std::shared_ptr<EventLoop> given_loop);
  ~UcxContext() override;

  // Makes the worker. Before anything is posted to the loop.
  absl::Status start();
  void start_in_loop();
  // The port. Unavailable with the cause.
  absl::StatusOr<int> listen_in_loop(Transport::AcceptHandler on_accept);
  // Ends the connections, unless they flush, and then the worker.
  void shut_down_in_loop();

  // The connection settles at the end of the round.
  void touch_in_loop(UcxConnection& connection);
  // UCX has been called: what follows is looked for.
  void heat_in_loop();
  // Destroys what belongs to users where no lock of UCX is held.
  void release_in_loop(Buffer buffer) { released_.push_back(std::move(buffer)); }

  void add_endpoint_in_loop(ucp_ep_h endpoint, UcxConnection& connection);
  // Whatever is under way there ends. Not from UCX's callbacks.
  void close_endpoint_in_loop(ucp_ep_h endpoint);
  // How endpoints tell of errors.
  ucp_err_handler_t error_handler_in_loop() { return {&UcxContext::on_endpoint_error, this}; }

  // The pool has given memory: sees to it that it gives back what is not used for a while.
  void tend_pool_in_loop();

  const UcxOptions options;
  const std::shared_ptr<BufferPool> pool;
  // Set before the first connection.
  std::shared_ptr<EventLoop> loop;
  std::unique_ptr<UcxWorker> worker;
  // The transport has shut down and its worker is gone.
  std::atomic<bool> ended{false};

  // Those below belong to the loop's driver.

  // Every connection whose on_closed has not come.
  absl::flat_hash_set<std::shared_ptr<UcxConnection>> connections;
  // Those after it, for which UCX has something under way still.
  absl::flat_hash_set<std::shared_ptr<UcxConnection>> retiring;
  bool shutting_down = false;

 private:
  // Pollable
  bool poll_in_loop() override;
  void arm_in_loop() override;
  void disarm_in_loop() override { armed_ = false; }
  bool has_news_in_loop() override;

  // EventHandler
  void on_events_in_loop(uint32_t events) override;

  // UCX's callbacks.
  static ucs_status_t on_active_message(void* context, const void* head, std::size_t head_bytes, void* data,
                                        std::size_t data_bytes, const ucp_am_recv_param_t* param);
  static void on_endpoint_error(void* context, ucp_ep_h endpoint, ucs_status_t status);
  static void on_endpoint_closed(void* request, ucs_status_t status, void* context);

  void settle_in_loop();
  void end_if_done_in_loop();
  void end_in_loop();

  // UCX rings when there is news.
  bool armed_ = false;
  // UCX would not be armed: it has news.
  bool refused_arming_ = false;
  uint64_t handler_id_ = 0;
  uint64_t pool_timer_ = 0;
  uint64_t end_timer_ = 0;
  int closing_endpoints_ = 0;
  std::unique_ptr<UcxListener> listener_;
  absl::flat_hash_map<ucp_ep_h, UcxConnection*> by_endpoint_;
  std::vector<std::shared_ptr<UcxConnection>> touched_;
  std::vector<Buffer> released_;
};

}  // namespace gradwire::transport
