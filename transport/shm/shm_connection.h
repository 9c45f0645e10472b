#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/optional.h"
#include "gradwire/base/mutex.h"
#include "gradwire/transport/connection.h"
#include "gradwire/transport/event_loop.h"
#include "gradwire/transport/shm/memory/arena_owner.h"
#include "gradwire/transport/shm/memory/arena_peer.h"
#include "gradwire/transport/shm/memory/control_socket.h"
#include "gradwire/transport/shm/memory/ring_consumer.h"
#include "gradwire/transport/shm/memory/ring_producer.h"
#include "gradwire/transport/shm/message_reader.h"
#include "gradwire/transport/shm/outgoing.h"
#include "gradwire/transport/shm/shm_address.h"
#include "gradwire/transport/shm/shm_context.h"
#include "gradwire/transport/transport.h"

namespace gradwire::transport {

// One end of a connection through shared memory.
//
// States: kConnecting (until both ends have said hello) -> kOpen -> kClosing -> kClosed. kClosing is between close() and
// on_closed: it lasts until the queue has been written to the ring, where the other end finds it even after this one is
// gone, or the flush time is over. Any state may go to kClosed directly.
//
// Reading, timers and callbacks happen on the loop's driver alone. Writing happens on the sender's thread, into the ring
// under the lock; what finds no room waits in a queue, which the loop's driver writes when the reader has made room.
// Large buffers are copied into the arena before that, without the lock.
class ShmConnection : public Connection,
                      public EventHandler,
                      public std::enable_shared_from_this<ShmConnection> {
 public:
  ShmConnection(std::shared_ptr<ShmContext> context, std::string peer_address);
  ~ShmConnection() override;

  // Connection
  absl::StatusOr<uint64_t> send(Message message) override;
  void capture(uint64_t ticket) override;
  void close(absl::Status reason, absl::Duration flush) override;
  std::string peer_address() const override { return peer_address_; }
  absl::StatusOr<Buffer> allocate(std::size_t size) override;
  std::size_t queued_bytes() override;

  // Tries to connect until `deadline`.
  void connect_in_loop(ShmAddress address, std::shared_ptr<ConnectionListener> listener, absl::Time deadline);
  // Takes a socket that was accepted; once the other end has said hello `on_accept` chooses the listener.
  void accept_in_loop(Descriptor socket, std::shared_ptr<const Transport::AcceptHandler> on_accept);

  // Ends the connection unless a flush is under way.
  void shut_down_in_loop();

 private:
  enum class State { kConnecting, kOpen, kClosing, kClosed };

  // What the loop looks at while it is hot. It may outlive the connection, and then has no news.
  class RingWatch : public Pollable {
   public:
    explicit RingWatch(ShmConnection& connection) : connection_(&connection) {}
    // The connection has ended.
    void detach_in_loop() { connection_ = nullptr; }

    bool poll_in_loop() override { return connection_ != nullptr && connection_->poll_ring_in_loop(); }
    void arm_in_loop() override {
      if (connection_ != nullptr) connection_->arm_ring_in_loop();
    }
    void disarm_in_loop() override {
      if (connection_ != nullptr) connection_->disarm_ring_in_loop();
    }
    bool has_news_in_loop() override {
      return connection_ != nullptr && connection_->ring_has_news_in_loop();
    }

   private:
    // Belongs to the loop's driver.
    ShmConnection* connection_;
  };

  // EventHandler
  void on_events_in_loop(uint32_t events) override;
  bool brings_more() const override { return false; }

  // Establishing (shm_connect.cc).
  void try_connect_in_loop();
  bool watch_socket_in_loop();
  bool say_hello_in_loop();
  void hear_hello_in_loop(ControlPacket& packet);
  void established_in_loop();

  // The socket and the ring (shm_read.cc).
  void read_socket_in_loop();
  absl::Status take_packet_in_loop(ControlPacket& packet);
  absl::Status catch_up_in_loop();
  void peer_gone_in_loop();
  bool poll_ring_in_loop();
  bool read_ring_in_loop(int messages, uint64_t lines);
  void arm_ring_in_loop();
  void disarm_ring_in_loop();
  bool ring_has_news_in_loop();

  // Writing (shm_write.cc). Effects are what is to be done when the lock has been released.
  struct Effects {
    bool published = false;
    bool ring = false;
    bool drained = false;
    bool broken = false;
    bool more = false;
    std::vector<Outgoing> written;
  };
  // That are not in the arena.
  bool has_large_buffers(const Outgoing& outgoing) const;
  void prepare(Outgoing& outgoing);
  bool write_locked(Outgoing& outgoing, Effects& effects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Writes what is queued; whether anything was.
  bool write_queued();
  void apply(Effects& effects);
  void trim_in_loop();
  void keep_trimming();

  // Closing (shm_connection.cc).
  void begin_close_in_loop(absl::Time deadline);
  void finish_in_loop(absl::Status reason);
  absl::Status unavailable(absl::string_view cause) const;

  const std::shared_ptr<ShmContext> context_;
  const std::string peer_address_;
  const std::shared_ptr<ControlSocket> socket_ = std::make_shared<ControlSocket>();
  const std::shared_ptr<RingWatch> watch_;
  // For heat(), which takes one of this type.
  const std::shared_ptr<Pollable> pollable_;

  // Those below belong to the loop's driver.
  std::shared_ptr<ConnectionListener> listener_;
  std::shared_ptr<const Transport::AcceptHandler> on_accept_;
  ShmAddress connect_to_;
  absl::Time connect_deadline_;
  uint64_t handler_id_ = 0;
  uint64_t connect_timer_ = 0;
  uint64_t close_timer_ = 0;
  uint64_t trim_timer_ = 0;
  // Both ends have said hello, and the connection has not ended.
  bool connected_ = false;
  // Said, but not answered yet.
  absl::optional<RingProducer> own_ring_;
  ArenaPeer peer_arena_;
  MessageReader reader_;
  absl::optional<RingConsumer> incoming_;

  Mutex mutex_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kConnecting;
  // Why it was closed, from the first close() or failure on.
  absl::optional<absl::Status> close_reason_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_ticket_ ABSL_GUARDED_BY(mutex_) = 0;
  OutgoingQueue queue_ ABSL_GUARDED_BY(mutex_);
  // Once both ends have said hello.
  absl::optional<RingProducer> outgoing_ ABSL_GUARDED_BY(mutex_);
  // How much room the queue waits for.
  std::size_t needed_room_ ABSL_GUARDED_BY(mutex_) = 0;
  // A thread copies buffers of the queue's first message into the arena.
  bool preparing_ ABSL_GUARDED_BY(mutex_) = false;
  CondVar prepared_;

  // Set once, when the connection is established; lives as long as the connection.
  std::shared_ptr<ArenaOwner> arena_storage_;
  std::atomic<ArenaOwner*> arena_{nullptr};
  // trim_in_loop() comes.
  std::atomic<bool> trimming_{false};
  // The queue waits for room. Whether the loop looks for it, or the reader has to ring: each side says its own first,
  // then looks at the other's.
  std::atomic<bool> blocked_{false};
  std::atomic<bool> polled_{false};
  // close() was called: nothing is delivered any more.
  std::atomic<bool> close_called_{false};
};

}  // namespace gradwire::transport
