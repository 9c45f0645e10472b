#pragma once

namespace gradwire::transport {

// How the stripes of a connection come and go. The end that opened the connection opens its stripes, all at
// once, when either end has a large buffer to send:
//
//   opener                                       the other end
//   stripe 1..k: preface with the token   ->     (joins them; with the last one it may use them)
//                                         <-     control: ready
//   (may use them)
//
// Neither end puts a striped frame on the connection before "ready": one that comes earlier is invalid.
//
// The other end asks for them with "want". When they have carried nothing for a while the opener sends "drop"
// and uses them no more; so does the other end, and answers "drop". What was sent before has arrived with
// that, since a message is complete before the next frame is read; so the opener closes them. Control frames,
// one byte each:
enum class StripeControl : char { kWant = 1, kReady = 2, kDrop = 3 };

}  // namespace gradwire::transport
