#include <gtest/gtest.h>

#include <random>
#include <string>

#include "gradwire/base/metrics/registry.h"
#include "gradwire/base/metrics/samples.h"
#include "gradwire/tests/fuzz/fuzzing.h"

namespace gradwire::fuzzing {
namespace {

using metrics::Metric;

std::string valid(unsigned seed) {
  std::mt19937 random(seed);
  metrics::Registry registry;
  registry.counter(Metric::kStoreCalls, {"get", "OK"}).add(random());
  registry.counter(Metric::kCallsMade, {"a \"b\" \\ \n \xc3\xa4", "ps", "OK"}).add();
  registry.gauge(Metric::kLinks).set(static_cast<int64_t>(random()) - (int64_t{1} << 31));
  if (seed % 8 == 0) registry.histogram(Metric::kFlowWaitSeconds, {"ps"}).record_ns(random());
  metrics::Samples samples({{"worker", "trainer0"}});
  registry.collect(samples);
  return samples.text();
}

TEST(MetricsTextFuzzer, MutatedTexts) {
  std::mt19937 random(7);
  for (unsigned i = 0; i < 2'000; ++i) {
    std::string text = valid(i);
    // Without most of the comments, so that the changes meet samples.
    if (i % 2 == 0) text.erase(0, text.find("gradwire_", text.find("# TYPE ") + 40));
    mutate(text, random);
    run(text);
  }
}

TEST(MetricsTextFuzzer, LinesOfTokens) {
  const char* const tokens[] = {"gradwire_rpc_links",
                                "gradwire_rpc_call_seconds",
                                "_sum",
                                "{",
                                "}",
                                "=\"",
                                "\"",
                                ",",
                                "rank",
                                "a",
                                " ",
                                "1",
                                "\\",
                                "\n",
                                "+Inf",
                                "nan",
                                "\xc3",
                                "\xa4",
                                "1e9"};
  std::mt19937 random(11);
  for (int i = 0; i < 5'000; ++i) {
    std::string text;
    for (unsigned count = random() % 30; count > 0; --count) text += tokens[random() % std::size(tokens)];
    run(text);
  }
}

TEST(MetricsTextFuzzer, Labels) {
  for (char most = 'a'; most < 'l'; ++most) {
    std::string text = "gradwire_rpc_links{";
    for (char name = 'a'; name < most; ++name) text = text + name + "=\"\",";
    run(text + most + "=\"\"} 1\n");
  }
}

}  // namespace
}  // namespace gradwire::fuzzing
