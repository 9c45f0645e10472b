#pragma once

#include <cstdint>
#include <vector>

#include "gradwire/rpc/calls/call.h"

// The functions and the class that the processes of the scale tests register.
namespace scale {

int64_t add(int64_t a, int64_t b);

// A small object. The tests create many of them.
class Item {
 public:
  explicit Item(int64_t number) : number_(number) {}
  int64_t number() const { return number_; }

 private:
  int64_t number_;
};

// Returns a reference to a new object that the callee owns.
gradwire::rpc::RRef<Item> offer(int64_t number);
// Fetches the value of the reference and returns its number.
int64_t read(const gradwire::rpc::RRef<Item>& item);

// Returns four numbers of the callee: its resident bytes, descriptors and threads, and the number of entries
// in the tables of its agent, without the entry for this call.
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
