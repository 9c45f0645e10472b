#include "gradwire/tests/diagnosis/job.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/store/file_store.h"

namespace gradwire::tests {

std::string new_path(const std::string& name) {
  static std::atomic<int> number{0};
  return absl::StrCat(::testing::TempDir(), "/", name, "-", getpid(), "-", number++);
}

Job::Job(std::vector<Member> members) : path_(new_path("job")), agents_(members.size()) {
  std::vector<std::thread> threads;
  std::vector<std::optional<Error>> errors(members.size());
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    threads.emplace_back([&, rank] {
      rpc::RpcBackendOptions& options = members[rank].options;
      try {
        if (options.store == nullptr) options.store = std::make_shared<store::FileStore>(path_);
        agents_[rank] = rpc::Agent::start(members[rank].name, static_cast<int>(rank),
                                          static_cast<int>(members.size()), options);
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

Job::~Job() {
  std::vector<std::thread> threads;
  for (const std::shared_ptr<rpc::Agent>& agent : agents_) {
    threads.emplace_back([agent] {
      try {
        agent->shutdown(/*graceful=*/false);
      } catch (const Error& error) {
        ADD_FAILURE() << "shutdown: " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  agents_.clear();
  unlink(path_.c_str());
}

}  // namespace gradwire::tests
