#pragma once

#include <algorithm>
#include <cstddef>

#include "absl/time/time.h"
#include "gradwire/transport/turns/turns.h"

namespace gradwire::transport {

// How many bytes a connection should read at once, so that handling them takes no longer than a round of the
// loop. It follows from the time that the bytes before have taken: small requests take much longer per byte
// than a large tensor. A pure state machine.
class ReadSize {
 public:
  // Between `least` and `most` bytes; the first read has `first`.
  ReadSize(std::size_t least, std::size_t first, std::size_t most)
      : least_(least), most_(most), size_(first) {}

  std::size_t bytes() const { return size_; }

  // `handled` bytes have taken `taken`. If that is a round or more, later reads have as many bytes as fit
  // into a round. If a whole read has taken less than half of a round, the next one has twice as many.
  void on_handled(std::size_t handled, absl::Duration taken) {
    if (taken >= Turns::kRound) {
      const double share = absl::FDivDuration(Turns::kRound, taken);
      const auto fitting = static_cast<std::size_t>(static_cast<double>(handled) * share);
      size_ = std::clamp(fitting, least_, most_);
    } else if (handled >= size_ && 2 * taken < Turns::kRound) {
      size_ = std::min(2 * size_, most_);
    }
  }

 private:
  const std::size_t least_;
  const std::size_t most_;
  std::size_t size_;
};

}  // namespace gradwire::transport
