// Compares the tables of support.h with the documentation and with the checks that refuse calls. The
// conformance suite compares them with the behaviour of the backends.
#include "gradwire/tests/collectives/support.h"

#include <ATen/ops/zeros.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/collectives/checks/argument_checks.h"
#include "gradwire/collectives/nccl/nccl_types.h"
#include "gradwire/tests/collectives/inputs.h"
#include "gtest/gtest.h"

namespace gradwire::collectives {
namespace {

constexpr char kPage[] = "docs/collectives.md";
constexpr char kBegin[] = "<!-- support tables: begin -->\n";
constexpr char kEnd[] = "<!-- support tables: end -->\n";

std::string contents(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// If GRADWIRE_WRITE_DOCS is set to the root of the source tree, the test writes the tables to the
// documentation.
TEST(Support, TablesEqualTheDocumentation) {
  const char* const root = std::getenv("GRADWIRE_WRITE_DOCS");
  const std::string path = root == nullptr ? kPage : absl::StrCat(root, "/", kPage);
  const std::string page = contents(path);
  const std::size_t begin = page.find(kBegin), end = page.find(kEnd);
  ASSERT_TRUE(begin != std::string::npos && end != std::string::npos && begin < end)
      << path << ": marks not found, expected the lines\n"
      << kBegin << kEnd;
  const std::size_t from = begin + sizeof kBegin - 1;
  const std::string wanted = absl::StrCat("\n", support_tables(), "\n");
  if (root != nullptr) {
    std::ofstream(path) << page.substr(0, from) << wanted << page.substr(end);
    return;
  }
  EXPECT_TRUE(page.substr(from, end - from) == wanted)
      << "wrong tables between the marks in " << kPage << ", expected:\n"
      << wanted << "To write them, run\n  GRADWIRE_WRITE_DOCS=$PWD bazel run //tests/collectives:tests\n";
}

ArgumentChecks::Group group_of(Backend backend, bool takes_cuda) {
  ArgumentChecks::Group group{.backend = backend, .rank = 0, .ranks = {0, 1}, .served = {}};
  if (backend != Backend::kNccl) group.served.push_back({c10::DeviceType::CPU, to_string(backend)});
  if (takes_cuda) group.served.push_back({c10::DeviceType::CUDA, to_string(backend)});
  return group;
}

at::Tensor tensor_on(TensorDevice device, c10::ScalarType dtype) {
  return device == TensorDevice::kCpu ? at::zeros({2}, dtype) : without_memory_on_gpu(dtype);
}

// Whether some build supports it.
bool possible(Support support) { return support != Support::kNo; }

TEST(Support, ChecksAcceptTheTensorsOfTheTable) {
  for (const Backend backend : kBackends) {
    for (const TensorDevice device : kTensorDevices) {
      const Support support = support_of(backend, device, Operation::kBroadcast);
      const bool on_gpu = device == TensorDevice::kCuda;
      const ArgumentChecks able(group_of(backend, /*takes_cuda=*/true));
      EXPECT_EQ(able.readable(tensor_on(device, at::kFloat), "tensor").ok(), possible(support))
          << to_string(backend) << (on_gpu ? " on cuda" : " on cpu");
      const ArgumentChecks unable(group_of(backend, /*takes_cuda=*/false));
      EXPECT_EQ(unable.readable(tensor_on(device, at::kFloat), "tensor").ok(),
                support == Support::kYes && !on_gpu);
    }
  }
}

TEST(Support, ChecksAcceptTheReductionsOfTheTable) {
  std::vector<Reduction> ops(std::begin(kReduceOps), std::end(kReduceOps));
  ops.push_back(premul_sum(2));
  std::vector<c10::ScalarType> dtypes(std::begin(kDtypes), std::end(kDtypes));
  dtypes.insert(dtypes.end(), std::begin(kOtherDtypes), std::end(kOtherDtypes));
  for (const Backend backend : kBackends) {
    const ArgumentChecks checks(group_of(backend, /*takes_cuda=*/true));
    for (const TensorDevice device : kTensorDevices) {
      if (!possible(support_of(backend, device, Operation::kAllReduce))) continue;
      for (const c10::ScalarType dtype : dtypes) {
        for (const Reduction& op : ops) {
          const absl::Status status = checks.reduction(op, tensor_on(device, dtype));
          const bool wanted = reduces(backend, op, class_of(dtype));
          EXPECT_EQ(status.ok(), wanted) << to_string(backend) << " " << status;
          EXPECT_TRUE(wanted || absl::IsInvalidArgument(status)) << status;
          if (backend != Backend::kNccl || op.multiplies) continue;
          // In a group with cpu and nccl, plan() is the only check for nccl. It does not see
          // premultiplication.
          EXPECT_EQ(nccl::plan(dtype, op.op).ok(), wanted);
        }
      }
    }
  }
}

TEST(Support, ChecksOfNcclAcceptTheMessagesOfTheTable) {
  EXPECT_EQ(nccl::check_peer(-1, 0).ok(), receives_from_any(Backend::kNccl));
  EXPECT_EQ(nccl::check_peer(1, 1).ok(), sends_to_itself(Backend::kNccl));
  EXPECT_TRUE(nccl::check_peer(0, 1).ok());
}

}  // namespace
}  // namespace gradwire::collectives
