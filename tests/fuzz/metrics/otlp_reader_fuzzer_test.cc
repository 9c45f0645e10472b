#include <gtest/gtest.h>

#include <random>
#include <string>

#include "gradwire/base/metrics/registry.h"
#include "gradwire/base/metrics/samples.h"
#include "gradwire/tests/fuzz/fuzzing.h"

namespace gradwire::fuzzing {
namespace {

using metrics::Metric;

std::string valid(std::mt19937& random) {
  metrics::Registry registry;
  registry.counter(Metric::kStoreCalls, {"get", "OK"}).add(random());
  registry.counter(Metric::kCallsMade, {"a \"b\" \\ \n \xc3\xa4", "ps", "OK"}).add();
  registry.gauge(Metric::kLinks).set(static_cast<int64_t>(random()) - (int64_t{1} << 31));
  registry.histogram(Metric::kFlowWaitSeconds, {"ps"}).record_ns(random());
  metrics::Samples samples({{"worker", "trainer0"}});
  registry.collect(samples);
  return samples.text();
}

TEST(OtlpReaderFuzzer, MutatedTexts) {
  std::mt19937 random(7);
  for (unsigned i = 0; i < 2'000; ++i) {
    std::string text = valid(random);
    // Without some of the text, so that the changes meet other lines.
    text.erase(0, random() % text.size());
    mutate(text, random);
    run(text);
  }
}

// Lines of histograms in any order.
TEST(OtlpReaderFuzzer, BucketsInDisorder) {
  const char* const lines[] = {"_bucket{le=\"0.5\"} 1",
                               "_bucket{le=\"1\"} 1",
                               "_bucket{le=\"1\"} 2",
                               "_bucket{le=\"-1\"} 0",
                               "_bucket{le=\"+Inf\"} 2",
                               "_bucket{le=\"-Inf\"} 0",
                               "_bucket{le=\"nan\"} 1",
                               "_bucket{function=\"f\",le=\"+Inf\"} 2",
                               "_bucket{le=\"+Inf\",function=\"f\"} 2",
                               "_sum 1",
                               "_sum -1e300",
                               "_sum{function=\"f\"} 2",
                               "_count 2",
                               "_count{function=\"f\"} 2",
                               "_count 18446744073709551615",
                               "_bucket{le=\"+Inf\"} 18446744073709551615"};
  std::mt19937 random(11);
  for (int i = 0; i < 20'000; ++i) {
    std::string text;
    for (unsigned count = random() % 8; count > 0; --count)
      text = text + "gradwire_rpc_call_seconds" + lines[random() % std::size(lines)] + "\n";
    run(text);
  }
}

}  // namespace
}  // namespace gradwire::fuzzing
