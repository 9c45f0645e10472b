#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/codec/codec_containers.h"
#include "gradwire/codec/codec_test_util.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/tests/fuzz/fuzzing.h"
#include "gtest/gtest.h"

namespace gradwire::rpc {
namespace {

using Nested = std::map<std::string, std::vector<std::pair<int64_t, std::optional<std::string>>>>;

TEST(EnvelopeFuzzer, SeededMutationsDecodeToNoMoreThanTheInput) {
  for (unsigned seed = 0; seed < 5'000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    TestSender sender;
    absl::Status added;
    switch (random() % 4) {
      case 0:
        added = sender.add<int64_t>(static_cast<int64_t>(random() % 600) - 300);
        break;
      case 1:
        added = sender.add<std::string>(fuzzing::random_bytes(random() % 40, random));
        break;
      case 2:
        added = sender.add<std::vector<int64_t>>(std::vector<int64_t>(random() % 20, random()));
        break;
      case 3: {
        Nested nested;
        for (std::size_t i = random() % 4; i > 0; --i) {
          auto& list = nested[fuzzing::random_bytes(random() % 4, random)];
          for (std::size_t j = random() % 3; j > 0; --j) {
            list.emplace_back(random(),
                              random() % 2 == 0 ? std::nullopt : std::optional<std::string>("text"));
          }
        }
        added = sender.add<Nested>(nested);
        break;
      }
    }
    ASSERT_TRUE(added.ok()) << added;
    proto::Envelope envelope;
    if (random() % 2 == 0) {
      *envelope.mutable_request()->mutable_arguments() = sender.payload();
    } else {
      *envelope.mutable_response()->mutable_result() = sender.payload();
    }
    std::string bytes = envelope.SerializeAsString();
    if (random() % 4 != 0) fuzzing::mutate(bytes, random);
    fuzzing::run(bytes);
  }
}

}  // namespace
}  // namespace gradwire::rpc
