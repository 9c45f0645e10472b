#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace gradwire::tools {

// Asks the HTTP servers at these sockets of the file system for /metrics, all at the same time, and returns
// their answers in the order of `paths`. Returns after `limit` at the latest. Errors: Unavailable if nobody
// listens there; DeadlineExceeded if the answer is not complete by then, or if the server accepts no
// connections; ResourceExhausted if it has more
// than `most_bytes`; Internal if it is not a page.
std::vector<absl::StatusOr<std::string>> scrape(const std::vector<std::string>& paths, absl::Duration limit,
                                                std::size_t most_bytes = std::size_t{16} << 20);

}  // namespace gradwire::tools
