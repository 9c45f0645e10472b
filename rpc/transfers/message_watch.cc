#include "gradwire/rpc/transfers/message_watch.h"

#include <algorithm>
#include <utility>

namespace gradwire::rpc {

void watch_sending(TransferWatch& watch, const MessageRoute& route, const proto::Envelope& envelope,
                   const proto::Request* answered, Sending sending) {
  // Most messages have left by now, at least with shared memory.
  if (sending.unsent() == uint64_t{0}) return;
  watch.begin(
      {.direction = Transfer::Direction::kSending,
       .what = transfer_name(envelope, answered == nullptr ? "" : callee_of(*answered)),
       .worker = route.worker,
       .link = route.link,
       .bytes = route.bytes,
       .whole_buffers = sending.whole_buffers,
       .progress = [bytes = route.bytes, unsent = std::move(sending.unsent)]() -> std::optional<uint64_t> {
         const std::optional<uint64_t> left = unsent();
         return left.has_value() ? std::make_optional(bytes - std::min(bytes, *left)) : std::nullopt;
       }});
}

void watch_receiving(TransferWatch& watch, const MessageRoute& route, const std::string& header,
                     ArrivingOn arriving, absl::FunctionRef<std::string(uint64_t)> callee_of) {
  proto::Envelope envelope;
  const std::shared_ptr<transport::Connection> connection = arriving.connection.lock();
  if (connection == nullptr || !envelope.ParseFromString(header)) return;
  watch.begin(
      {.direction = Transfer::Direction::kReceiving,
       .what =
           transfer_name(envelope, envelope.has_response() ? callee_of(envelope.response().call_id()) : ""),
       .worker = route.worker,
       .link = route.link,
       .bytes = route.bytes,
       .whole_buffers = connection->counts_whole_buffers(),
       .progress = [weak = std::move(arriving.connection), bytes = route.bytes,
                    before = connection->bytes_arrived() - arriving.arrived]() -> std::optional<uint64_t> {
         const std::shared_ptr<transport::Connection> connection = weak.lock();
         if (connection == nullptr) return std::nullopt;
         return std::min(bytes, connection->bytes_arrived() - before);
       }});
}

}  // namespace gradwire::rpc
