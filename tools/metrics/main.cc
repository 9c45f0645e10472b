// Writes docs/metrics.md:  bazel run //tools/metrics:page

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "gradwire/tools/metrics/page.h"

int main() {
  const std::string page = gradwire::tools::metrics_page();
  const char* workspace = std::getenv("BUILD_WORKSPACE_DIRECTORY");
  if (workspace == nullptr) {
    std::fputs(page.c_str(), stdout);
    return 0;
  }
  const std::string path = std::string(workspace) + "/docs/metrics.md";
  std::ofstream file(path, std::ios::trunc);
  file << page;
  file.close();
  if (!file) {
    std::fprintf(stderr, "cannot write %s\n", path.c_str());
    return 1;
  }
  std::printf("%s has %d bytes\n", path.c_str(), static_cast<int>(page.size()));
  return 0;
}
