#pragma once

#include <map>
#include <optional>
#include <set>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gradwire::tools {

// A subset of a process's two output streams.
struct Streams {
  bool out = false;
  bool err = false;
  bool operator==(const Streams&) const = default;
};

// The value of --redirects or --tee: the selected streams of each worker. A value type.
class StreamSpec {
 public:
  StreamSpec() = default;

  // Parses "2" (all workers) or "0:1,3:2" (by local rank; other workers have no stream selected), where 0
  // means nothing, 1 standard output, 2 standard error and 3 both. InvalidArgument for other text.
  static absl::StatusOr<StreamSpec> parse(absl::string_view text);

  Streams of(int local_rank) const;
  // The largest local rank in the text, or -1.
  int largest_rank() const { return by_rank_.empty() ? -1 : by_rank_.rbegin()->first; }

 private:
  Streams all_;
  std::map<int, Streams> by_rank_;
};

// The targets of one stream of a worker. Without a target its output is dropped.
struct StreamRoute {
  bool console = false;  // The launcher's own stream.
  bool file = false;
  bool operator==(const StreamRoute&) const = default;
};

// The combined result of --redirects, --tee and --local_ranks_filter.
struct StreamRoutes {
  StreamSpec redirects;
  StreamSpec tee;
  // The local ranks whose streams may go to the console; if unset, all.
  std::optional<std::set<int>> shown;

  StreamRoute out_of(int local_rank) const;
  StreamRoute err_of(int local_rank) const;
  // Whether any of the first `workers` local ranks writes to a file.
  bool any_file(int workers) const;
};

}  // namespace gradwire::tools
