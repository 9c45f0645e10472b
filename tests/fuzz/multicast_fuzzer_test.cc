#include <random>
#include <string>

#include "absl/time/time.h"
#include "gradwire/store/formation/multicast_election.h"
#include "gradwire/tests/fuzz/fuzzing.h"
#include "gtest/gtest.h"

namespace gradwire::store {
namespace {

// Half of the questions have one more field, as only an announcement may have.
std::string question(std::mt19937& random) {
  // A port, a world size, settled.
  constexpr const char* kFields[] = {"\x28\x50", "\x18\x02", "\x30\x01"};
  std::string datagram = multicast_question("group");
  if (random() % 2 == 0) datagram += kFields[random() % 3];
  return datagram;
}

TEST(MulticastFuzzer, SeededDatagramsElectTheHostOfTheRules) {
  for (unsigned seed = 0; seed < 5'000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const int world_size = static_cast<int>(random() % 5);
    std::string bytes(1, static_cast<char>(world_size));
    for (std::size_t datagrams = random() % 20; datagrams > 0; --datagrams) {
      MulticastElection other(random() % 10 == 0 ? "another" : "group",
                              random() % 10 == 0 ? world_size + 1 : world_size, 48 + random() % 5,
                              random() % 10 == 0 ? -1 : 1 + static_cast<int>(random() % 70'000),
                              absl::UnixEpoch());
      if (random() % 10 == 0) other.settle();
      std::string datagram = random() % 8 == 0 ? question(random) : other.announcement();
      if (random() % 3 == 0) fuzzing::mutate(datagram, random);
      datagram.resize(std::min<std::size_t>(datagram.size(), 255));
      bytes.push_back(static_cast<char>(random() % 16));
      bytes.push_back(static_cast<char>(datagram.size()));
      bytes += datagram;
    }
    fuzzing::run(bytes);
  }
}

}  // namespace
}  // namespace gradwire::store
