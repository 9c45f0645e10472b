#include "gradwire/data_parallel/reducer/replica_check.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gradwire/base/stable_hash.h"
#include "gradwire/collectives/group/rank_names.h"

namespace gradwire::data_parallel {
namespace {

// The limit for the text of one rank; larger than the list of parameters of any module.
constexpr int64_t kMostBytes = int64_t{1} << 28;

std::vector<at::Tensor> gather_from_all(collectives::ProcessGroup& group, const at::Tensor& mine) {
  std::vector<at::Tensor> all;
  for (int i = 0; i < group.size(); ++i) all.push_back(at::empty_like(mine));
  group.all_gather(all, mine);
  for (at::Tensor& each : all) each = each.cpu();
  return all;
}

}  // namespace

std::string describe_replica(const char* what, const NamedTensor& tensor) {
  const at::Tensor& t = tensor.tensor;
  std::string name = tensor.name;
  std::replace(name.begin(), name.end(), '\n', ' ');
  return absl::StrCat(what, " \"", name, "\" ", c10::toString(t.scalar_type()), "[",
                      absl::StrJoin(t.sizes(), ", "), "]", t.requires_grad() ? "" : ", without gradient",
                      tensor.sparse_gradient ? ", with sparse gradient" : "");
}

absl::Status compare_replicas(const std::vector<std::string>& texts, const std::vector<int>& ranks) {
  const std::vector<absl::string_view> first = absl::StrSplit(texts[0], '\n');
  for (std::size_t i = 1; i < texts.size(); ++i) {
    if (texts[i] == texts[0]) continue;
    const std::vector<absl::string_view> other = absl::StrSplit(texts[i], '\n');
    std::size_t line = 0;
    while (line < first.size() && line < other.size() && first[line] == other[line]) ++line;
    const auto shown = [line](const std::vector<absl::string_view>& lines) {
      return line < lines.size() && !lines[line].empty() ? lines[line] : "no more entries";
    };
    return absl::InvalidArgumentError(absl::StrCat(
        "the ranks' modules differ: where ", collectives::name_rank(0, ranks), " has ", shown(first), ", ",
        collectives::name_rank(static_cast<int>(i), ranks), " has ", shown(other)));
  }
  return absl::OkStatus();
}

// Every rank takes part in the same collectives, whatever its text is:
// 1. Gather the length and the hash of each text. In the usual case all are equal, and 16 bytes for each
//    rank are enough.
// 2. Check the lengths, which come from other processes, before memory for the texts is allocated.
// 3. If they differ, gather the texts, filled up to the longest, and name the first difference.
absl::Status check_replicas(collectives::ProcessGroup& group, const std::vector<std::string>& lines,
                            at::Device device) {
  const std::string text = absl::StrCat(absl::StrJoin(lines, "\n"), "\n");
  at::Tensor summary = at::empty({2}, at::kLong);
  summary.data_ptr<int64_t>()[0] = static_cast<int64_t>(text.size());
  summary.data_ptr<int64_t>()[1] = static_cast<int64_t>(stable_hash(text));
  const std::vector<at::Tensor> summaries = gather_from_all(group, summary.to(device));
  const auto at = [&](std::size_t rank, int field) { return summaries[rank].data_ptr<int64_t>()[field]; };
  int64_t longest = 0;
  bool equal = true;
  for (std::size_t i = 0; i < summaries.size(); ++i) {
    if (at(i, 0) < 0 || at(i, 0) > kMostBytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the list of parameters of ", collectives::name_rank(static_cast<int>(i), group.ranks()),
          " is too long: got ", at(i, 0), " bytes, expected at most ", kMostBytes));
    }
    longest = std::max(longest, at(i, 0));
    equal = equal && at(i, 0) == at(0, 0) && at(i, 1) == at(0, 1);
  }
  // All ranks have the same summaries, so all of them make the same decision.
  if (equal) return absl::OkStatus();

  at::Tensor padded = at::zeros({longest}, at::kByte);
  std::memcpy(padded.data_ptr<uint8_t>(), text.data(), text.size());
  const std::vector<at::Tensor> gathered = gather_from_all(group, padded.to(device));
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < gathered.size(); ++i) {
    texts.emplace_back(reinterpret_cast<const char*>(gathered[i].data_ptr<uint8_t>()), at(i, 0));
  }
  return compare_replicas(texts, group.ranks());
}

}  // namespace gradwire::data_parallel
