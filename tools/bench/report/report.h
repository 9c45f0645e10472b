#pragma once

#include <string>
#include <utility>
#include <vector>

namespace gradwire::bench {

// One figure of Gradwire beside one peer's in the same run.
struct Row {
  std::string suite;
  std::string case_name;
  std::string transport;
  std::string metric;
  double gradwire = 0;
  // Empty: measured without a peer.
  std::string peer;
  double peer_value = 0;
  // How many times better Gradwire is; 0 without a peer.
  double ratio = 0;
};

// A line in a plot.
struct Curve {
  std::string plot;  // "echo", "inflight_add2"
  std::string transport;
  std::string side;
  std::vector<std::pair<double, double>> points;
};

struct Report {
  std::vector<Row> rows;
  std::vector<Curve> curves;
  // What was not measured, and why.
  std::vector<std::string> skipped;
  // The machine and the run, as pairs to be printed.
  std::vector<std::pair<std::string, std::string>> about;
};

// The object that --json writes for a row, without a newline:
// {"suite":…,"case":…,"transport":…,"metric":…,"gradwire":…,"peer":…,"peer_value":…,"ratio":…}; the last
// three are null without a peer.
std::string json_line(const Row& row);

// Four digits at most, no exponent: "0.35", "88.9", "250124".
std::string short_number(double value);

// For people: a line per case, transport and metric, the peers beside one another, and what is aimed at.
std::string text_table(const Report& report);

// What a row should reach: "ok >= 20x", "MISS >= 20x", or nothing where there is no aim.
std::string aim_of(const Row& row);

}  // namespace gradwire::bench
