#include "rpc/testing/group.h"

#include <gtest/gtest.h>

#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/error.h"
#include "store/hash_store.h"

namespace gradwire::rpc::testing {
namespace {

std::vector<std::string> default_names(int world_size) {
  std::vector<std::string> names;
  for (int rank = 0; rank < world_size; ++rank) names.push_back(absl::StrCat("worker", rank));
  return names;
}

}  // namespace

Group::Group(int world_size, RpcBackendOptions options)
    : Group(default_names(world_size), std::move(options)) {}

Group::Group(std::vector<std::string> names, RpcBackendOptions options) : agents_(names.size()) {
  if (options.store == nullptr) options.store = std::make_shared<store::HashStore>();
  std::vector<std::thread> threads;
  std::vector<std::optional<Error>> errors(names.size());
  for (std::size_t rank = 0; rank < names.size(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        agents_[rank] =
            Agent::start(names[rank], static_cast<int>(rank), static_cast<int>(names.size()), options);
      } catch (const Error& error) {
        errors[rank] = error;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::optional<Error>& error : errors) {
    if (error) throw *error;
  }
}

Group::~Group() { shut_down(); }

void Group::shut_down() {
  std::vector<std::thread> threads;
  for (const std::shared_ptr<Agent>& agent : agents_) {
    threads.emplace_back([this, agent] {
      try {
        agent->shutdown(graceful_, absl::Seconds(30));
      } catch (const Error& error) {
        ADD_FAILURE() << "shutdown of " << agent->self().name << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void Group::kill(std::size_t rank) {
  graceful_ = false;
  agents_.at(rank)->shutdown(/*graceful=*/false);
}

void Group::expect_empty() const {
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  for (const std::shared_ptr<Agent>& agent : agents_) {
    AgentTables tables;
    while (true) {
      tables = agent->tables();
      if (tables.pending_calls + tables.served_calls + tables.owned_rrefs + tables.held_forks +
              tables.unconfirmed_children ==
          0) {
        break;
      }
      if (absl::Now() > deadline) {
        ADD_FAILURE() << agent->self().name << " still has " << tables.pending_calls << " pending calls, "
                      << tables.served_calls << " served calls, " << tables.owned_rrefs << " owned RRefs, "
                      << tables.held_forks << " held forks, " << tables.unconfirmed_children
                      << " unconfirmed children";
        break;
      }
      absl::SleepFor(
          absl::Milliseconds(1));  // The last messages are on their way; nothing announces their end.
    }
  }
}

}  // namespace gradwire::rpc::testing
