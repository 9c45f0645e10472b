#pragma once

#include <memory>

#include "gradwire/transport/buffer_pool.h"
#include "gradwire/transport/event_loop.h"
#include "gradwire/transport/transport.h"

namespace gradwire::transport {

// Connections of a process with itself. The address that listen() returns can be reached only through this
// transport object.
//
// The driver of `loop` delivers the messages, never send() itself. Without `loop` the transport has its own
// thread. send() copies all buffers, also the owned ones. The receiver may write into the buffers that it
// gets and expects 64-byte alignment. But a sender that gives a buffer away has only promised not to modify
// it; it may still read it (a tensor that shares its storage, the same buffer in two messages). The owner
// handle does not show whether other objects use the memory. Because of the copies, capture() has nothing to
// do.
std::unique_ptr<Transport> make_loopback_transport(BufferPoolOptions pool = BufferPoolOptions(),
                                                   std::shared_ptr<EventLoop> loop = nullptr);

}  // namespace gradwire::transport
