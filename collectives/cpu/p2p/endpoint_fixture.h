#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gradwire/collectives/cpu/p2p/endpoint.h"
#include "gtest/gtest.h"

namespace gradwire::collectives::cpu {

inline constexpr uint64_t kChannel = 7;
// Room for two messages of four bytes.
inline constexpr uint64_t kTestWindow = 2 * (4 + kMessageCost) + 3;

inline std::string text_of(const Payload& payload) {
  return std::string(static_cast<const char*>(payload.data()), payload.size());
}

// Three ranks whose frames the test carries by hand. Messages of up to four bytes are eager, and a rank may
// have two pending RTS. At the end of a test no state may be left.
class EndpointTest : public testing::Test {
 protected:
  struct Rank {
    explicit Rank(int rank)
        : endpoint({.rank = rank,
                    .size = 3,
                    .eager_bytes = 4,
                    .max_pending_rts = 2,
                    .eager_window = kTestWindow}) {}
    Endpoint endpoint;
    // Frames that the rank has sent as answers, each with its destination.
    std::deque<std::pair<int, Frame>> answers;
    std::vector<SendPtr> retracted;
    std::vector<int> woken;
  };

  EndpointTest() {
    for (int rank = 0; rank < 3; ++rank) ranks_.push_back(std::make_unique<Rank>(rank));
  }

  void TearDown() override {
    for (const auto& rank : ranks_) {
      EXPECT_TRUE(rank->endpoint.idle());
      EXPECT_TRUE(rank->endpoint.sends().empty());
      EXPECT_EQ(rank->endpoint.sends().outboxes().size(), 0u);
      EXPECT_EQ(rank->endpoint.matcher().size(), 0u);
      for (const auto& [to, frame] : rank->answers) EXPECT_EQ(frame.kind, FrameKind::kCredit);
    }
  }

  Endpoint& at(int rank) { return ranks_[rank]->endpoint; }
  SendTable& sends(int rank) { return at(rank).sends(); }
  std::deque<std::pair<int, Frame>>& answers(int rank) { return ranks_[rank]->answers; }

  SendPtr send(int from, int to, const std::string& text, int64_t tag = 0, uint64_t channel = kChannel,
               absl::Time deadline = absl::InfiniteFuture()) {
    std::string& memory = memory_.emplace_back(text);
    auto send =
        std::make_shared<Send>(nullptr, to, channel, tag, Span{memory.data(), memory.size()}, deadline);
    operations_.push_back(send);
    act(from, [&](Effects& effects) { at(from).send(send, effects); });
    return send;
  }
  ReceivePtr receive(int rank, int from, std::size_t size, int64_t tag = 0, uint64_t channel = kChannel,
                     absl::Time deadline = absl::InfiniteFuture()) {
    std::string& memory = memory_.emplace_back(size, '-');
    auto receive =
        std::make_shared<Receive>(nullptr, from, channel, tag, Span{memory.data(), size}, deadline);
    operations_.push_back(receive);
    act(rank, [&](Effects& effects) { at(rank).receive(receive, effects); });
    return receive;
  }
  template <class Operation>
  void cancel(int rank, const std::shared_ptr<Operation>& operation) {
    act(rank, [&](Effects& effects) {
      at(rank).end(operation, absl::CancelledError("requested by the test"), effects);
    });
  }
  void abort(int rank, uint64_t channel = kChannel) {
    act(rank, [&](Effects& effects) { at(rank).abort(channel, absl::AbortedError("broken"), effects); });
  }
  void lose(int rank, int other) {
    act(rank, [&](Effects& effects) { at(rank).lose(other, absl::UnavailableError("has left"), effects); });
  }
  void expire(int rank, absl::Time now) {
    act(rank, [&](Effects& effects) { at(rank).expire(now, effects); });
  }

  // How an operation has ended: "" if it has not, otherwise "OK" or the error. For a receive, "OK" is
  // followed by the source and the bytes.
  template <class Operation>
  std::string end_of(const std::shared_ptr<Operation>& operation) {
    const auto found = ends_.find(operation.get());
    return found == ends_.end() ? "" : found->second;
  }

