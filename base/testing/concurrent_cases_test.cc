#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gradwire/base/testing/eventually.h"

// The main function that runs the cases of a test at the same time: this test uses it, and a program with
// cases that fail.
namespace gradwire {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

std::string read(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::string temporary() { return std::getenv("TEST_TMPDIR"); }

// The folders of all cases of this process's test are in one folder.
std::string shared(const std::string& name) { return absl::StrCat(temporary(), "/../../", name); }

// Each of these two cases ends only after the other one has begun.
TEST(ConcurrentCases, FirstOfTwoThatWaitForOneAnother) {
  std::ofstream(shared("first")) << "here\n";
  EXPECT_TRUE(eventually([] { return read(shared("second")) == "here\n"; }));
}

TEST(ConcurrentCases, SecondOfTwoThatWaitForOneAnother) {
  std::ofstream(shared("second")) << "here\n";
  EXPECT_TRUE(eventually([] { return read(shared("first")) == "here\n"; }));
}

struct Outcome {
  int status;
  std::string output;
  std::string xml;
};

// Runs the example. `assignments`: variables of its environment.
Outcome run_example(const std::string& assignments = "", const std::string& arguments = "") {
  const std::string output = temporary() + "/output", xml = temporary() + "/example.xml";
  const int status = std::system(
      absl::StrCat("unset GTEST_FILTER TESTBRIDGE_TEST_ONLY; XML_OUTPUT_FILE=", xml, " ", assignments,
                   " base/testing/concurrent_cases_example ", arguments, " >", output, " 2>&1")
          .c_str());
  return {WEXITSTATUS(status), read(output), read(xml)};
}

TEST(ConcurrentCases, FailureOfACaseIsThatOfTheTest) {
  const Outcome run = run_example();
  EXPECT_EQ(run.status, 1) << run.output;
  EXPECT_THAT(run.output, HasSubstr("on purpose"));
  EXPECT_THAT(run.output, HasSubstr("4 cases ran, up to 8 at the same time: 2 failed"));
  EXPECT_THAT(run.output, HasSubstr("[  FAILED  ] Example.Fails\n"));
  // A case that ends the process has failed, with every exit status.
  EXPECT_THAT(run.output, HasSubstr("[  FAILED  ] Example.Ends\n"));
  EXPECT_THAT(run.output, Not(HasSubstr("this case does not run")));
}

TEST(ConcurrentCases, ResultsAreInOneFile) {
  const Outcome run = run_example();
  EXPECT_THAT(run.xml, HasSubstr("<testcase name=\"Passes\""));
  EXPECT_THAT(run.xml, ContainsRegex("<failure message=[^\n]*on purpose"));
  EXPECT_THAT(run.xml, ContainsRegex("<skipped message=[^\n]*a reason"));
  EXPECT_THAT(run.xml,
              ContainsRegex("name=\"Ends\"[^\n]*<failure message=\"the process ended without a result"));
  // The document is complete.
  EXPECT_EQ(run.xml.find("<?xml"), run.xml.rfind("<?xml"));
  EXPECT_EQ(run.xml.find("<testsuites"), run.xml.rfind("<testsuites"));
  EXPECT_THAT(run.xml, HasSubstr("</testsuites>"));
}

TEST(ConcurrentCases, PartOfTheCasesRunsInTheProcessItself) {
  for (const Outcome& run :
       {run_example("", "--gtest_filter=Example.Passes"), run_example("TESTBRIDGE_TEST_ONLY=Example.Passes"),
        run_example("GTEST_FILTER=Example.Passes")}) {
    EXPECT_EQ(run.status, 0) << run.output;
    EXPECT_THAT(run.output, Not(HasSubstr("at the same time")));
  }
}

}  // namespace
}  // namespace gradwire
