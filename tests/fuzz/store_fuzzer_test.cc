#include <random>
#include <string>

#include "gradwire/store/calls/key_list.h"
#include "gradwire/store/calls/tcp_store_protocol.h"
#include "gradwire/tests/fuzz/fuzzing.h"
#include "gtest/gtest.h"

namespace gradwire::store {
namespace {

std::string key(std::mt19937& random) { return std::string(1, static_cast<char>('a' + random() % 4)); }

std::string value(std::mt19937& random) {
  const char* const values[] = {"", "1", "-7", "9223372036854775807", "x", " 1", "+1", "1x"};
  return values[random() % 8];
}

proto::Request random_request(std::mt19937& random) {
  proto::Request request;
  request.set_id(random() % 50);
  request.set_timeout_us(random() % 2 == 0 ? 0 : -1);
  switch (random() % 16) {
    case 0:
    case 1:
      request.mutable_set()->set_key(key(random));
      request.mutable_set()->set_value(value(random));
      break;
    case 2:
      request.mutable_add()->set_key(key(random));
      request.mutable_add()->set_n(static_cast<int64_t>(random() % 5) - 2);
      break;
    case 3:
      request.mutable_compare_set()->set_key(key(random));
      request.mutable_compare_set()->set_expected(value(random));
      request.mutable_compare_set()->set_desired(value(random));
      break;
    case 4:
      request.mutable_delete_key()->set_key(key(random));
      break;
    case 5:
      request.mutable_num_keys()->set_prefix(random() % 2 == 0 ? "" : key(random));
      break;
    case 6: {
      std::vector<std::string> keys;
      for (std::size_t count = random() % 4; count > 0; --count) keys.push_back(key(random));
      pack_keys(keys, *request.mutable_wait()->mutable_keys());
      request.mutable_wait()->set_with_values(random() % 2 == 0);
      request.mutable_wait()->set_in_turn(random() % 3 == 0);
      break;
    }
    case 7:
      request.mutable_watch()->set_key(key(random));
      if (random() % 2 == 0) request.mutable_watch()->set_last_value(value(random));
      break;
    case 8:
      for (std::size_t count = random() % 3; count > 0; --count) {
        pack_key(key(random), *request.mutable_multi_set()->mutable_keys());
        pack_key(value(random), *request.mutable_multi_set()->mutable_values());
      }
      break;
    case 9:
      request.mutable_append()->set_key(key(random));
      request.mutable_append()->set_value(value(random));
      break;
    case 10:
      request.mutable_list_keys()->set_prefix(random() % 2 == 0 ? "" : key(random));
      break;
    case 11:
      pack_keys({key(random), key(random)}, *request.mutable_check()->mutable_keys());
      break;
    case 12:
    case 13:
      request.mutable_queue_push()->set_queue(key(random));
      request.mutable_queue_push()->set_value(value(random));
      break;
    case 14:
      if (random() % 3 == 0) {
        request.mutable_queue_len()->set_queue(key(random));
      } else {
        request.mutable_queue_pop()->set_queue(key(random));
      }
      break;
    case 15:
      if (random() % 4 == 0) request.mutable_hello()->set_magic(kStoreMagic);
      break;
  }
  return request;
}

TEST(StoreFuzzer, SeededRequestsGetTheAnswersOfTheModel) {
  for (unsigned seed = 0; seed < 3'000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::string bytes;
    for (std::size_t requests = random() % 60; requests > 0; --requests) {
      std::string request = random_request(random).SerializeAsString();
      if (random() % 6 == 0) fuzzing::mutate(request, random);
      request.resize(std::min<std::size_t>(request.size(), 255));
      bytes.push_back(static_cast<char>(random() % 3));
      bytes.push_back(static_cast<char>(request.size()));
      bytes += request;
    }
    fuzzing::run(bytes);
  }
}

}  // namespace
}  // namespace gradwire::store
