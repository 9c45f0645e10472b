#pragma once

#include <map>
#include <optional>
#include <set>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gradwire::tools {

// Some of a process's two output streams.
struct Streams {
  bool out = false;
  bool err = false;
  bool operator==(const Streams&) const = default;
};

// The value of --redirects and --tee: which streams of which worker. A value type.
class StreamSpec {
 public:
  StreamSpec() = default;

  // "2" (every worker) or "0:1,3:2" (by local rank; those not named get none), with 0 nothing, 1 standard
  // output, 2 standard error, 3 both. InvalidArgument for anything else.
  static absl::StatusOr<StreamSpec> parse(absl::string_view text);

  Streams of(int local_rank) const;
  // The largest local rank that is named, or -1.
  int largest_rank() const { return by_rank_.empty() ? -1 : by_rank_.rbegin()->first; }

 private:
  Streams all_;
  std::map<int, Streams> by_rank_;
};

// Where one stream of a worker goes. With neither it is dropped.
struct StreamRoute {
  bool console = false;  // the launcher's own stream
  bool file = false;
  bool operator==(const StreamRoute&) const = default;
};

// What all of --redirects, --tee and --local_ranks_filter say together.
struct StreamRoutes {
  StreamSpec redirects;
  StreamSpec tee;
  // The local ranks whose streams may reach the console; none: all.
  std::optional<std::set<int>> shown;

  StreamRoute out_of(int local_rank) const;
  StreamRoute err_of(int local_rank) const;
  // Whether any of the first `workers` local ranks writes to a file.
  bool any_file(int workers) const;
};

}  // namespace gradwire::tools
