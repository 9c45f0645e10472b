#pragma once

#include <string>
#include <utility>
#include <vector>

namespace gradwire::bench {

// One figure of Gradwire and the same figure of one peer, from the same run.
struct Row {
  std::string suite;
  std::string case_name;
  std::string transport;
  std::string metric;
  double gradwire = 0;
  // Empty if no peer has this figure.
  std::string peer;
  double peer_value = 0;
  // How many times better Gradwire is; 0 without a peer.
  double ratio = 0;
  // Gradwire's figure in each round; empty if it is not computed for each round.
  std::vector<double> rounds = {};
};

// Whether both rows have the same figure of Gradwire.
bool same_figure(const Row& a, const Row& b);

// The points of one system in a plot.
struct Curve {
  std::string plot;  // "echo", "inflight_add2"
  std::string transport;
  std::string system;
  std::vector<std::pair<double, double>> points;
};

struct Report {
  std::vector<Row> rows;
  std::vector<Curve> curves;
  // Lines about cases and systems that were not measured, with the reasons.
  std::vector<std::string> skipped;
  // Facts about the machine and the run, as pairs of name and value.
  std::vector<std::pair<std::string, std::string>> about;
};

// Returns the JSON object that --json writes for a row, without a newline:
// {"suite":…,"case":…,"transport":…,"metric":…,"gradwire":…,"peer":…,"peer_value":…,"ratio":…,"rounds":[…]}
// The peer, its value and the ratio are null without a peer.
std::string json_line(const Row& row);

// Formats a number with about three significant digits and without an exponent: "0.35", "88.9", "250124".
std::string short_number(double value);

// Returns a readable table: one line for each case, transport and metric, with all peers and the aims. The
// last lines count the aims.
std::string text_table(const Report& report);

}  // namespace gradwire::bench
