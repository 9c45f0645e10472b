#pragma once

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/rpc/rref/references.h"
#include "gradwire/tests/simulation/network.h"
#include "gradwire/tests/simulation/scheduler.h"

namespace gradwire::simulation {

// What happened, line by line, for people. Schedules are run without one, and run again with one when they fail.
class Trace {
 public:
  template <class... Parts>
  void line(Time now, const Parts&... parts) {
    lines_.push_back(absl::StrCat(absl::Dec(now / 1000, absl::kSpacePad8), ".",
                                  absl::Dec(now % 1000, absl::kZeroPad3), " ms  ", parts...));
  }
  // More about the last line.
  template <class... Parts>
  void detail(const Parts&... parts) {
    lines_.push_back(absl::StrCat("                    ", parts...));
  }
  const std::vector<std::string>& lines() const { return lines_; }

 private:
  std::vector<std::string> lines_;
};

// "w3": the worker of an incarnation or of an index.
std::string worker(uint64_t incarnation);
inline std::string node_name(int index) { return worker(index + 1); }
std::string describe(const rpc::Id& id);
std::string describe(const rpc::ReferenceMessage& message);
std::string describe(rpc::ReferenceMessage::Answer answer);
std::string describe(const Packet& packet);
std::string describe(rpc::References::Received received);

}  // namespace gradwire::simulation
