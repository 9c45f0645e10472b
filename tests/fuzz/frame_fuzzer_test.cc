#include "tests/fuzz/frame_fuzzer.h"

#include <memory>
#include <random>
#include <string>

#include "gtest/gtest.h"
#include "transport/tcp/frame.h"

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
      // Its other shares do not travel in this stream.
      striping.stripes = static_cast<int>(random() % 2) + 1;
      auto bytes = std::make_shared<std::string>(kMinStripedBytes + random() % 30'000, 's');
      message.buffers.emplace_back(bytes->data(), bytes->size(), bytes);
      payload += bytes->substr(0, stripe_share(bytes->size(), striping.stripes, 0).size);
    }
    stream += encode_frame_start(message, striping) + message.header + payload;
  }
  return stream;
}

void mutate(std::string& stream, std::mt19937& random) {
  for (int count = static_cast<int>(random() % 4); count > 0 && !stream.empty(); --count) {
    // Most of what matters lies in the first bytes.
    std::size_t at =
        random() % (random() % 2 == 0 ? std::min<std::size_t>(stream.size(), 80) : stream.size());
    switch (random() % 5) {
      case 0:
        stream[at] = static_cast<char>(random());
        break;
      case 1:
        stream[at] = static_cast<char>(stream[at] ^ (1 << random() % 8));
        break;
      case 2:
        stream.erase(at, random() % 20);
        break;
      case 3:
        stream.insert(at, random() % 20, static_cast<char>(random() % 2 == 0 ? 0 : 0xff));
        break;
      case 4:
        stream.resize(at);
        break;
    }
  }
}

TEST(FrameFuzzer, SeededMutationsKeepTheParsersPromises) {
  for (unsigned seed = 0; seed < 600; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::string stream = random_stream(random);
    mutate(stream, random);
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(stream.data()), stream.size());
  }
}

}  // namespace
}  // namespace gradwire::transport
