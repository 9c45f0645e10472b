#include "gradwire/tests/fuzz/frame_fuzzer.h"

#include <memory>
#include <random>
#include <string>

#include "gradwire/tests/fuzz/fuzzing.h"
#include "gradwire/transport/tcp/wire/frame.h"
#include "gtest/gtest.h"

namespace gradwire::transport {
namespace {

std::string random_stream(std::mt19937& random) {
  std::string stream;
  for (int frames = static_cast<int>(random() % 4); frames >= 0; --frames) {
    Message message;
    message.header.assign(random() % (random() % 10 == 0 ? 90'000 : 50), 'h');
    std::string payload;
    for (int buffers = static_cast<int>(random() % 6); buffers > 0; --buffers) {
      auto bytes = std::make_shared<std::string>(random() % (random() % 10 == 0 ? 30'000 : 90), 'b');
      message.buffers.emplace_back(bytes->data(), bytes->size(), bytes);
      payload += *bytes;
    }
    Striping striping;
    if (random() % 8 == 0) {
      // The other shares are not sent in this stream.
      striping.stripes = static_cast<int>(random() % 2) + 1;
      auto bytes = std::make_shared<std::string>(kMinStripedBytes + random() % 30'000, 's');
      message.buffers.emplace_back(bytes->data(), bytes->size(), bytes);
      payload += bytes->substr(0, stripe_share(bytes->size(), striping.stripes, 0).size);
    }
    stream += encode_frame_start(message, striping) + message.header + payload;
  }
  return stream;
}

TEST(FrameFuzzer, SeededMutationsKeepTheParsersPromises) {
  for (unsigned seed = 0; seed < 600; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::string stream = random_stream(random);
    fuzzing::mutate(stream, random);
    fuzzing::run(stream);
  }
}

TEST(FrameFuzzer, RandomBytesBehindTheMagicKeepTheParsersPromises) {
  std::mt19937 random(1);
  for (int i = 0; i < 2'000; ++i) {
    std::string stream = encode_frame_start(Message()).substr(0, 5 + random() % 20);
    fuzzing::run(stream + fuzzing::random_bytes(random() % 64, random));
  }
}

}  // namespace
}  // namespace gradwire::transport
