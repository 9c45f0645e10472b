#include <algorithm>
#include <random>
#include <string>

#include "gradwire/store/c10d/c10d_protocol.h"
#include "gradwire/tests/fuzz/fuzzing.h"
#include "gtest/gtest.h"

namespace gradwire::store {
namespace {

std::string key(std::mt19937& random) {
  if (random() % 12 == 0) return random() % 2 == 0 ? std::string(kC10dWorkersKey) : "no prefix";
  return std::string("/") + static_cast<char>('a' + random() % 4);
}

std::string value(std::mt19937& random) {
  const char* const values[] = {"", "1", "-7", "9223372036854775807", "x"};
  return values[random() % 5];
}

std::string random_request(std::mt19937& random) {
  const auto query = static_cast<C10dQuery>(random() % 18);
  std::string bytes(1, static_cast<char>(query));
  const auto put = [&](const std::string& text) { put_c10d_string(bytes, text); };
  switch (query) {
    case C10dQuery::kValidate:
    case C10dQuery::kPing:
      put_c10d_number(bytes, random(), 4);
      break;
    case C10dQuery::kNumKeys:
    case C10dQuery::kCancelWait:
    case C10dQuery::kListKeys:
      break;
    case C10dQuery::kGet:
    case C10dQuery::kDeleteKey:
    case C10dQuery::kQueuePop:
    case C10dQuery::kQueueLen:
      put(key(random));
      break;
    case C10dQuery::kAdd:
      put(key(random));
      put_c10d_number(bytes, random() % 5 - uint64_t{2}, 8);
      break;
    case C10dQuery::kSet:
    case C10dQuery::kAppend:
    case C10dQuery::kQueuePush:
      put(key(random));
      put(value(random));
      break;
    case C10dQuery::kCompareSet:
      put(key(random));
      put(value(random));
      put(value(random));
      break;
    case C10dQuery::kCheck:
    case C10dQuery::kWait:
    case C10dQuery::kMultiGet:
    case C10dQuery::kMultiSet: {
      const uint64_t count = random() % 4;
      put_c10d_number(bytes, count, 8);
      for (uint64_t i = 0; i < count; ++i) {
        put(key(random));
        if (query == C10dQuery::kMultiSet) put(value(random));
      }
      break;
    }
  }
  return bytes;
}

TEST(C10dFuzzer, SeededRequestsAreReadAndAnsweredAsDocumented) {
  for (unsigned seed = 0; seed < 3'000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::string bytes;
    for (std::size_t requests = random() % 60; requests > 0; --requests) {
      std::string request = random_request(random);
      if (random() % 8 == 0) fuzzing::mutate(request, random);
      // In parts, so that requests of several clients arrive in turns.
      const char client = static_cast<char>(random() % 3);
      while (!request.empty()) {
        const std::size_t part = std::min<std::size_t>(request.size(), 1 + random() % 60);
        bytes.push_back(client);
        bytes.push_back(static_cast<char>(part));
        bytes += request.substr(0, part);
        request.erase(0, part);
      }
    }
    fuzzing::run(bytes);
  }
}

TEST(C10dFuzzer, RandomBytesAreRefusedOrAnswered) {
  std::mt19937 random(1);
  for (int round = 0; round < 2'000; ++round) fuzzing::run(fuzzing::random_bytes(random() % 300, random));
}

}  // namespace
}  // namespace gradwire::store
