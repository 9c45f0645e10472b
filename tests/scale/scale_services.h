#pragma once

#include <cstdint>
#include <vector>

#include "gradwire/rpc/call.h"

// What the processes of the scale tests register.
namespace scale {

int64_t add(int64_t a, int64_t b);

// An object of which many are made.
class Item {
 public:
  explicit Item(int64_t number) : number_(number) {}
  int64_t number() const { return number_; }

 private:
  int64_t number_;
};

// A reference to an object that the callee owns.
gradwire::rpc::RRef<Item> offer(int64_t number);
// Takes a reference, fetches the value and lets go.
int64_t read(const gradwire::rpc::RRef<Item>& item);

// The callee's resident bytes, descriptors, threads, and what its agent's tables hold in all but the call to
// this.
std::vector<int64_t> holdings();

}  // namespace scale

namespace gradwire::rpc {

template <>
struct Codec<scale::Item> {
  static std::string type_name() { return "scale.Item"; }
  static absl::Status encode(const scale::Item& item, Encoder& encoder, proto::Value& out) {
    return encode_value<int64_t>(item.number(), encoder, out);
  }
  static absl::StatusOr<scale::Item> decode(const proto::Value& in, Decoder& decoder) {
    GRADWIRE_ASSIGN_OR_RETURN(int64_t number, decode_value<int64_t>(in, decoder));
    return scale::Item(number);
  }
};

}  // namespace gradwire::rpc
