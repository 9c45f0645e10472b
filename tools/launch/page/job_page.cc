#include "gradwire/tools/launch/page/job_page.h"

#include "gradwire/base/error.h"
#include "gradwire/tools/inspect/input/options.h"

namespace gradwire::tools {

absl::StatusOr<std::unique_ptr<JobPage>> JobPage::start(const Options& options, const JobSecurity& security) {
  if (options.address.empty()) return nullptr;
  GRADWIRE_ASSIGN_OR_RETURN(JobSecurity::Observer observer, security.observer());
  inspect::Options page;
  page.place.store = "";
  page.place.name = std::move(observer.name);
  page.place.security = std::move(observer.security);
  page.listen = options.address;
  page.insecure_page = options.insecure;
  page.flight = options.flight;
  absl::StatusOr<std::unique_ptr<inspect::PageServer>> server = inspect::PageServer::start(page);
  if (!server.ok()) return with_context(server.status(), "cannot serve the page of the job (--page)");
  return std::unique_ptr<JobPage>(new JobPage(*std::move(server)));
}

}  // namespace gradwire::tools
