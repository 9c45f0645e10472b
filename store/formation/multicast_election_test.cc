#include "gradwire/store/formation/multicast_election.h"

#include <functional>

#include "gradwire/proto/store.pb.h"
#include "gtest/gtest.h"

namespace gradwire::store {
namespace {

const absl::Time kStart = absl::UnixEpoch();

MulticastElection member(int world_size, uint64_t candidate, const std::string& group = "g") {
  return MulticastElection(group, world_size, candidate, static_cast<int>(1000 + candidate), kStart);
}

TEST(MulticastElection, AllMembersChooseTheLowest) {
  MulticastElection five = member(2, 5), seven = member(2, 7);
  EXPECT_FALSE(five.decide(kStart).has_value());
  EXPECT_TRUE(five.observe(seven.announcement(), "10.0.0.7", kStart));
  EXPECT_TRUE(seven.observe(five.announcement(), "10.0.0.5", kStart));
  EXPECT_TRUE(five.decide(kStart)->self);
  EXPECT_FALSE(seven.decide(kStart)->self);
  EXPECT_EQ(to_string(seven.decide(kStart)->endpoint), "10.0.0.5:1005");
}

TEST(MulticastElection, OneCandidateOnTwoInterfacesCountsOnce) {
  MulticastElection five = member(3, 5), seven = member(3, 7);
  EXPECT_TRUE(five.observe(seven.announcement(), "10.0.0.7", kStart));
  EXPECT_TRUE(five.observe(seven.announcement(), "127.0.0.1", kStart));
  EXPECT_FALSE(five.observe(five.announcement(), "127.0.0.1", kStart));  // Itself.
  EXPECT_EQ(five.known(), 2);
}

TEST(MulticastElection, StrangersAndGarbageAreIgnored) {
  MulticastElection five = member(2, 5);
  const std::string good = member(2, 7).announcement();
  EXPECT_FALSE(five.observe("", "h", kStart));
  for (std::size_t size = 0; size < good.size(); ++size) {
    five.observe(absl::string_view(good).substr(0, size), "h", kStart);
  }
  for (int byte = 0; byte < 256; ++byte)
    EXPECT_FALSE(five.observe(std::string(300, static_cast<char>(byte)), "h", kStart));
  EXPECT_FALSE(five.observe(member(2, 7, "other").announcement(), "h", kStart));
  EXPECT_FALSE(five.observe(MulticastElection("g", 2, 7, 0, kStart).announcement(), "h", kStart));
  EXPECT_FALSE(five.observe(MulticastElection("g", 2, 7, 70000, kStart).announcement(), "h", kStart));
  EXPECT_FALSE(five.decide(kStart).has_value());
}

// Any program may send datagrams, so a datagram must not be able to cause a line in the log.
TEST(MulticastElection, NamesThatAreNotTextAreIgnoredInSilence) {
  MulticastElection election("group", 2, 5, 4001, absl::UnixEpoch());
  ::testing::internal::CaptureStderr();
  std::string datagram = election.announcement();
  for (std::size_t at = 0; at + 5 <= datagram.size(); ++at) {
    if (datagram.compare(at, 5, "group") != 0) continue;
    datagram.replace(at, 5, "\xff\xfe\xc0\x80\xed");
    break;
  }
  EXPECT_FALSE(election.observe(datagram, "10.0.0.1", absl::UnixEpoch()));
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  // A name that is not text is a name like others.
  MulticastElection other("\xff\xfe", 2, 6, 4001, absl::UnixEpoch());
  EXPECT_TRUE(MulticastElection("\xff\xfe", 2, 5, 4001, absl::UnixEpoch())
                  .observe(other.announcement(), "10.0.0.1", absl::UnixEpoch()));
}

TEST(MulticastElection, ContradictingWorldSizeIsKept) {
  MulticastElection five = member(2, 5);
  EXPECT_TRUE(five.observe(member(3, 7).announcement(), "h", kStart));
  ASSERT_TRUE(five.contradiction().has_value());
  EXPECT_EQ(five.contradiction()->world_size, 3);
  EXPECT_EQ(five.contradiction()->host, "h");
}

// This process is extra, or late: it learns of the settled host.
TEST(MulticastElection, SettledMemberOfACompleteGroupHosts) {
  MulticastElection settled = member(3, 9);
  settled.settle();
  MulticastElection five = member(3, 5);
  EXPECT_TRUE(five.observe(settled.announcement(), "h", kStart));
  const auto decision = five.decide(kStart);
  ASSERT_TRUE(decision.has_value());
  EXPECT_FALSE(decision->self);
  EXPECT_EQ(decision->candidate, 9);
}

TEST(MulticastElection, MemberThatFellSilentIsForgotten) {
  MulticastElection five = member(2, 5);
  five.observe(member(2, 3).announcement(), "h", kStart);
  EXPECT_TRUE(five.decide(kStart + MulticastElection::kForgetAfter).has_value());
  EXPECT_FALSE(five.decide(kStart + MulticastElection::kForgetAfter + absl::Milliseconds(1)).has_value());
}

TEST(MulticastElection, MemberThatAnnouncesItselfAgainStays) {
  MulticastElection five = member(2, 5);
  const absl::Duration while_it_counts = 2 * MulticastElection::kForgetAfter / 3;
  five.observe(member(2, 3).announcement(), "h", kStart);
  five.observe(member(2, 3).announcement(), "h", kStart + while_it_counts);
  EXPECT_TRUE(five.decide(kStart + 2 * while_it_counts).has_value());
}

TEST(MulticastElection, MemberThatSettlesWhileItIsKnownHosts) {
  MulticastElection five = member(3, 5), nine = member(3, 9);
  five.observe(nine.announcement(), "h", kStart);
  EXPECT_FALSE(five.decide(kStart).has_value());
  nine.settle();
  five.observe(nine.announcement(), "h", kStart);
  ASSERT_TRUE(five.decide(kStart).has_value());
  EXPECT_EQ(five.decide(kStart)->candidate, 9);
}

TEST(MulticastElection, NumberOfMembersThatAreRememberedIsBounded) {
  MulticastElection five = member(2, 5);
  for (std::size_t i = 0; i < MulticastElection::kMaxCandidates + 10; ++i) {
    five.observe(MulticastElection("g", 2, 100 + i, 1000, kStart).announcement(), "h", kStart);
  }
  EXPECT_EQ(five.known(), static_cast<int>(MulticastElection::kMaxCandidates) + 1);
}

TEST(MulticastElection, OpenGroupSettlesAfterListeningAndIsJoinedAfterwards) {
  MulticastElection nine = member(0, 9), two = member(0, 2);
  EXPECT_FALSE(nine.decide(kStart).has_value());
  const absl::Time later = kStart + MulticastElection::kListenTime;
  EXPECT_TRUE(nine.decide(later)->self);
  nine.settle();
  // Candidate 2 is lower, but too late.
  two.observe(nine.announcement(), "10.0.0.9", later);
  EXPECT_FALSE(two.decide(later)->self);
  EXPECT_EQ(two.decide(later)->candidate, 9);
}

TEST(MulticastElection, HigherCandidateOfAnOpenGroupWaitsForTheLower) {
  MulticastElection nine = member(0, 9), two = member(0, 2);
  const absl::Time later = kStart + MulticastElection::kListenTime;
  nine.observe(two.announcement(), "10.0.0.2", later);
  EXPECT_FALSE(nine.decide(later).has_value());
  EXPECT_TRUE(two.decide(later)->self);
}

// A process that only searches for the store.
TEST(MulticastElection, QuestionsAreAnsweredButNotCounted) {
  MulticastElection five = member(2, 5);
  EXPECT_TRUE(five.observe(multicast_question("g"), "10.0.0.1", kStart));
  EXPECT_FALSE(five.observe(multicast_question("other"), "10.0.0.1", kStart));
  EXPECT_EQ(five.known(), 1);
  EXPECT_FALSE(five.contradiction().has_value());
  EXPECT_FALSE(five.decide(kStart).has_value());
  EXPECT_FALSE(parse_announcement(multicast_question("g"), "10.0.0.1", "g").has_value());
  auto found = parse_announcement(five.announcement(), "10.0.0.5", "g");
  ASSERT_TRUE(found.has_value());
  EXPECT_FALSE(found->settled);
  five.settle();
  found = parse_announcement(five.announcement(), "10.0.0.5", "g");
  ASSERT_TRUE(found.has_value());
  EXPECT_TRUE(found->settled);
  EXPECT_EQ(to_string(found->endpoint), "10.0.0.5:1005");
  EXPECT_FALSE(parse_announcement(five.announcement(), "10.0.0.5", "other").has_value());
  EXPECT_FALSE(parse_announcement("garbage", "10.0.0.5", "g").has_value());
}

TEST(MulticastElection, QuestionsWithAFieldOfAnAnnouncementAreRefused) {
  MulticastElection five = member(2, 5);
  using Change = std::function<void(proto::Announcement&)>;
  for (const Change& change : {Change([](proto::Announcement& question) { question.set_port(1000); }),
                               Change([](proto::Announcement& question) { question.set_world_size(2); }),
                               Change([](proto::Announcement& question) { question.set_settled(true); })}) {
    proto::Announcement question;
    ASSERT_TRUE(question.ParseFromString(multicast_question("g")));
    change(question);
    EXPECT_FALSE(five.observe(question.SerializeAsString(), "10.0.0.1", kStart))
        << question.ShortDebugString();
  }
}

}  // namespace
}  // namespace gradwire::store
