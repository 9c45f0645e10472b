#include <random>
#include <string>

#include "gradwire/proto/gateway.pb.h"
#include "gradwire/tests/fuzz/fuzzing.h"
#include "gtest/gtest.h"

namespace gradwire::gateway {
namespace {

v1::Value random_value(std::mt19937& random, int depth) {
  v1::Value value;
  switch (random() % (depth > 3 ? 9 : 14)) {
    case 0:
      value.mutable_none();
      break;
    case 1:
      value.set_boolean(random() % 2 == 0);
      break;
    case 2:
      value.set_integer(static_cast<int64_t>(random() % 600) - 300);
      break;
    case 3:
      value.set_unsigned_integer((uint64_t{random()} << 32) | random());
      break;
    case 4:
      value.set_real(0.5);
      break;
    case 5:
      value.set_text("text");
      break;
    case 6:
      value.set_data(fuzzing::random_bytes(random() % 20, random));
      break;
    case 7: {
      v1::Tensor& tensor = *value.mutable_tensor();
      tensor.set_dtype(static_cast<v1::DType>(random() % 20));
      tensor.add_shape(random() % 4);
      tensor.set_data(std::string(random() % 16, 'x'));
      break;
    }
    case 8:
      value.mutable_handle()->set_id("0123456789abcdef");
      break;
    case 9:
    case 10:
      for (std::size_t i = random() % 4; i > 0; --i) {
        *value.mutable_list()->add_values() = random_value(random, depth + 1);
      }
      break;
    case 11:
      for (std::size_t i = random() % 4; i > 0; --i) value.mutable_integers()->add_values(random() % 99);
      break;
    case 12:
      for (std::size_t i = random() % 4; i > 0; --i) value.mutable_reals()->add_values(0.25);
      break;
    case 13:
      for (std::size_t i = random() % 3; i > 0; --i) {
        value.mutable_map()->add_keys()->set_text("key");
        *value.mutable_map()->add_values() = random_value(random, depth + 1);
      }
      break;
  }
  return value;
}

TEST(GatewayFuzzer, SeededMutationsComeBackAsTheyWere) {
  for (unsigned seed = 0; seed < 20'000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::string bytes = random_value(random, 0).SerializeAsString();
    if (random() % 4 == 0) fuzzing::mutate(bytes, random);
    fuzzing::run(std::string(1, static_cast<char>(random())) + bytes);
  }
}

}  // namespace
}  // namespace gradwire::gateway
