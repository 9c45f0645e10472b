#pragma once

#include "gradwire/transport/event_loop.h"
#include "gradwire/transport/shm/shm_receiver.h"
#include "gradwire/transport/shm/shm_sender.h"

namespace gradwire::transport {

// What the loop polls of a connection while it is hot: the ring that comes in, and room in the one that goes out. Has
// news only between attach and detach, and may outlive the connection. Belongs to the loop's driver.
class RingWatch : public Pollable {
 public:
  // The connection is established.
  void attach_in_loop(ShmReceiver& receiver, ShmSender& sender) {
    receiver_ = &receiver;
    sender_ = &sender;
  }
  // The connection has ended.
  void detach_in_loop() { receiver_ = nullptr; }

  bool poll_in_loop() override {
    if (receiver_ == nullptr) return false;
    bool any = receiver_->poll_ring_in_loop();
    // What came may have ended the connection.
    if (receiver_ != nullptr && sender_->blocked() && sender_->write_queued()) any = true;
    return any;
  }
  void arm_in_loop() override {
    if (receiver_ == nullptr) return;
    receiver_->arm_in_loop();
    sender_->arm_in_loop();
  }
  void disarm_in_loop() override {
    if (receiver_ == nullptr) return;
    receiver_->disarm_in_loop();
    sender_->disarm_in_loop();
  }
  bool has_news_in_loop() override {
    return receiver_ != nullptr && (receiver_->has_news_in_loop() || sender_->has_news_in_loop());
  }

 private:
  ShmReceiver* receiver_ = nullptr;
  ShmSender* sender_ = nullptr;
};

}  // namespace gradwire::transport
