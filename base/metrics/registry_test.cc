#include "gradwire/base/metrics/registry.h"

#include <regex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/metrics/families.h"
#include "gradwire/base/metrics/samples.h"
#include "gradwire/base/metrics/testing/strict_text.h"
#include "gtest/gtest.h"

namespace gradwire::metrics {
namespace {

using testing::parse_strictly;
using testing::TextFamilies;

std::string text_of(const Registry& registry, const Label& label = {"worker", "w0"}) {
  Samples samples({label});
  registry.collect(samples);
  return samples.text();
}

TextFamilies parsed(const std::string& text) {
  absl::StatusOr<TextFamilies> families = parse_strictly(text);
  EXPECT_TRUE(families.ok()) << families.status() << "\n" << text;
  return families.ok() ? *families : TextFamilies();
}

TEST(Families, NamesSayWhatAndInWhichUnit) {
  std::set<std::string> names;
  const std::regex pattern("gradwire_[a-z][a-z0-9_]*");
  for (const Family& family : all_families()) {
    const std::string name(family.name);
    EXPECT_TRUE(std::regex_match(name, pattern)) << name;
    EXPECT_TRUE(names.insert(name).second) << name;
    EXPECT_EQ(absl::EndsWith(name, "_total"), family.kind == Kind::kCounter) << name;
    EXPECT_EQ(family.unit == "seconds", family.kind == Kind::kHistogram) << name;
    EXPECT_EQ(family.unit == "seconds", absl::EndsWith(name, "_seconds")) << name;
    EXPECT_EQ(family.unit == "bytes", absl::StrContains(name, "_bytes")) << name;
    EXPECT_FALSE(family.help.empty()) << name;
    EXPECT_FALSE(family.unit.empty()) << name;
    bool ended = false;
    for (const absl::string_view label : family.labels) {
      EXPECT_FALSE(ended && !label.empty()) << name;
      ended |= label.empty();
      // These are added to all series of a worker, of the launcher and of a bucket.
      EXPECT_TRUE(label != "worker" && label != "rank" && label != "le") << name;
    }
  }
}

// A reader refuses a text with two samples of one series.
TEST(Registry, NamesThatTheTextShowsAlikeAreOneSeries) {
  Registry registry;
  for (const char* name : {"a\x01", "a\x02", "a\xff", "a\x7f", "a?"})
    registry.counter(Metric::kStoreCalls, {name, "OK"}).add();
  // Cut inside a character.
  registry.counter(Metric::kStoreCalls, {std::string(199, 'b') + "\u00e4", "OK"}).add();
  registry.counter(Metric::kStoreCalls, {std::string(199, 'b') + "\u0444", "OK"}).add();
  registry.counter(Metric::kStoreCalls, {"c\nd", "OK"}).add();
  EXPECT_EQ(registry.series(), 3u);
  const TextFamilies families = parsed(text_of(registry));
  const auto& found = families.at("gradwire_store_calls_total");
  EXPECT_EQ(found.value({{"worker", "w0"}, {"operation", "a?"}, {"code", "OK"}}), 5);
  EXPECT_EQ(found.value({{"worker", "w0"}, {"operation", std::string(199, 'b') + "?"}, {"code", "OK"}}), 2);
  EXPECT_EQ(found.value({{"worker", "w0"}, {"operation", "c\nd"}, {"code", "OK"}}), 1);
}

TEST(Registry, TextHasCountersGaugesAndHistograms) {
  Registry registry;
  registry.counter(Metric::kCallsMade, {"add", "ps", "OK"}).add(7);
  registry.counter(Metric::kCallsMade, {"add", "ps", "NOT_FOUND"}).add(2);
  registry.gauge(Metric::kLinks).set(3);
  Histogram& seconds = registry.histogram(Metric::kCallSeconds, {"add"});
  seconds.record(absl::Microseconds(3));
  seconds.record(absl::Seconds(100));
  const TextFamilies families = parsed(text_of(registry));
  ASSERT_EQ(families.size(), 3u);

  const testing::TextFamily& made = families.at("gradwire_rpc_calls_made_total");
  EXPECT_EQ(made.type, "counter");
  EXPECT_EQ(made.help, family_of(Metric::kCallsMade).help);
  EXPECT_EQ(made.samples.size(), 2u);
  EXPECT_EQ(made.value({{"worker", "w0"}, {"function", "add"}, {"peer", "ps"}, {"code", "OK"}}), 7);
  EXPECT_EQ(made.value({{"code", "NOT_FOUND"}}), 2);
  EXPECT_EQ(families.at("gradwire_rpc_links").type, "gauge");
  EXPECT_EQ(families.at("gradwire_rpc_links").value({}), 3);

  const testing::TextFamily& histogram = families.at("gradwire_rpc_call_seconds");
  EXPECT_EQ(histogram.value({{"le", "2e-06"}}, "_bucket"), 0);
  EXPECT_EQ(histogram.value({{"le", "4e-06"}}, "_bucket"), 1);
  EXPECT_EQ(histogram.value({{"le", "67.108864"}}, "_bucket"), 1);
  EXPECT_EQ(histogram.value({{"le", "+Inf"}}, "_bucket"), 2);
  EXPECT_EQ(histogram.value({{"function", "add"}}, "_count"), 2);
  EXPECT_NEAR(histogram.value({}, "_sum"), 100.000003, 1e-9);
}

TEST(Registry, SameLabelsAreTheSameMetric) {
  Registry registry;
  Counter& one = registry.counter(Metric::kStoreCalls, {"get", "OK"});
  EXPECT_EQ(&registry.counter(Metric::kStoreCalls, {"get", "OK"}), &one);
  EXPECT_NE(&registry.counter(Metric::kStoreCalls, {"set", "OK"}), &one);
  EXPECT_EQ(registry.series(), 2u);
}

TEST(Registry, HostileLabelValuesStayInsideTheirQuotes) {
  const std::string value =
      "a\"} 1\nfake_metric 7\\\xff\x01\xc3\xa4\xed\xa0\x80\xf4\x90\x80\x80\xe2\x82\xac\xc3";
  Registry registry;
  registry.counter(Metric::kStoreCalls, {value, std::string(100'000, 'x')}).add();
  const std::string text = text_of(registry, {"worker", value});
  const TextFamilies families = parsed(text);
  ASSERT_EQ(families.size(), 1u);
  const std::string safe = "a\"} 1\nfake_metric 7\\??\xc3\xa4???????\xe2\x82\xac?";
  EXPECT_EQ(families.at("gradwire_store_calls_total").value({{"operation", safe}, {"worker", safe}}), 1);
  EXPECT_LT(text.size(), 2'000u);
}

TEST(Registry, ValuesBeyondTheBoundBecomeOther) {
  Registry registry({.most_values = 3, .most_series = 100});
  for (int i = 0; i < 1'000; ++i) {
    registry.counter(Metric::kCallsMade, {absl::StrCat("f", i), "peer", "OK"}).add();
  }
  EXPECT_EQ(registry.series(), 4u);
  const TextFamilies families = parsed(text_of(registry));
  const testing::TextFamily& made = families.at("gradwire_rpc_calls_made_total");
  EXPECT_EQ(made.value({{"function", "f2"}}), 1);
  EXPECT_EQ(made.value({{"function", "f3"}}), -1);
  EXPECT_EQ(made.value({{"function", "other"}, {"peer", "peer"}}), 997);
}

TEST(Registry, SeriesBeyondTheBoundBecomeOther) {
  Registry registry({.most_values = 100, .most_series = 10});
  for (int i = 0; i < 50; ++i) {
    for (int j = 0; j < 50; ++j) {
      registry.counter(Metric::kCallsMade, {absl::StrCat("f", i), absl::StrCat("p", j), "OK"}).add();
    }
  }
  EXPECT_EQ(registry.series(), 11u);
  const TextFamilies families = parsed(text_of(registry));
  const testing::TextFamily& made = families.at("gradwire_rpc_calls_made_total");
  EXPECT_EQ(made.value({{"function", "other"}, {"peer", "other"}, {"code", "other"}}), 2'490);
  EXPECT_EQ(made.sum({}), 2'500);
}

TEST(Registry, TextIsValidWhileThreadsCount) {
  Registry registry;
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      Histogram& seconds = registry.histogram(Metric::kQueueSeconds, {"f"});
      for (int i = 0; !stop.load(); ++i) {
        seconds.record_ns(i % 5'000);
        registry.counter(Metric::kStoreCalls, {absl::StrCat("t", t), absl::StrCat(i % 20)}).add();
      }
    });
  }
  double before = 0;
  for (int i = 0; i < 50; ++i) {
    const TextFamilies families = parsed(text_of(registry));
    if (families.count("gradwire_rpc_queue_seconds") == 0) continue;
    const double now = families.at("gradwire_rpc_queue_seconds").value({}, "_count");
    EXPECT_GE(now, before);
    before = now;
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

TEST(Registry, TotalIsOverAllSeries) {
  Registry registry;
  registry.histogram(Metric::kCallSeconds, {"f"}).record(absl::Milliseconds(1));
  registry.histogram(Metric::kCallSeconds, {"g"}).record(absl::Milliseconds(100));
  const HistogramValues total = registry.total(Metric::kCallSeconds);
  EXPECT_EQ(total.count(), 2u);
  EXPECT_LE(total.quantile(0.5), absl::Milliseconds(1.1));
  EXPECT_GT(total.quantile(0.99), absl::Milliseconds(60));
}

TEST(Samples, FamiliesOfSeveralSourcesStandOnce) {
  Registry one, two;
  one.gauge(Metric::kLinks).set(1);
  two.counter(Metric::kStoreCalls, {"get", "OK"}).add();
  Samples samples;
  two.collect(samples);
  one.collect(samples);
  samples.add(Metric::kStoreCalls, {"set", "OK"}, uint64_t{5});
  const TextFamilies families = parsed(samples.text());
  EXPECT_EQ(families.at("gradwire_store_calls_total").samples.size(), 2u);
  // In the order of the table.
  EXPECT_LT(samples.text().find("gradwire_rpc_links"), samples.text().find("gradwire_store_calls_total"));
}

TEST(Samples, TextsOfSeveralProcessesBecomeOne) {
  Registry one, two;
  one.counter(Metric::kStoreCalls, {"get \"x\"", "OK"}).add(3);
  one.histogram(Metric::kCallSeconds, {"f"}).record(absl::Milliseconds(1));
  two.counter(Metric::kStoreCalls, {"get \"x\"", "OK"}).add(4);
  two.gauge(Metric::kLinks).set(2);
  Samples job;
  EXPECT_EQ(job.add_text(text_of(one, {"worker", "a"}), {"rank", "0"}), 0u);
  EXPECT_EQ(job.add_text(text_of(two, {"worker", "b"}), {"rank", "1"}), 0u);
  // Again: a series must not stand twice.
  EXPECT_EQ(job.add_text(text_of(two, {"worker", "b"}), {"rank", "1"}), 0u);
  job.add(Metric::kLaunchWorkers, {}, uint64_t{2});
  const TextFamilies families = parsed(job.text());
  const testing::TextFamily& calls = families.at("gradwire_store_calls_total");
  EXPECT_EQ(calls.samples.size(), 2u);
  EXPECT_EQ(calls.value({{"rank", "0"}, {"worker", "a"}, {"operation", "get \"x\""}}), 3);
  EXPECT_EQ(calls.value({{"rank", "1"}, {"worker", "b"}}), 4);
  EXPECT_EQ(families.at("gradwire_rpc_call_seconds").value({{"rank", "0"}}, "_count"), 1);
  EXPECT_EQ(families.at("gradwire_rpc_links").value({{"rank", "1"}}), 2);
  EXPECT_EQ(families.at("gradwire_launch_workers").value({}), 2);
}

TEST(Samples, MalformedSamplesOfAnotherProcessAreLeftOut) {
  Samples job;
  const std::string text =
      "gradwire_rpc_links 3\n"
      "gradwire_rpc_links{a=\"1\"} nan\n"
      "gradwire_rpc_links{a=\"1} 1\n"
      "gradwire_rpc_links{a=\"1\"}\n"
      "gradwire_rpc_links{a=\"1\",} 1\n"
      "gradwire_rpc_links{A=\"1\"} 1\n"
      "gradwire_rpc_links{a=\"\\t\"} 1\n"
      "gradwire_rpc_links  1\n"
      "gradwire_rpc_links 1 2\n"
      "gradwire_rpc_links{} 1\n"
      "gradwire_rpc_links{a=\"\xff\"} 1\n"
      "gradwire_rpc_links{rank=\"1\"} 1\n"
      "gradwire_rpc_links{a=\"1\",rank=\"1\"} 1\n"
      "gradwire_rpc_links{a=\"1\",a=\"2\"} 1\n"
      "unknown_family 1\n"
      "gradwire_rpc_links_bucket 1\n"
      "# HELP gradwire_rpc_links other\n"
      "\n"
      "gradwire_rpc_call_seconds 1\n"
      "gradwire_rpc_links{a=\"1\"} 1";
  EXPECT_EQ(job.add_text(text, {"rank", "0"}), 13u);
  const TextFamilies families = parsed(job.text());
  ASSERT_EQ(families.size(), 1u);
  EXPECT_EQ(families.at("gradwire_rpc_links").samples.size(), 2u);
  EXPECT_EQ(families.at("gradwire_rpc_links").value({}), 3);
}

// The labels of the launcher and of its worker together are at most as many as a reader accepts.
TEST(Samples, TextOfAnotherProcessCanBeReadAgain) {
  Samples job;
  EXPECT_EQ(job.add_text("gradwire_rpc_links{a=\"\",b=\"\",c=\"\",d=\"\",e=\"\",f=\"\",g=\"\"} 1\n"
                         "gradwire_rpc_links{a=\"\",b=\"\",c=\"\",d=\"\",e=\"\",f=\"\",g=\"\",h=\"\"} 1\n",
                         {"rank", "0"}),
            1u);
  EXPECT_EQ(parsed(job.text()).at("gradwire_rpc_links").samples.size(), 1u);
  Samples again;
  EXPECT_EQ(again.add_text(job.text(), {"node", "1"}), 1u);
}

TEST(StrictText, RefusesWhatTheFormatDoesNotAllow) {
  const std::string head = "# HELP a b\n# TYPE a counter\n";
  EXPECT_TRUE(parse_strictly(head + "a 1\n").ok());
  for (const std::string& wrong :
       {head + "a 1", head + "b 1\n", head + "a{x=\"1} 1\n", head + "a{x=\"1\",x=\"2\"} 1\n",
        head + "a 1\na 1\n", head + head + "a 1\n", std::string("a 1\n"), head + "a x\n", head + "a -1\n",
        head, head + "a{x=\"\\t\"} 1\n", std::string("# TYPE a counter\na 1\n"),
        std::string("# HELP a b\n# TYPE a histogram\na_bucket{le=\"1\"} 2\na_bucket{le=\"+Inf\"} 1\na_sum "
                    "1\na_count 1\n")}) {
    EXPECT_FALSE(parse_strictly(wrong).ok()) << wrong;
  }
}

}  // namespace
}  // namespace gradwire::metrics
