#pragma once

#include <map>

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

}  // namespace gradwire::tools
