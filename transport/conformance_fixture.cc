#include "gradwire/base/clock.h"
#include "gradwire/transport/conformance.h"

namespace gradwire::transport {
void TransportConformance::SetUp() {
  server_ = GetParam().make();
  if (!GetParam().within_one_object) client_ = GetParam().make();
  auto listening = server_->listen([this](const std::shared_ptr<Connection>& connection) {
    MutexLock lock(mutex_);
    auto listener = std::make_shared<RecordingListener>(server_hook_);
    accepted_.push_back({connection, listener});
    changed_.notify_all();
    return listener;
  });
  ASSERT_TRUE(listening.ok()) << listening.status();
  address_ = *listening;
}

void TransportConformance::TearDown() { shut_down_all(); }

void TransportConformance::shut_down_all() {
  if (client_ != nullptr) client_->shutdown();
  if (server_ != nullptr) server_->shutdown();
  {
    MutexLock lock(mutex_);
    for (const Accepted& accepted : accepted_) {
      EXPECT_EQ(accepted.listener->closed_count(), 1);
      EXPECT_EQ(accepted.listener->misplaced_calls(), 0);
    }
    accepted_.clear();
  }
  client_.reset();
  server_.reset();
}

std::shared_ptr<RecordingListener> TransportConformance::accepted_listener(std::size_t index) {
  absl::Time deadline = Clock::system().now() + kTestTimeout;
  MutexLock lock(mutex_);
  while (accepted_.size() <= index && Clock::system().now() < deadline) {
    Clock::system().wait_until(mutex_, changed_, deadline);
  }
  return accepted_.size() > index ? accepted_[index].listener : nullptr;
}

TransportConformance::Pair TransportConformance::connect(RecordingListener::Hook server_hook,
                                                         RecordingListener::Hook client_hook) {
  Pair pair;
  std::size_t before;
  {
    MutexLock lock(mutex_);
    server_hook_ = std::move(server_hook);
    before = accepted_.size();
  }
  pair.client_listener = std::make_shared<RecordingListener>(std::move(client_hook));
  auto connection = client().connect(address_, pair.client_listener, absl::Seconds(30));
  EXPECT_TRUE(connection.ok()) << connection.status();
  if (!connection.ok()) return pair;
  pair.client = *connection;
  absl::Time deadline = Clock::system().now() + kTestTimeout;
  MutexLock lock(mutex_);
  while (accepted_.size() == before && Clock::system().now() < deadline) {
    Clock::system().wait_until(mutex_, changed_, deadline);
  }
  EXPECT_GT(accepted_.size(), before) << "the connection was not accepted";
  if (accepted_.size() > before) {
    pair.server = accepted_.back().connection;
    pair.server_listener = accepted_.back().listener;
  }
  return pair;
}

}  // namespace gradwire::transport
