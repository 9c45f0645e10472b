// Reads the input as the metrics of a worker, as the launcher does (base/metrics/samples.h). Whatever the
// worker says, the launcher's text must be one that Prometheus can read.

#include <set>
#include <string>

#include "gradwire/base/metrics/samples.h"
#include "gradwire/tests/fuzz/fuzzing.h"

namespace {

using gradwire::fuzzing::require;
using gradwire::metrics::parse_sample;
using gradwire::metrics::Samples;

// Checks NAME{LABEL="VALUE",...} NUMBER, and returns the part before the number.
std::string series_of(const std::string& line) {
  std::size_t at = line.find('{');
  require(at != std::string::npos && line.compare(0, 9, "gradwire_") == 0, "a sample has no name or labels");
  require(line.compare(at, 9, "{rank=\"0\"") == 0, "a sample lacks the label of the launcher");
  std::set<std::string> names;
  do {
    const std::size_t equals = line.find('=', ++at);
    require(equals != std::string::npos && line[equals + 1] == '"', "a label has no value");
    require(names.insert(line.substr(at, equals - at)).second, "a label stands twice");
    for (at = equals + 2; line[at] != '"'; ++at) {
      require(at < line.size(), "a value does not end");
      require(static_cast<unsigned char>(line[at]) >= 0x20, "a value has a control character");
      if (line[at] == '\\') ++at;
    }
    ++at;
  } while (line[at] == ',');
  require(line[at] == '}' && line[at + 1] == ' ', "the labels do not end");
  const std::string number = line.substr(at + 2);
  require(!number.empty() &&
              number.find_first_not_of("0123456789+-.eExXabcdefABCDEFpPinfty") == std::string::npos,
          "a sample has no number");
  return line.substr(0, at);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  const std::string input(reinterpret_cast<const char*>(data), size);
  Samples samples;
  samples.add_text(input, {"rank", "0"});
  const std::string text = samples.text();
  std::set<std::string> series;
  std::set<std::string> families;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    require(end != std::string::npos, "a line does not end");
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    if (line.compare(0, 7, "# HELP ") == 0) {
      require(families.insert(line).second, "a family stands twice");
    } else if (line[0] != '#') {
      require(series.insert(series_of(line)).second, "a series stands twice");
      // Another reader accepts it.
      bool known = false;
      require(parse_sample(line, known).has_value(), "the text has a malformed sample");
    }
  }
  return 0;
}
