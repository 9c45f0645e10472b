#include "gradwire/tools/inspect/trace/write_trace.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "gradwire/base/error.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/io/write.h"
#include "gradwire/base/process/shortage.h"
#include "gradwire/tools/inspect/trace/chrome_trace.h"
#include "gradwire/tools/inspect/trace/flight_trace.h"

namespace gradwire::inspect {
namespace {

absl::Status write_file(const std::string& path, absl::string_view text) {
  const Descriptor fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (fd.valid() && write_all(fd.get(), text)) return absl::OkStatus();
  return system_status(absl::StrCat("cannot write the trace ", path), errno);
}

// The largest error of those clocks that are known.
std::string clocks_line(const std::vector<WorkerClock>& clocks) {
  double worst = 0;
  for (const WorkerClock& clock : clocks) {
    if (clock.known) worst = std::max(worst, clock.fit.error());
  }
  return absl::StrFormat("clocks are mapped with an error of at most %.1f us", worst / 1000);
}

}  // namespace

absl::StatusOr<std::vector<std::string>> write_trace(const std::vector<WorkerTrace>& workers,
                                                     const std::string& path) {
  const std::vector<WorkerClock> clocks = align_workers(workers);
  GRADWIRE_RETURN_IF_ERROR(write_file(path, chrome_trace(workers, clocks)));
  std::size_t spans = 0;
  for (const WorkerTrace& worker : workers) spans += worker.spans.size();
  std::vector<std::string> lines = {absl::StrCat("wrote ", path, ": ", spans, " spans of ", workers.size(),
                                                 workers.size() == 1 ? " worker" : " workers", "; ",
                                                 clocks_line(clocks))};
  for (std::size_t i = 0; i < workers.size(); ++i) {
    const WorkerTrace& worker = workers[i];
    if (i > 0 && clocks[i].known && clocks[i].fit.error() > 0) {
      lines.push_back(absl::StrFormat("  the clock of \"%s\" is mapped with an error of at most %.1f us",
                                      worker.name, clocks[i].fit.error() / 1000));
    } else if (!clocks[i].known) {
      lines.push_back(absl::StrCat("  the clock of \"", worker.name,
                                   "\" is not mapped: no calls with known ends connect it to \"",
                                   workers[0].name, "\", or a clock was set"));
    }
    if (worker.overwritten > 0) {
      lines.push_back(absl::StrCat("  ", worker.overwritten, " earlier records of \"", worker.name,
                                   "\" are missing: newer ones have overwritten them"));
    }
    if (worker.damaged > 0) {
      lines.push_back(
          absl::StrCat("  ", worker.damaged, " lines of \"", worker.name, "\" are missing or malformed"));
    }
  }
  return lines;
}

}  // namespace gradwire::inspect
