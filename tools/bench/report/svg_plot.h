#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

// Drawings as SVG text, coloured by the page's style sheet: classes "side-NAME", "grid", "axis".
namespace gradwire::bench {

struct PlotSeries {
  std::string name;
  // Above zero in both directions; x rises.
  std::vector<std::pair<double, double>> points;
};

struct PlotOptions {
  std::string title;
  std::string x_label;
  std::string y_label;
  // How ticks and points are written.
  std::function<std::string(double)> x_text;
  std::function<std::string(double)> y_text;
};

// Both axes are logarithmic; a tick for each x that occurs. Each line carries its name at its end.
std::string line_plot(const PlotOptions& options, std::vector<PlotSeries> series);

struct BarGroup {
  std::string name;
  struct Bar {
    std::string side;
    double ratio = 1;  // Above zero.
    std::string text;  // Shown when pointed at.
  };
  std::vector<Bar> bars;
};

// Ratios on a logarithmic scale, from the line at 1 to the right when better, to the left when worse.
std::string ratio_bars(const std::string& title, const std::vector<BarGroup>& groups);

std::string escape_html(const std::string& text);

}  // namespace gradwire::bench
