#include "gradwire/autograd/pass/pass_state.h"

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace gradwire::autograd {
namespace {

// A simulated group of workers whose messages form a random graph. A message goes from one worker to another
// and carries some tensors; each tensor depends on outputs of messages that its sender received before. The
// network delays, reorders and repeats messages, and workers die.
class Simulation {
 public:
  struct Output {
    int message;
    int index;
  };
  struct Message {
    int from, to;
    std::vector<std::vector<Output>> depends;  // By tensor.
  };

  Simulation(uint32_t seed, int workers, int messages, bool fast, bool repeat)
      : random_(seed), repeat_(repeat), fast_(fast), workers_(workers) {
    for (int m = 0; m < messages; ++m) {
      Message message{pick(workers), pick(workers), {}};
      const int tensors = 1 + pick(3);
      for (int i = 0; i < tensors; ++i) message.depends.push_back(received_by(message.from, 2));
      messages_.push_back(message);
    }
    roots_ = received_by(0, 4);
    for (const Output& root : roots_) used_.insert({root.message, root.index});
    // Messages depend on earlier messages only, so one sweep finds all outputs that the roots depend on.
    for (int m = messages - 1; m >= 0; --m) {
      for (std::size_t i = 0; i < messages_[m].depends.size(); ++i) {
        if (!used_.contains({m, static_cast<int>(i)})) continue;
        for (const Output& output : messages_[m].depends[i]) used_.insert({output.message, output.index});
      }
    }
    for (int w = 0; w < workers; ++w) {
      parts_.emplace_back(PassState({incarnation(w), incarnation(0), fast}));
    }
  }

  // In the fast mode a worker waits for gradients of all tensors it sent, so a pass ends only if all are
  // used.
  bool all_used() const {
    for (std::size_t m = 0; m < messages_.size(); ++m) {
      bool any = false;
      for (std::size_t i = 0; i < messages_[m].depends.size(); ++i)
        any |= used_.contains({static_cast<int>(m), static_cast<int>(i)});
      if (!any) return false;
    }
    return true;
  }

  void run(int die_after) {
    PassState::Actions actions;
    Part& root = parts_[0];
    begin_part(0);
    if (fast_) {
      actions.start_run = true;
      count(0, roots_);
      root.state.counted(1);
    } else {
      root.state.begin_root();
      root.state.counted(1);
      walk(0, roots_, actions);
    }
    perform(0, std::move(actions));
    for (int events = 0; !network_.empty() || !ready_.empty(); ++events) {
      ASSERT_LT(events, 1'000'000);
      if (events == die_after && workers_ > 1) die(1 + pick(workers_ - 1));
      if (!ready_.empty() && (network_.empty() || pick(2) == 0)) {
        const std::size_t which = pick(static_cast<int>(ready_.size()));
        auto task = std::move(ready_[which]);
        ready_.erase(ready_.begin() + static_cast<long>(which));
        task();
        continue;
      }
      if (network_.empty()) continue;
      const std::size_t which = pick(static_cast<int>(network_.size()));
      auto delivery = network_[which];
      // A message that is sent with repetition may arrive twice.
      if (!repeat_ || pick(4) != 0) network_.erase(network_.begin() + static_cast<long>(which));
      delivery();
    }
  }

  bool completed() const { return completed_; }
  const absl::Status& status() const { return status_; }
  const std::map<std::pair<int, int>, int>& shipped() const { return shipped_; }
  const std::set<std::pair<int, int>>& used() const { return used_; }
  bool dead_took_part() const { return dead_ >= 0 && parts_[dead_].began; }
  bool everybody_ended() const {
    for (int w = 0; w < workers_; ++w) {
      if (w != dead_ && parts_[w].began && !parts_[w].state.ended()) return false;
    }
    return true;
  }
  bool anything_left() const { return work_left_at_completion_; }

 private:
  struct Part {
    explicit Part(PassState s) : state(std::move(s)) {}
    PassState state;
    bool began = false;
    std::map<int, std::set<int>> marked_recv;  // Message received here: outputs reached.
    std::map<int, int> missing;                // Message received here: gradients to come.
    std::map<int, std::set<int>> marked_send;  // Message sent from here: tensors marked.
    std::map<uint64_t, std::function<void(PassState::Actions&)>> replies;
    uint64_t next_reply = 1;
  };

  int pick(int n) { return static_cast<int>(random_() % static_cast<uint32_t>(n)); }
  static uint64_t incarnation(int worker) { return 100 + static_cast<uint64_t>(worker); }
  static int worker(uint64_t incarnation) { return static_cast<int>(incarnation - 100); }

  std::vector<Output> received_by(int worker, int at_most) {
    std::vector<Output> all;
    for (std::size_t m = 0; m < messages_.size(); ++m) {
      if (messages_[m].to != worker) continue;
      for (std::size_t i = 0; i < messages_[m].depends.size(); ++i)
        all.push_back({static_cast<int>(m), static_cast<int>(i)});
    }
    std::shuffle(all.begin(), all.end(), random_);
    if (static_cast<int>(all.size()) > at_most) all.resize(static_cast<std::size_t>(1 + pick(at_most)));
    return all;
  }

  void begin_part(int w) {
    Part& part = parts_[w];
    if (part.began) return;
    part.began = true;
    if (!fast_) return;
    for (std::size_t m = 0; m < messages_.size(); ++m) {
      if (messages_[m].from != w) continue;
      part.state.counted(1);
      for (std::size_t i = 0; i < messages_[m].depends.size(); ++i) {
        part.marked_send[static_cast<int>(m)].insert(static_cast<int>(i));
        count(w, messages_[m].depends[i]);
      }
    }
  }

  // Returns the MARKs that the walk causes.
  std::map<int, std::vector<int>> count(int w, const std::vector<Output>& outputs) {
    Part& part = parts_[w];
    std::map<int, std::vector<int>> reached;
    for (const Output& output : outputs) {
      if (part.missing.emplace(output.message, 0).second) part.state.counted(1);
      ++part.missing[output.message];
      if (part.marked_recv[output.message].insert(output.index).second)
        reached[output.message].push_back(output.index);
    }
    return reached;
  }

  void walk(int w, const std::vector<Output>& outputs, PassState::Actions& actions) {
    const auto reached = count(w, outputs);
    std::vector<uint64_t> receivers;
    for (const auto& [message, indices] : reached) receivers.push_back(incarnation(messages_[message].from));
    const std::vector<uint64_t> numbers = parts_[w].state.end_walk(receivers, actions);
    std::size_t i = 0;
    for (const auto& [message, indices] : reached) {
      send_mark(w, numbers[i++], message, indices);
    }
  }

  void send_mark(int from, uint64_t number, int message, std::vector<int> indices) {
    const int to = messages_[message].from;
    send(from, to, [=, this] {
      begin_part(to);
      Part& part = parts_[to];
      PassState::Actions actions;
      const uint64_t reply = part.next_reply++;
      part.replies[reply] = [=, this](PassState::Actions& outcome) {
        const absl::Status status = outcome.status;
        std::vector<uint64_t> participants;
        for (const auto& answer : outcome.mark_answers) {
          if (answer.reply == reply) participants = answer.participants;
        }
        send(to, from, [=, this] {
          PassState::Actions next;
          if (status.ok()) {
            parts_[from].state.mark_answered(number, participants, next);
          } else {
            parts_[from].state.fail(status, next);
          }
          perform(from, std::move(next));
        });
      };
      if (part.state.begin_mark(incarnation(from), number, reply, actions)) {
        auto [marked, is_new] = part.marked_send.try_emplace(message);
        if (is_new) part.state.counted(1);
        std::vector<Output> outputs;
        for (int index : indices) {
          if (!marked->second.insert(index).second) continue;
          const auto& depends = messages_[message].depends[static_cast<std::size_t>(index)];
          outputs.insert(outputs.end(), depends.begin(), depends.end());
        }
        walk(to, outputs, actions);
      }
      perform(to, std::move(actions));
    });
  }

  void send(int from, int to, std::function<void()> delivery) {
    network_.push_back([=, this] {
      if (from == dead_) return;
      if (to != dead_) return delivery();
      // Calls to dead workers fail.
      PassState::Actions actions;
      parts_[from].state.fail(absl::UnavailableError("dead"), actions);
      perform(from, std::move(actions));
    });
  }

  // Processes the arrival of a gradient for each of `outputs`.
  void deliver(int w, const std::vector<Output>& outputs) {
    for (const Output& output : outputs) {
      if (--parts_[w].missing[output.message] > 0) continue;
      const int message = output.message;
      ready_.push_back([this, w, message] { ship(w, message); });
    }
  }

  void ship(int w, int message) {
    Part& part = parts_[w];
    if (w == dead_ || part.state.ended()) return;
    const int to = messages_[message].from;
    for (int index : part.marked_recv[message]) ++shipped_[{message, index}];
    part.state.shipping(incarnation(to));
    const std::set<int> indices = part.marked_recv[message];
    PassState::Actions actions;
    part.state.ran(1, actions);
    perform(w, std::move(actions));
    send(w, to, [=, this] {
      begin_part(to);
      PassState::Actions arrived;
      if (parts_[to].state.run_arrived(incarnation(w), static_cast<uint64_t>(message))) {
        for (int index : parts_[to].marked_send[message]) {
          deliver(to, messages_[message].depends[static_cast<std::size_t>(index)]);
        }
        parts_[to].state.ran(1, arrived);
      }
      perform(to, std::move(arrived));
      const uint64_t once = ++shipment_answers_;
      send(to, w, [=, this] {
        (void)once;
        if (!answered_.insert({w, message}).second) return;  // A call completes once.
        PassState::Actions next;
        parts_[w].state.shipping_answered(incarnation(to), next);
        perform(w, std::move(next));
      });
    });
  }

  void perform(int w, PassState::Actions actions) {
    Part& part = parts_[w];
    if (w == dead_) return;
    auto reply = [&](uint64_t number) {
      auto found = part.replies.find(number);
      ASSERT_NE(found, part.replies.end()) << "answered twice";
      auto function = std::move(found->second);
      part.replies.erase(found);
      function(actions);
    };
    for (const auto& answer : actions.mark_answers) reply(answer.reply);
    for (const auto& answer : actions.finish_answers) reply(answer.reply);
    for (uint64_t number : actions.failed_replies) reply(number);
    for (uint64_t to : actions.abort) {
      const absl::Status status = actions.status;
      send(w, worker(to), [this, to, status] {
        PassState::Actions next;
        parts_[worker(to)].began = true;
        parts_[worker(to)].state.fail(status, next);
        perform(worker(to), std::move(next));
      });
    }
    if (actions.start_run) {
      ready_.push_back([this] {
        if (parts_[0].state.ended()) return;
        deliver(0, roots_);
        PassState::Actions next;
        parts_[0].state.ran(1, next);
        perform(0, std::move(next));
      });
    }
    for (uint64_t to : actions.finish) send_finish(w, worker(to));
    if (w == 0 && actions.ended) {
      EXPECT_FALSE(completed_);
      completed_ = true;
      status_ = actions.status;
      if (status_.ok()) {
        for (const Part& each : parts_) work_left_at_completion_ |= each.state.remaining() > 0;
      }
    }
  }

  void send_finish(int w, int to) {
    send(w, to, [=, this] {
      Part& part = parts_[to];
      EXPECT_TRUE(part.began) << "FINISH was the first message";
      const uint64_t number = part.next_reply++;
      part.replies[number] = [=, this](PassState::Actions& outcome) {
        const absl::Status status = outcome.status;
        std::vector<uint64_t> shipped_to;
        for (const auto& answer : outcome.finish_answers) {
          if (answer.reply == number) shipped_to = answer.shipped_to;
        }
        send(to, w, [=, this] {
          PassState::Actions next;
          if (status.ok()) {
            parts_[w].state.finish_answered(incarnation(to), shipped_to, next);
          } else {
            parts_[w].state.fail(status, next);
          }
          perform(w, std::move(next));
        });
      };
      PassState::Actions next;
      part.state.finish_asked(number, next);
      perform(to, std::move(next));
    });
  }

  // All other workers are notified of the death. Calls to the dead worker fail.
  void die(int w) {
    dead_ = w;
    for (int other = 0; other < workers_; ++other) {
      if (other == w) continue;
      network_.push_back([this, other, w] {
        PassState::Actions actions;
        parts_[other].state.worker_lost(incarnation(w), absl::UnavailableError("lost"), actions);
        perform(other, std::move(actions));
      });
    }
  }

  std::mt19937 random_;
  const bool repeat_;
  const bool fast_;
  const int workers_;
  std::vector<Message> messages_;
  std::vector<Output> roots_;
  std::set<std::pair<int, int>> used_;
  std::vector<Part> parts_;
  std::vector<std::function<void()>> network_;
  std::vector<std::function<void()>> ready_;
  std::map<std::pair<int, int>, int> shipped_;
  std::set<std::pair<int, int>> answered_;
  uint64_t shipment_answers_ = 0;
  int dead_ = -1;
  bool completed_ = false;
  bool work_left_at_completion_ = false;
  absl::Status status_;
};

TEST(PassState, EveryMarkedOutputIsShippedOnceInAnyOrderOfMessages) {
  for (uint32_t seed = 0; seed < 4000; ++seed) {
    Simulation simulation(seed, 1 + static_cast<int>(seed % 5), 3 + static_cast<int>(seed % 17), false,
                          false);
    simulation.run(-1);
    ASSERT_TRUE(simulation.completed()) << "seed " << seed;
    ASSERT_TRUE(simulation.status().ok()) << "seed " << seed;
    ASSERT_FALSE(simulation.anything_left()) << "seed " << seed;
    ASSERT_TRUE(simulation.everybody_ended()) << "seed " << seed;
    std::set<std::pair<int, int>> shipped;
    for (const auto& [output, times] : simulation.shipped()) {
      ASSERT_EQ(times, 1) << "seed " << seed;
      shipped.insert(output);
    }
    ASSERT_EQ(shipped, simulation.used()) << "seed " << seed;
  }
}

TEST(PassState, MessagesThatArriveTwiceChangeNothing) {
  for (uint32_t seed = 0; seed < 4000; ++seed) {
    Simulation simulation(seed, 2 + static_cast<int>(seed % 4), 3 + static_cast<int>(seed % 17), false, true);
    simulation.run(-1);
    ASSERT_TRUE(simulation.completed() && simulation.status().ok()) << "seed " << seed;
    ASSERT_FALSE(simulation.anything_left()) << "seed " << seed;
    for (const auto& [output, times] : simulation.shipped()) ASSERT_EQ(times, 1) << "seed " << seed;
    ASSERT_EQ(simulation.shipped().size(), simulation.used().size()) << "seed " << seed;
  }
}

TEST(PassState, FastModeEndsWhenEverythingSentIsUsed) {
  int complete = 0;
  for (uint32_t seed = 0; seed < 4000; ++seed) {
    Simulation simulation(seed, 1 + static_cast<int>(seed % 4), 1 + static_cast<int>(seed % 5), true, false);
    const bool all_used = simulation.all_used();
    simulation.run(-1);
    if (!all_used) continue;
    ++complete;
    ASSERT_TRUE(simulation.completed() && simulation.status().ok()) << "seed " << seed;
    ASSERT_FALSE(simulation.anything_left()) << "seed " << seed;
    ASSERT_TRUE(simulation.everybody_ended()) << "seed " << seed;
  }
  EXPECT_GT(complete, 100);
}

TEST(PassState, LostWorkerEndsThePassForEverybody) {
  int failed = 0;
  for (uint32_t seed = 0; seed < 6000; ++seed) {
    Simulation simulation(seed, 2 + static_cast<int>(seed % 4), 3 + static_cast<int>(seed % 17), false,
                          false);
    simulation.run(static_cast<int>(seed % 40));
    ASSERT_TRUE(simulation.completed()) << "seed " << seed;
    if (simulation.status().ok()) continue;
    ++failed;
    ASSERT_EQ(simulation.status().code(), absl::StatusCode::kUnavailable);
    ASSERT_TRUE(simulation.everybody_ended()) << "seed " << seed;
  }
  EXPECT_GT(failed, 500);
}

TEST(PassState, MarkThatWasAnsweredIsAnsweredAgain) {
  PassState state({.self = 2, .root = 1});
  PassState::Actions actions;
  ASSERT_TRUE(state.begin_mark(1, 5, 10, actions));
  EXPECT_TRUE(state.end_walk({}, actions).empty());
  ASSERT_EQ(actions.mark_answers.size(), 1u);
  EXPECT_EQ(actions.mark_answers[0].participants, std::vector<uint64_t>{2});
  PassState::Actions again;
  EXPECT_FALSE(state.begin_mark(1, 5, 11, again));
  ASSERT_EQ(again.mark_answers.size(), 1u);
  EXPECT_EQ(again.mark_answers[0].reply, 11u);
}

// The root of a fast pass knows only the workers that it has sent a FINISH, and may never send one to this
// worker.
TEST(PassState, FailureInTheFastModeIsReportedToTheRoot) {
  for (const bool fast : {true, false}) {
    PassState state({.self = 2, .root = 1, .fast = fast});
    state.counted(1);
    state.shipping(3);
    PassState::Actions actions;
    state.fail(absl::UnknownError("a node failed"), actions);
    const std::vector<uint64_t> smart{3}, with_root{3, 1};
    EXPECT_EQ(actions.abort, fast ? with_root : smart);
    EXPECT_EQ(actions.status.message(), "a node failed");
  }
  // The root itself aborts the workers that it has reached.
  PassState root({.self = 1, .root = 1, .fast = true});
  root.shipping(3);
  PassState::Actions actions;
  root.fail(absl::UnknownError("a node failed"), actions);
  EXPECT_EQ(actions.abort, std::vector<uint64_t>{3});
}

TEST(PassState, LossOfAWorkerEndsThePassOnlyIfItTakesPart) {
  PassState state({.self = 2, .root = 1});
  state.counted(1);
  state.shipping(3);
  state.shipping(4);
  PassState::Actions actions;
  state.worker_lost(7, absl::UnavailableError("a stranger"), actions);
  EXPECT_FALSE(actions.ended);
  state.worker_lost(3, absl::UnavailableError("a partner"), actions);
  EXPECT_TRUE(actions.ended);
  EXPECT_EQ(actions.status.message(), "a partner");
  // The lost worker gets no ABORT.
  EXPECT_EQ(actions.abort, std::vector<uint64_t>{4});
}

TEST(PassState, FirstErrorWinsAndLaterMessagesGetIt) {
  PassState state({.self = 2, .root = 1});
  PassState::Actions actions;
  state.begin_mark(1, 5, 10, actions);
  state.end_walk({3}, actions);
  PassState::Actions failed;
  state.fail(absl::UnknownError("first"), failed);
  EXPECT_EQ(failed.failed_replies, std::vector<uint64_t>{10});
  EXPECT_EQ(failed.abort, std::vector<uint64_t>{3});
  PassState::Actions second;
  state.fail(absl::UnknownError("second"), second);
  EXPECT_FALSE(second.ended);
  PassState::Actions late;
  EXPECT_FALSE(state.begin_mark(1, 6, 11, late));
  EXPECT_EQ(late.failed_replies, std::vector<uint64_t>{11});
  EXPECT_EQ(late.status.message(), "first");
}

}  // namespace
}  // namespace gradwire::autograd