  // The carrier takes the front of an outbox.
  SendTable::Outgoing take(int from, int to) {
    EXPECT_TRUE(sends(from).outboxes().has(to));
    return sends(from).take(to);
  }
  void rts_sent(int from, const SendPtr& send, const absl::Status& status = absl::OkStatus()) {
    act(from, [&](Effects& effects) { sends(from).rts_sent(send, status, effects); });
  }
  void sent(int from, const SendPtr& send) {
    act(from, [&](Effects& effects) { sends(from).sent(send, effects); });
  }
  void released(int from, const SendPtr& send) {
    act(from, [&](Effects& effects) { sends(from).released(send, effects); });
  }
  void unsent(int from, const SendPtr& send, bool known, const absl::Status& status) {
    act(from, [&](Effects& effects) { sends(from).unsent(send, known, status, effects); });
  }
  absl::Status arrive(int from, int to, const Frame& frame, const std::string& text = "") {
    absl::Status status;
    act(to, [&](Effects& effects) {
      status = at(to).on_frame(from, frame, Payload::copy_of(text.data(), text.size()), effects);
    });
    return status;
  }
  // Carries the front of an outbox to its rank at once. Returns the kind of the frame.
  FrameKind carry(int from, int to) {
    const SendTable::Outgoing next = take(from, to);
    std::string text;
    if (next.send != nullptr && next.frame.kind != FrameKind::kRts)
      text.assign(static_cast<const char*>(next.send->data.data), next.send->data.size);
    if (next.frame.kind == FrameKind::kRts) {
      rts_sent(from, next.send);
    } else if (next.send != nullptr) {
      sent(from, next.send);
    }
    EXPECT_TRUE(arrive(from, to, next.frame, text).ok());
    return next.frame.kind;
  }
  // Delivers the first answer of a rank, and returns it.
  Frame answer(int rank) {
    EXPECT_FALSE(answers(rank).empty());
    const auto [to, frame] = answers(rank).front();
    answers(rank).pop_front();
    EXPECT_TRUE(arrive(rank, to, frame).ok());
    return frame;
  }
  // Carries all frames until no rank has any left.
  void run() {
    for (bool again = true; again;) {
      again = false;
      for (int from = 0; from < 3; ++from) {
        for (; !answers(from).empty(); again = true) answer(from);
        for (int to = 0; to < 3; ++to) {
          for (; sends(from).outboxes().has(to); again = true) carry(from, to);
        }
      }
    }
  }

  template <class Event>
  void act(int rank, Event event) {
    Effects effects;
    event(effects);
    for (Effect& effect : effects) perform(*ranks_[rank], effect);
  }

  std::vector<std::unique_ptr<Rank>> ranks_;

 private:
  void perform(Rank& rank, Effect& effect) {
    switch (effect.kind) {
      case Effect::Kind::kDeliver:
        ASSERT_EQ(effect.payload.size(), effect.receive->data.size);
        copy_bytes(effect.receive->data.data, effect.payload.data(), effect.payload.size());
        end(effect.receive.get(), absl::StrCat("OK from ", effect.rank, ": ", text_of(effect.payload)));
        break;
      case Effect::Kind::kEndReceive:
        end(effect.receive.get(), effect.status.ToString());
        break;
      case Effect::Kind::kEndSend:
        end(effect.send.get(), effect.status.ToString());
        break;
      case Effect::Kind::kCts:
        EXPECT_NE(effect.receive, nullptr);
        [[fallthrough]];
      case Effect::Kind::kReply:
        rank.answers.emplace_back(effect.rank, effect.frame);
        break;
      case Effect::Kind::kRetract:
        rank.retracted.push_back(effect.send);
        break;
      case Effect::Kind::kWake:
        rank.woken.push_back(effect.rank);
        break;
    }
  }
  void end(const void* operation, const std::string& how) {
    EXPECT_TRUE(ends_.emplace(operation, how).second) << "ended twice, with " << how;
  }

  std::deque<std::string> memory_;
  // `ends_` identifies operations by address, so their memory must not be reused.
  std::vector<std::shared_ptr<const void>> operations_;
  std::map<const void*, std::string> ends_;
};

}  // namespace gradwire::collectives::cpu
