#include "gradwire/rpc/testing/group.h"

#include <gtest/gtest.h>

#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/rpc/calls/agent_services.h"
#include "gradwire/rpc/link/agent_tables.h"
#include "gradwire/store/hash_store.h"

namespace gradwire::rpc::testing {
namespace {

std::vector<std::string> default_names(int world_size) {
  std::vector<std::string> names;
  for (int rank = 0; rank < world_size; ++rank) names.push_back(absl::StrCat("worker", rank));
  return names;
}

}  // namespace

AgentTables entries_that_leak(AgentTables tables, LeakCheck when) {
  // These entries are removed with the agent.
  tables.known_workers = tables.gone_workers = tables.watched_workers = 0;
  tables.repeat_callers = tables.remembered_deletes = tables.revoked_references = 0;
  // Removed when the messages that were sent before have arrived, which an idle connection does not say.
  tables.refused_transfers = 0;
  // These entries are removed when the group's log names the loss. A shutdown does not wait for that.
  if (when != LeakCheck::kAll) {
    tables.accused_strangers = tables.unfenced_workers = tables.fences_asked = 0;
  }
  if (when == LeakCheck::kShutDown) return tables;
  // These entries are removed after a time, or with their connections.
  tables.kept_answers = tables.remembered_answers = 0;
  tables.links = tables.numbered_links = tables.unadmitted_links = 0;
  tables.waiting_for_workers = 0;
  if (when == LeakCheck::kAll) return tables;
  tables.owned_rrefs = tables.values = tables.held_forks = tables.unconfirmed_children = 0;
  return tables;
}

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
  if (graceful_) expect_empty(LeakCheck::kIdle);
  std::vector<std::thread> threads;
  for (const std::shared_ptr<Agent>& agent : agents_) {
    threads.emplace_back([this, agent] {
      try {
        agent->shutdown(graceful_, absl::Seconds(30));
      } catch (const Error& error) {
        ADD_FAILURE() << "shutdown of " << agent->services().self().name << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  expect_empty(LeakCheck::kShutDown);
}

void Group::kill(std::size_t rank) {
  graceful_ = false;
  agents_.at(rank)->shutdown(/*graceful=*/false);
}

void Group::expect_empty() const { expect_empty(LeakCheck::kAll); }

void Group::expect_empty(LeakCheck when) const {
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  for (const std::shared_ptr<Agent>& agent : agents_) {
    AgentTables tables = entries_that_leak(agent->tables(), when);
    while (tables.total() > 0 && absl::Now() < deadline) {
      // The last messages may still be in flight. No event says that they have arrived, so poll.
      absl::SleepFor(absl::Milliseconds(1));
      tables = entries_that_leak(agent->tables(), when);
    }
    if (tables.total() > 0) {
      ADD_FAILURE() << "the tables of " << agent->services().self().name
                    << (when == LeakCheck::kShutDown ? " are not empty after its shutdown: "
                                                     : " are not empty: ")
                    << tables.describe();
    }
  }
}

}  // namespace gradwire::rpc::testing
