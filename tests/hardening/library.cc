// A shared library with a function that has a buffer.

#include <cstdio>

extern "C" int print_number(int number) {
  char text[16];
  std::snprintf(text, sizeof(text), "%d", number);
  return std::puts(text);
}
