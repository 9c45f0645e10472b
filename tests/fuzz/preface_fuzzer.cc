// Reads the input as the preface of a connection or a stripe (transport/tcp/wire/preface.h), and as the sizes
// of a striped buffer.

#include <string>

#include "gradwire/tests/fuzz/fuzzing.h"
#include "gradwire/transport/tcp/wire/frame.h"
#include "gradwire/transport/tcp/wire/preface.h"

namespace {

using gradwire::fuzzing::number_at;
using gradwire::fuzzing::require;
using gradwire::transport::kMaxStripes;
using gradwire::transport::Preface;
using gradwire::transport::stripe_share;
using gradwire::transport::StripeShare;

void check_preface(const std::string& bytes) {
  const auto at = [&bytes](std::size_t index) {
    return static_cast<int>(number_at(bytes.data() + index, 1));
  };
  const int proof = at(5) >> 4;
  const bool is_connection = (at(5) & 0xf) == 0 && proof <= 2 && at(6) == 0 && at(7) == 0;
  const bool is_stripe = at(5) == 1 && at(6) >= 1 && at(6) <= at(7) && at(7) <= 8;
  const bool valid = bytes.compare(0, 4, "GWt1") == 0 && at(4) == 2 && (is_connection || is_stripe);
  const absl::StatusOr<Preface> preface = Preface::parse(bytes);
  require(preface.ok() == valid, "a preface is accepted or refused wrongly");
  if (!valid) {
    require(absl::IsInvalidArgument(preface.status()), "an error that is not InvalidArgument");
    return;
  }
  require((preface->kind == Preface::Kind::kStripe) == is_stripe, "a preface of the wrong kind");
  require(static_cast<int>(preface->proof) == proof, "the wrong proof");
  require(preface->stripe == at(6) && preface->stripes == at(7), "the wrong stripe");
  require(preface->token[0] == number_at(bytes.data() + 8, 8) &&
              preface->token[1] == number_at(bytes.data() + 16, 8),
          "the wrong token");
  require(preface->encode() == bytes, "a preface does not survive encoding");
}

// The shares are consecutive and together form the whole buffer.
void check_shares(uint64_t size, int stripes) {
  uint64_t next = 0;
  for (int index = 0; index <= stripes; ++index) {
    const StripeShare share = stripe_share(size, stripes, index);
    require(share.size <= size && (share.size == 0 || share.offset == next),
            "shares overlap, or leave a gap");
    next += share.size;
  }
  require(next == size, "shares are not all of the buffer");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  std::string bytes(reinterpret_cast<const char*>(data), size);
  bytes.resize(Preface::kBytes);
  check_preface(bytes);
  // Sizes up to the largest that any limit on a buffer allows.
  check_shares(number_at(bytes.data() + 8, 8) >> 8,
               1 + static_cast<int>(number_at(bytes.data(), 1) % kMaxStripes));
  return 0;
}
