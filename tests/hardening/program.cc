// Writes behind the end of a buffer, in the ways that the flags of --config=opt must stop.
//
// usage: program fortify|stack|none [text]

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#ifndef _FORTIFY_SOURCE
#error "--config=opt must define _FORTIFY_SOURCE"
#endif
static_assert(_FORTIFY_SOURCE == 2);

namespace {

struct Record {
  char name[8];
  char behind[32];
};

// Level 1 of _FORTIFY_SOURCE checks only against the end of the whole object.
__attribute__((noinline)) int fill_name(const char* text) {
  static Record record;
  std::strcpy(record.name, text);
  return std::printf("%s %s\n", record.name, record.behind);
}

// The plain -fstack-protector protects only functions with arrays of characters.
__attribute__((noinline)) int fill_numbers(int count) {
  int numbers[2] = {};
  int* volatile at = numbers;
  for (int i = 0; i < count; ++i) at[i] = i;
  return numbers[0];
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view way = argc > 1 ? argv[1] : "none";
  if (way == "fortify") return fill_name("longer than eight characters") < 0 ? 1 : 0;
  if (way == "stack") return fill_numbers(argc > 2 ? std::atoi(argv[2]) : 16);
  return fill_name("short") < 0 ? 1 : fill_numbers(2);
}
