#pragma once

namespace gradwire::inspect {

// The files of page/, which the build puts into the program.
extern const char kPageHead[];
extern const char kPageBody[];
extern const char kPageStyle[];
extern const char kPageElements[];
extern const char kPageGraph[];
extern const char kPageCharts[];
extern const char kPageMain[];

}  // namespace gradwire::inspect
