#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "gradwire/collectives/cpu/p2p/matcher.h"
#include "gtest/gtest.h"

namespace gradwire::collectives::cpu {

using Kind = Matcher::Action::Kind;

inline constexpr uint64_t kMatcherChannel = 7;

inline Payload payload(const std::string& text) { return Payload::copy_of(text.data(), text.size()); }

inline std::string matched_text(const Payload& payload) {
  return std::string(static_cast<const char*>(payload.data()), payload.size());
}

// The Matcher of rank 0 of four. Each function is one event and returns its actions.
class MatcherTest : public testing::Test {
 protected:
  Matcher::Actions post(uint64_t receive, int src, uint64_t size = 1, int64_t tag = 0,
                        uint64_t channel = kMatcherChannel) {
    Matcher::Actions actions;
    matcher_.post(receive, src, channel, tag, size, actions);
    return actions;
  }
  Matcher::Actions eager(int src, const std::string& text, int64_t tag = 0,
                         uint64_t channel = kMatcherChannel) {
    Matcher::Actions actions;
    EXPECT_TRUE(matcher_.on_eager(src, channel, tag, payload(text), actions).ok());
    return actions;
  }
  Matcher::Actions rts(int src, uint64_t message, uint64_t size = 1, int64_t tag = 0,
                       uint64_t channel = kMatcherChannel) {
    Matcher::Actions actions;
    EXPECT_TRUE(matcher_.on_rts(src, channel, tag, size, message, actions).ok());
    return actions;
  }
  Matcher::Actions data(int src, uint64_t message, const std::string& text) {
    Matcher::Actions actions;
    EXPECT_TRUE(matcher_.on_data(src, message, payload(text), actions).ok());
    return actions;
  }
  Matcher::Actions lost(int src) {
    Matcher::Actions actions;
    matcher_.on_lost(src, absl::UnavailableError("is lost"), actions);
    return actions;
  }
  Matcher::Actions abort(uint64_t channel = kMatcherChannel) {
    Matcher::Actions actions;
    const absl::Status reason = absl::AbortedError("requested by the test");
    if (channels_.abort(channel, reason)) matcher_.end_channel(channel, reason, actions);
    return actions;
  }
  void forget(uint64_t channel, Matcher::Actions& actions) {
    matcher_.end_channel(channel, channels_.forget(channel), actions);
  }

  static void expect_delivered(const Matcher::Actions& actions, uint64_t receive, int src,
                               const std::string& text) {
    ASSERT_EQ(actions.size(), 1u);
    EXPECT_EQ(actions[0].kind, Kind::kDeliver);
    EXPECT_EQ(actions[0].receive, receive);
    EXPECT_EQ(actions[0].src, src);
    EXPECT_EQ(matched_text(actions[0].payload), text);
  }
  static void expect_failed(const Matcher::Actions& actions, uint64_t receive, absl::StatusCode code) {
    ASSERT_EQ(actions.size(), 1u);
    EXPECT_EQ(actions[0].kind, Kind::kFail);
    EXPECT_EQ(actions[0].receive, receive);
    EXPECT_EQ(actions[0].status.code(), code) << actions[0].status;
  }
  static void expect_cts(const Matcher::Actions& actions, int src, uint64_t message) {
    ASSERT_EQ(actions.size(), 1u);
    EXPECT_EQ(actions[0].kind, Kind::kCts);
    EXPECT_EQ(actions[0].src, src);
    EXPECT_EQ(actions[0].message, message);
  }

  Channels channels_;
  Matcher matcher_{0, 4, channels_};
};

}  // namespace gradwire::collectives::cpu
