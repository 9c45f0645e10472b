#include "gradwire/transport/tcp/socket/name_lookups.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/duty.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/transport/refused.h"
#include "gradwire/transport/tcp/socket/address_search.h"

namespace gradwire::transport {
namespace {

// A name service that answers when the test wants it. Every name is the address of this host.
class NameService {
 public:
  HostLookup look_up() const {
    return [state = state_](const std::string& host) -> NameLookups::Result {
      EXPECT_FALSE(on_duty());
      {
        MutexLock lock(state->mutex);
        state->asked.push_back(host);
      }
      state->answers.wait();
      if (host == "unknown.example") return absl::UnavailableError("unknown name");
      return std::vector<SocketAddress>{loopback_addresses(0).front()};
    };
  }
  void answer() { answer_.set_value(); }
  std::vector<std::string> asked() const {
    MutexLock lock(state_->mutex);
    return state_->asked;
  }
  // Whether this number of names is asked for, in the order of the requests or another one.
  bool await(std::size_t count) const {
    return eventually([&] { return asked().size() >= count; });
  }

 private:
  struct State {
    explicit State(std::shared_future<void> given) : answers(std::move(given)) {}

    const std::shared_future<void> answers;
    mutable Mutex mutex;
    std::vector<std::string> asked ABSL_GUARDED_BY(mutex);
  };
  std::promise<void> answer_;
  const std::shared_ptr<State> state_ = std::make_shared<State>(answer_.get_future().share());
};

class RecordingAsker : public NameLookups::Asker {
 public:
  void found(const std::string& host, const NameLookups::Result& result) override {
    MutexLock lock(mutex_);
    results_.emplace_back(host, result.status());
  }
  std::vector<std::pair<std::string, absl::Status>> results() const {
    MutexLock lock(mutex_);
    return results_;
  }
  bool await(std::size_t count) const {
    return eventually([&] { return results().size() >= count; });
  }

 private:
  mutable Mutex mutex_;
  std::vector<std::pair<std::string, absl::Status>> results_ ABSL_GUARDED_BY(mutex_);
};

TEST(NameLookups, OneLookupServesAllAskersOfAName) {
  NameService service;
  NameLookups lookups(service.look_up());
  std::vector<std::shared_ptr<RecordingAsker>> askers;
  for (int i = 0; i < 3; ++i) {
    askers.push_back(std::make_shared<RecordingAsker>());
    lookups.find("a.example", askers.back());
  }
  ASSERT_TRUE(service.await(1));
  service.answer();
  for (const auto& asker : askers) {
    ASSERT_TRUE(asker->await(1));
    EXPECT_TRUE(asker->results().front().second.ok());
  }
  EXPECT_EQ(service.asked().size(), 1u);
  // The result is not kept: the name may have another address by now.
  lookups.find("a.example", askers.front());
  EXPECT_TRUE(askers.front()->await(2));
  EXPECT_EQ(service.asked().size(), 2u);
}

TEST(NameLookups, TheNumberOfThreadsIsLimited) {
  NameService service;
  NameLookups lookups(service.look_up());
  const auto asker = std::make_shared<RecordingAsker>();
  constexpr int kNames = NameLookups::kMostThreads + 2;
  for (int i = 0; i < kNames; ++i) lookups.find(absl::StrCat("host", i), asker);
  ASSERT_TRUE(service.await(NameLookups::kMostThreads));
  EXPECT_EQ(service.asked().size(), std::size_t{NameLookups::kMostThreads});
  service.answer();
  EXPECT_TRUE(asker->await(kNames));
}

TEST(NameLookups, NameThatNobodyAsksForAnyMoreIsNotLookedUp) {
  NameService service;
  NameLookups lookups(service.look_up());
  const auto asker = std::make_shared<RecordingAsker>();
  for (int i = 0; i < NameLookups::kMostThreads; ++i) lookups.find(absl::StrCat("host", i), asker);
  auto gone = std::make_shared<RecordingAsker>();
  lookups.find("gone.example", gone);
  lookups.find("last.example", asker);
  gone = nullptr;
  service.answer();
  EXPECT_TRUE(asker->await(NameLookups::kMostThreads + 1));
  const std::vector<std::string> asked = service.asked();
  EXPECT_EQ(std::count(asked.begin(), asked.end(), "gone.example"), 0);
  EXPECT_EQ(std::count(asked.begin(), asked.end(), "last.example"), 1);
}

TEST(NameLookups, DestructorWaitsForNoLookup) {
  NameService service;
  const auto asker = std::make_shared<RecordingAsker>();
  {
    NameLookups lookups(service.look_up());
    lookups.find("a.example", asker);
    ASSERT_TRUE(service.await(1));
  }
  service.answer();
  // Another lookup that begins and ends later does not bring the result either.
  NameLookups others(service.look_up());
  const auto other = std::make_shared<RecordingAsker>();
  others.find("b.example", other);
  EXPECT_TRUE(other->await(1));
  EXPECT_TRUE(asker->results().empty());
}

TEST(NameLookups, ErrorIsReported) {
  NameService service;
  service.answer();
  NameLookups lookups(service.look_up());
  const auto asker = std::make_shared<RecordingAsker>();
  lookups.find("unknown.example", asker);
  ASSERT_TRUE(asker->await(1));
  EXPECT_EQ(asker->results().front(),
            std::make_pair(std::string("unknown.example"), absl::UnavailableError("unknown name")));
}

// A search, and the loop that this thread drives.
class AddressSearchTest : public ::testing::Test {
 protected:
  AddressSearchTest() : loop_(EventLoop::create().value()), lookups_(service_.look_up()) {}
  ~AddressSearchTest() override { end(*loop_); }

