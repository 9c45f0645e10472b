#include "gradwire/tools/metrics/page.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gradwire/base/metrics/families.h"

namespace gradwire::tools {
namespace {

constexpr char kHead[] = R"(# Metrics

The table has every metric of Gradwire. It is made from the table in `base/metrics/families.cc` by
`bazel run //tools/metrics:page`. [observability.md](observability.md#metrics) describes how to read them.

Each series of a worker has the label `worker`, its name. Those that a launcher serves have the label `rank`
too. The number of values of a label is bounded; further ones are `other`.

)";

constexpr char kTail[] = R"(
The buckets of a histogram end at 1 us, 2 us, 4 us and so on up to 67 s (`le="+Inf"` has the rest). Its series
are `_bucket`, `_sum` and `_count`.
)";

std::string labels_of(const metrics::Family& family) {
  std::string labels;
  for (std::size_t i = 0; i < family.label_count(); ++i)
    absl::StrAppend(&labels, labels.empty() ? "" : ", ", "`", family.labels[i], "`");
  return labels;
}

}  // namespace

std::string metrics_page() {
  std::string page = kHead;
  absl::StrAppend(&page, "| name | kind | unit | labels | meaning |\n|---|---|---|---|---|\n");
  for (const metrics::Family& family : metrics::all_families()) {
    absl::StrAppend(&page, "| `", family.name, "` | ", metrics::name_of(family.kind), " | ", family.unit,
                    " | ", labels_of(family), " | ", absl::StrReplaceAll(family.help, {{"|", "\\|"}}),
                    " |\n");
  }
  return page + kTail;
}

}  // namespace gradwire::tools
