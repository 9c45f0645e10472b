#pragma once

#include <google/protobuf/struct.pb.h>

#include <string>
#include <vector>

namespace gradwire::tests {

// The program tools/inspect, as its path in a test.
inline constexpr char kInspect[] = "tools/inspect/inspect";

struct InspectResult {
  int code = -1;
  std::string out;
};

// Runs the program to its end, without the store of a job in its environment. `out` has both of its outputs.
// It finds the jobs of this test's launchers.
InspectResult run_inspect(const std::vector<std::string>& arguments);

// Parses a JSON object. Fails the test if it is not one.
google::protobuf::Struct parse_json(const std::string& text);

}  // namespace gradwire::tests