  void start(const std::string& addresses, absl::Duration timeout) {
    search_ = std::make_shared<AddressSearch>(loop_, parse_addresses(addresses).value());
    loop_->post([this, timeout] {
      search_->start_in_loop(lookups_, Clock::system().now() + timeout,
                             [this](absl::StatusOr<std::vector<SocketAddress>> found) {
                               found_ = std::move(found);
                               done_ = true;
                             });
    });
  }
  absl::StatusOr<std::vector<SocketAddress>> wait() {
    loop_->run_until([this] { return done_; });
    return found_;
  }
  static std::vector<std::string> texts(const std::vector<SocketAddress>& addresses) {
    std::vector<std::string> texts;
    for (const SocketAddress& each : addresses) texts.push_back(to_string(each));
    return texts;
  }

  NameService service_;
  const std::shared_ptr<EventLoop> loop_;
  NameLookups lookups_;
  std::shared_ptr<AddressSearch> search_;
  absl::StatusOr<std::vector<SocketAddress>> found_;
  bool done_ = false;
};

TEST_F(AddressSearchTest, NumericAddressesAreNotLookedUp) {
  start("10.0.0.1:1,[::1]:2", absl::Seconds(60));
  const auto found = wait();
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(texts(*found), (std::vector<std::string>{"10.0.0.1:1", "[::1]:2"}));
  EXPECT_TRUE(service_.asked().empty());
}

TEST_F(AddressSearchTest, AddressesHaveTheOrderOfTheList) {
  start("a.example:1,10.0.0.1:2,unknown.example:3,b.example:4,a.example:5", absl::Seconds(60));
  service_.answer();
  const auto found = wait();
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(texts(*found),
            (std::vector<std::string>{"127.0.0.1:1", "10.0.0.1:2", "127.0.0.1:4", "127.0.0.1:5"}));
  EXPECT_EQ(service_.asked().size(), 3u);
}

TEST_F(AddressSearchTest, UnknownNameIsTheError) {
  start("unknown.example:3", absl::Seconds(60));
  service_.answer();
  EXPECT_EQ(wait().status(), unresolved_error("unknown name"));
}

TEST_F(AddressSearchTest, NameThatIsNotFoundBeforeTheDeadlineIsNamed) {
  start("10.0.0.1:2,slow.example:1", absl::Milliseconds(10));
  EXPECT_EQ(wait().status(), unresolved_error("cannot look up the host \"slow.example\": no answer in time"));
  service_.answer();
}

TEST_F(AddressSearchTest, CancelledSearchReportsNothing) {
  start("a.example:1", absl::Seconds(60));
  loop_->run_until([this] { return !service_.asked().empty(); });
  bool cancelled = false;
  loop_->post([&] {
    search_->cancel_in_loop();
    cancelled = true;
  });
  loop_->run_until([&] { return cancelled; });
  const auto later = std::make_shared<RecordingAsker>();
  lookups_.find("a.example", later);
  service_.answer();
  ASSERT_TRUE(later->await(1));
  bool passed = false;
  loop_->post([&] { passed = true; });
  loop_->run_until([&] { return passed; });
  EXPECT_FALSE(done_);
}

}  // namespace
}  // namespace gradwire::transport
