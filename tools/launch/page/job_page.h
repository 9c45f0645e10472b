#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "gradwire/tools/inspect/web/page_server.h"
#include "gradwire/tools/launch/security/job_security.h"

namespace gradwire::tools {

// The page about the running job, which the launcher serves as `inspect serve` does. It observes the workers
// of all nodes. Use on the thread of the launcher; the page has threads of its own, which end with it.
class JobPage {
 public:
  struct Options {
    std::string address;    // HOST:PORT, with port 0 for a free one. Empty: nothing is served.
    bool insecure = false;  // Whether other hosts may reach the address.
    // The directory with the flight records of the job, for its last backward pass; empty: none.
    std::string flight;
  };

  // Serves the page from now on; it says that no worker has been started. Returns nullptr without an address.
  // Errors: those of PageServer::start() and of JobSecurity::observer().
  static absl::StatusOr<std::unique_ptr<JobPage>> start(const Options& options, const JobSecurity& security);

  // The address of the page, with its token.
  std::string url() const { return server_->url(); }
  // The workers of a round start, and their store is at `store`, "HOST:PORT".
  void begin_round(const std::string& store) { server_->set_store(store); }

 private:
  explicit JobPage(std::unique_ptr<inspect::PageServer> server) : server_(std::move(server)) {}

  const std::unique_ptr<inspect::PageServer> server_;
};

}  // namespace gradwire::tools
