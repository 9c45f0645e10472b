#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

// Draws plots as SVG text. The style sheet of the page sets the colours: classes "system-NAME", "grid",
// "axis".
namespace gradwire::bench {

struct PlotSeries {
  std::string name;
  // Points with positive coordinates.
  std::vector<std::pair<double, double>> points;
};

struct PlotOptions {
  std::string title;
  std::string x_label;
  std::string y_label;
  // Format the values of ticks and points.
  std::function<std::string(double)> x_text;
  std::function<std::string(double)> y_text;
};

// Draws lines on logarithmic axes, with a tick for each x that occurs. The name of a line is written at its
// end.
std::string line_plot(const PlotOptions& options, std::vector<PlotSeries> series);

struct BarGroup {
  std::string name;
  struct Bar {
    std::string system;
    double ratio = 1;  // Must be positive.
    std::string text;  // Tooltip.
  };
  std::vector<Bar> bars;
};

// Draws ratios on a logarithmic scale. A bar starts at the line of 1 and goes to the right if Gradwire is
// better, to the left if it is worse.
std::string ratio_bars(const std::string& title, const std::vector<BarGroup>& groups);

std::string escape_html(const std::string& text);

}  // namespace gradwire::bench
