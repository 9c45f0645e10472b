#pragma once

namespace gradwire::transport {

// The protocol that opens and closes the stripes of a connection. The end that opened the connection (the
// opener) opens all stripes at once, when either end has a large buffer to send:
//
//   opener                                       acceptor
//   stripe 1..k: preface with the token   ->     (each with a handshake if the connection had one: preface.h)
//                                                (registers them; after the last one it may use them)
//                                         <-     control: ready
//   (may use them)
//
// Neither end may send a striped frame on the connection before "ready": an earlier one is invalid.
//
// The acceptor requests stripes with "want". When the stripes have been idle for a while, the opener sends
// "drop" and does not use them any more. The acceptor then stops using them too and answers "drop".
// Everything that was sent before has then arrived, since a message is complete before the next frame is
// read; so the opener closes the stripes. Control frames have one byte:
enum class StripeControl : char { kWant = 1, kReady = 2, kDrop = 3 };

}  // namespace gradwire::transport
