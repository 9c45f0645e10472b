#include "gradwire/tests/inspect/run_inspect.h"

#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/tests/launch/launch_process.h"

namespace gradwire::tests {

InspectResult run_inspect(const std::vector<std::string>& arguments) {
  InspectResult result;
  prepare_environment();
  FILE* const pipe = popen(absl::StrCat("env -u MASTER_PORT GRADWIRE_RUNTIME_DIR='", runtime_folder(), "' ",
                                        kInspect, " ", absl::StrJoin(arguments, " "), " 2>&1")
                               .c_str(),
                           "r");
  if (pipe == nullptr) return result;
  char bytes[4096];
  for (std::size_t got = 0; (got = fread(bytes, 1, sizeof(bytes), pipe)) > 0;) result.out.append(bytes, got);
  const int status = pclose(pipe);
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return result;
}

google::protobuf::Struct parse_json(const std::string& text) {
  google::protobuf::Struct json;
  EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(text, &json).ok()) << text;
  return json;
}

}  // namespace gradwire::tests
