#include "gradwire/tools/bench/transport/mirror.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "gradwire/tools/bench/run/pattern.h"

namespace gradwire::bench {
namespace {

using transport::Buffer;
using transport::Connection;
using transport::Message;

class Mirror final : public transport::ConnectionListener {
 public:
  void on_message(Connection& connection, Message message) override {
    // Check the first and the last word of each buffer, so that missing data is detected.
    for (const Buffer& buffer : message.buffers) {
      uint64_t seed = 0;
      std::memcpy(&seed, message.header.data(), std::min(sizeof seed, message.header.size()));
      const auto* words = static_cast<const uint64_t*>(buffer.data());
      const std::size_t last = buffer.size() / 8 - 1;
      if (words[0] != pattern_word(seed, 0) || words[last] != pattern_word(seed, last)) {
        connection.close(absl::InternalError("wrong contents: the received bytes differ from the sent ones"));
        return;
      }
    }
    (void)connection.send({.header = std::move(message.header)});
  }
  void on_closed(Connection&, absl::Status) override {}
};

}  // namespace

std::shared_ptr<transport::ConnectionListener> make_mirror() { return std::make_shared<Mirror>(); }

}  // namespace gradwire::bench
