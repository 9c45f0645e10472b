#include <random>
#include <string>

#include "gradwire/collectives/cpu/world_p2p/p2p_wire.h"
#include "gradwire/tests/fuzz/fuzzing.h"
#include "gtest/gtest.h"

namespace gradwire::collectives::cpu {
namespace {

TEST(P2pWireFuzzer, SeededMutationsMatchTheFormat) {
  for (unsigned seed = 0; seed < 20'000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    Frame frame{.kind = static_cast<FrameKind>(random() % 12)};
    // Each field is set with probability 1/2, so that some frames have exactly the fields of their kind.
    if (random() % 2 == 0) frame.code = random() % 20;
    if (random() % 2 == 0) frame.channel = random();
    if (random() % 2 == 0) frame.tag = static_cast<int64_t>(random()) - 1'000;
    if (random() % 2 == 0) frame.size = random() % 100;
    if (random() % 2 == 0) frame.id = random() % 3;
    const bool in_buffer = random() % 2 == 0;
    std::string bytes(1, in_buffer ? 2 : 0);
    if (in_buffer) bytes.push_back(static_cast<char>(frame.size));
    bytes += encode_frame(frame);
    if (!in_buffer) bytes.append(frame.kind == FrameKind::kHello ? kTokenBytes : frame.size, 'p');
    if (random() % 2 == 0) fuzzing::mutate(bytes, random);
    fuzzing::run(bytes);
  }
}

}  // namespace
}  // namespace gradwire::collectives::cpu
