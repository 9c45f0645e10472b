#include "gradwire/transport/tcp/admission/admission.h"

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace gradwire::transport {
namespace {

constexpr Admission::Bounds kBounds = {.arrivals = 6, .arrivals_per_host = 4, .connections_per_host = 3};
const absl::Time kStart = absl::UnixEpoch();

TEST(Admission, SocketsAreAdmittedUpToTheBounds) {
  Admission admission(kBounds);
  for (int i = 0; i < 4; ++i) EXPECT_NE(admission.arrive("a", kStart).admitted, 0u);
  const Admission::Outcome fifth = admission.arrive("a", kStart);
  EXPECT_EQ(fifth.admitted, 0u);
  EXPECT_EQ(fifth.replaced, 0u);
  EXPECT_EQ(admission.arrivals(), 4u);
  EXPECT_EQ(admission.refused(), 1u);
}

TEST(Admission, ANewSocketReplacesTheOneOfItsHostThatHasWaitedLongest) {
  Admission admission(kBounds);
  const Admission::Id first = admission.arrive("a", kStart).admitted;
  for (int i = 0; i < 3; ++i) admission.arrive("a", kStart + Admission::kProtected);
  const absl::Time before = kStart + Admission::kProtected - absl::Nanoseconds(1);
  EXPECT_EQ(admission.arrive("a", before).admitted, 0u);
  const Admission::Outcome outcome = admission.arrive("a", kStart + Admission::kProtected);
  EXPECT_NE(outcome.admitted, 0u);
  EXPECT_EQ(outcome.replaced, first);
  EXPECT_EQ(admission.arrivals(), 4u);
  EXPECT_EQ(admission.replaced(), 1u);
  // The others are new.
  EXPECT_EQ(admission.arrive("a", kStart + Admission::kProtected).admitted, 0u);
}

TEST(Admission, AHostWithFewerSocketsReplacesTheNewestOfTheHostWithTheMost) {
  Admission admission(kBounds);
  Admission::Id newest = 0;
  for (int i = 0; i < 4; ++i) newest = admission.arrive("a", kStart).admitted;
  for (int i = 0; i < 2; ++i) admission.arrive("b", kStart);
  const Admission::Outcome third = admission.arrive("c", kStart);
  EXPECT_NE(third.admitted, 0u);
  EXPECT_EQ(third.replaced, newest);
  // Now a has 3, b 2 and c 1. A second one of c makes the counts equal; a third one would not.
  EXPECT_NE(admission.arrive("c", kStart).admitted, 0u);
  EXPECT_EQ(admission.arrive("c", kStart).admitted, 0u);
  EXPECT_EQ(admission.arrivals(), 6u);
}

TEST(Admission, AHostThatIsAloneStillReplacesItsOwnWhenAllPlacesAreTaken) {
  Admission admission({.arrivals = 3, .arrivals_per_host = 3, .connections_per_host = 3});
  const Admission::Id first = admission.arrive("a", kStart).admitted;
  for (int i = 0; i < 2; ++i) admission.arrive("a", kStart);
  EXPECT_EQ(admission.arrive("a", kStart + Admission::kProtected).replaced, first);
}

TEST(Admission, PlacesReturnWhenSocketsLeaveOrBecomeConnections) {
  Admission admission(kBounds);
  std::vector<Admission::Id> ids;
  for (int i = 0; i < 4; ++i) ids.push_back(admission.arrive("a", kStart).admitted);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(admission.may_connect(ids[i]));
    admission.connect(ids[i]);
  }
  EXPECT_FALSE(admission.may_connect(ids[3]));
  EXPECT_EQ(admission.arrivals(), 1u);
  EXPECT_EQ(admission.connections(), 3u);
  admission.leave(ids[0]);
  admission.leave(ids[0]);
  EXPECT_TRUE(admission.may_connect(ids[3]));
  for (const Admission::Id id : ids) admission.leave(id);
  EXPECT_EQ(admission.arrivals(), 0u);
  EXPECT_EQ(admission.connections(), 0u);
  EXPECT_FALSE(admission.may_connect(ids[3]));
}

TEST(Admission, BoundsOfZeroRefuseEverything) {
  Admission admission({.arrivals = 0, .arrivals_per_host = 0, .connections_per_host = 0});
  EXPECT_EQ(admission.arrive("a", kStart).admitted, 0u);
  EXPECT_EQ(admission.arrive("a", kStart + absl::Hours(1)).admitted, 0u);
}

// The counts of the class are compared with a list of the sockets.
TEST(Admission, RandomSequencesKeepTheBounds) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    Admission admission(kBounds);
    std::vector<std::pair<Admission::Id, std::string>> arrivals, connections;
    const auto count = [](const auto& list, const std::string& host) {
      std::size_t found = 0;
      for (const auto& [id, each] : list) found += each == host ? 1 : 0;
      return found;
    };
    const auto remove = [](auto& list, Admission::Id id) {
      std::erase_if(list, [id](const auto& entry) { return entry.first == id; });
    };
    absl::Time now = kStart;
    for (int step = 0; step < 200; ++step) {
      now += absl::Milliseconds(random() % 100);
      const std::string host(1, static_cast<char>('a' + random() % 3));
      if (random() % 3 != 0) {
        const Admission::Outcome outcome = admission.arrive(host, now);
        const bool had_room = arrivals.size() < 6 && count(arrivals, host) < 4;
        EXPECT_EQ(outcome.admitted != 0 && outcome.replaced == 0, had_room);
        EXPECT_FALSE(outcome.admitted == 0 && outcome.replaced != 0);
        remove(arrivals, outcome.replaced);
        if (outcome.admitted != 0) arrivals.emplace_back(outcome.admitted, host);
      } else if (!arrivals.empty()) {
        const auto chosen = arrivals[random() % arrivals.size()];
        EXPECT_EQ(admission.may_connect(chosen.first), count(connections, chosen.second) < 3);
        if (admission.may_connect(chosen.first)) {
          admission.connect(chosen.first);
          connections.push_back(chosen);
        } else {
          admission.leave(chosen.first);
        }
        remove(arrivals, chosen.first);
      }
      if (!connections.empty() && random() % 4 == 0) {
        admission.leave(connections.front().first);
        connections.erase(connections.begin());
      }
      ASSERT_EQ(admission.arrivals(), arrivals.size());
      ASSERT_EQ(admission.connections(), connections.size());
      ASSERT_LE(arrivals.size(), 6u);
    }
  }
}

}  // namespace
}  // namespace gradwire::transport
