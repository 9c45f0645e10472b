#pragma once

// Results of calls that have not ended: Future and Promise. For programs; our own files include this header.
#include "gradwire/base/futures/future.h"
