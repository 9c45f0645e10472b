#pragma once

#include <memory>

#include "gradwire/transport/buffer_pool.h"
#include "gradwire/transport/event_loop.h"
#include "gradwire/transport/transport.h"

namespace gradwire::transport {

// Connections of a process with itself. The address that listen() returns leads to this transport object
// alone.
//
// Messages are delivered by whoever drives `loop` (without one: by a thread of the transport's own), never
// inside send(). Every buffer is copied in send(), the owned ones too: the receiver may write into what it
// gets and expects 64-byte alignment, while a sender that gave a buffer away has only promised not to change
// it and may go on reading it (a tensor that shares its storage, the same buffer in two messages). That
// others hold the memory cannot be seen from its owner handle. So capture() has nothing left to do.
std::unique_ptr<Transport> make_loopback_transport(BufferPoolOptions pool = BufferPoolOptions(),
                                                   std::shared_ptr<EventLoop> loop = nullptr);

}  // namespace gradwire::transport
