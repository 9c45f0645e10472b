#include "gradwire/tools/bench/report/svg_plot.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "gradwire/tools/bench/report/report.h"

namespace gradwire::bench {
namespace {

// Maps values to pixels on a logarithmic scale.
class Scale {
 public:
  Scale(double low, double high, double from, double to)
      : low_(std::log10(low)), high_(std::log10(high)), from_(from), to_(to) {
    if (high_ - low_ < 1e-9) high_ = low_ + 1;
  }
  double operator()(double value) const {
    return from_ + (std::log10(value) - low_) / (high_ - low_) * (to_ - from_);
  }

 private:
  double low_, high_, from_, to_;
};

std::string line(double x1, double y1, double x2, double y2, const char* style) {
  return absl::StrFormat("<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>", style, x1,
                         y1, x2, y2);
}

std::string text(double x, double y, const char* anchor, const std::string& style,
                 const std::string& content) {
  return absl::StrFormat("<text class=\"%s\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>", style, x, y,
                         anchor, escape_html(content));
}

// Returns the ticks 1, 2 and 5 of every decade from `low` to `high`; only the powers of ten if there are many
// decades.
std::vector<double> ticks_between(double low, double high) {
  const bool fine = std::log10(high / low) < 2.5;
  std::vector<double> ticks;
  for (double decade = std::pow(10, std::floor(std::log10(low))); decade <= high; decade *= 10) {
    for (const double digit : {1.0, 2.0, 5.0}) {
      const double tick = digit * decade;
      if ((fine || digit == 1.0) && tick >= low * 0.999 && tick <= high * 1.001) ticks.push_back(tick);
    }
  }
  return ticks;
}

std::string system_class(const std::string& system) {
  return absl::StrCat("system-", system, system.rfind("floor_", 0) == 0 ? " floor" : "");
}

}  // namespace

std::string escape_html(const std::string& text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

std::string line_plot(const PlotOptions& options, std::vector<PlotSeries> series) {
  constexpr double kWidth = 640, kHeight = 380, kLeft = 74, kRight = 136, kTop = 40, kBottom = 52;
  double x_low = INFINITY, x_high = 0, y_low = INFINITY, y_high = 0;
  std::set<double> x_ticks;
  for (PlotSeries& one : series) {
    std::sort(one.points.begin(), one.points.end());
    for (const auto& [x, y] : one.points) {
      x_low = std::min(x_low, x);
      x_high = std::max(x_high, x);
      y_low = std::min(y_low, y);
      y_high = std::max(y_high, y);
      x_ticks.insert(x);
    }
  }
  if (x_ticks.empty()) return "";
  y_low /= 1.6;
  y_high *= 1.6;
  const Scale x_at(x_low, x_high, kLeft + 12, kWidth - kRight - 12);
  const Scale y_at(y_low, y_high, kHeight - kBottom, kTop);

  std::string svg = absl::StrFormat("<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"%s\">", kWidth,
                                    kHeight, escape_html(options.title));
  absl::StrAppend(&svg, text(kLeft, 20, "start", "title", options.title));
  for (const double tick : ticks_between(y_low, y_high)) {
    absl::StrAppend(&svg, line(kLeft, y_at(tick), kWidth - kRight, y_at(tick), "grid"),
                    text(kLeft - 8, y_at(tick) + 4, "end", "tick", options.y_text(tick)));
  }
  double last_x = -100;
  for (const double tick : x_ticks) {
    absl::StrAppend(&svg, line(x_at(tick), kHeight - kBottom, x_at(tick), kHeight - kBottom + 5, "axis"));
    if (x_at(tick) - last_x < 40) continue;
    last_x = x_at(tick);
    absl::StrAppend(&svg, text(x_at(tick), kHeight - kBottom + 19, "middle", "tick", options.x_text(tick)));
  }
  absl::StrAppend(&svg, line(kLeft, kHeight - kBottom, kWidth - kRight, kHeight - kBottom, "axis"),
                  text((kLeft + kWidth - kRight) / 2, kHeight - 10, "middle", "label", options.x_label));
  absl::StrAppendFormat(
      &svg,
      "<text class=\"label\" text-anchor=\"middle\" transform=\"translate(16 %.0f) rotate(-90)\">%s</text>",
      (kTop + kHeight - kBottom) / 2, escape_html(options.y_label));

  std::vector<std::pair<double, const PlotSeries*>> ends;
  for (const PlotSeries& one : series) {
    if (one.points.empty()) continue;
    std::string path;
    for (const auto& [x, y] : one.points) {
      absl::StrAppendFormat(&path, "%s%.1f %.1f", path.empty() ? "M" : "L", x_at(x), y_at(y));
    }
    const std::string style = system_class(one.name);
    absl::StrAppend(&svg, "<path class=\"line ", style, "\" d=\"", path, "\"/>");
    for (const auto& [x, y] : one.points) {
      absl::StrAppendFormat(
          &svg, "<circle class=\"dot %s\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\"><title>%s</title></circle>",
          style, x_at(x), y_at(y),
          escape_html(absl::StrCat(one.name, ", ", options.x_text(x), ": ", options.y_text(y))));
    }
    ends.emplace_back(y_at(one.points.back().second), &one);
  }
  // Move names apart that would overlap.
  std::sort(ends.begin(), ends.end());
  double last_y = -100;
  for (auto& [y, one] : ends) {
    last_y = std::max(y, last_y + 15);
    absl::StrAppend(
        &svg, text(kWidth - kRight + 6, last_y + 4, "start", "name " + system_class(one->name), one->name));
  }
  return svg + "</svg>";
}

std::string ratio_bars(const std::string& title, const std::vector<BarGroup>& groups) {
  constexpr double kWidth = 640, kLeft = 186, kRight = 70, kTop = 58, kBar = 13, kGap = 9;
  double low = 0.5, high = 2, height = kTop;
  std::vector<std::string> systems;
  for (const BarGroup& group : groups) {
    height += kGap + kBar * static_cast<double>(group.bars.size());
    for (const BarGroup::Bar& bar : group.bars) {
      low = std::min(low, bar.ratio / 1.2);
      high = std::max(high, bar.ratio * 1.2);
      if (std::find(systems.begin(), systems.end(), bar.system) == systems.end())
        systems.push_back(bar.system);
    }
  }
  if (systems.empty()) return "";
  height += 26;
  const Scale x_at(low, high, kLeft, kWidth - kRight);
  std::string svg = absl::StrFormat("<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"%s\">", kWidth,
                                    height, escape_html(title));
  absl::StrAppend(&svg, text(10, 20, "start", "title", title));
  double legend_x = 10;
  for (const std::string& system : systems) {
    absl::StrAppendFormat(&svg,
                          "<rect class=\"bar %s\" x=\"%.1f\" y=\"33\" width=\"11\" height=\"11\" rx=\"2\"/>",
                          system_class(system), legend_x);
    absl::StrAppend(&svg, text(legend_x + 16, 43, "start", "tick", system));
    legend_x += 34 + 7 * static_cast<double>(system.size());
  }
  for (const double tick : ticks_between(low, high)) {
    absl::StrAppend(&svg, line(x_at(tick), kTop, x_at(tick), height - 22, tick == 1 ? "axis" : "grid"),
                    text(x_at(tick), height - 7, "middle", "tick", short_number(tick) + "x"));
  }
  double y = kTop + kGap / 2;
  for (const BarGroup& group : groups) {
    const double middle = y + kBar * static_cast<double>(group.bars.size()) / 2;
    absl::StrAppend(&svg, text(kLeft - 10 > x_at(low) ? x_at(low) - 10 : kLeft - 10, middle + 4, "end",
                               "name", group.name));
    for (const BarGroup::Bar& bar : group.bars) {
      const double from = std::min(x_at(1), x_at(bar.ratio));
      const double to = std::max(x_at(1), x_at(bar.ratio));
      absl::StrAppendFormat(&svg,
                            "<rect class=\"bar %s%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" "
                            "rx=\"2\"><title>%s</title></rect>",
                            system_class(bar.system), bar.ratio < 1 ? " worse" : "", from, y + 1,
                            std::max(1.5, to - from), kBar - 2, escape_html(bar.text));
      absl::StrAppend(&svg, text(to + 5, y + kBar - 3, "start", "value", short_number(bar.ratio) + "x"));
      y += kBar;
    }
    y += kGap;
  }
  return svg + "</svg>";
}

}  // namespace gradwire::bench
