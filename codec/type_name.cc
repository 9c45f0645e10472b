#include "gradwire/codec/type_name.h"

#include "absl/strings/str_replace.h"

namespace gradwire::rpc::type_name_internal {

std::string normalise(std::string_view pretty, std::string_view key) {
  std::size_t begin = pretty.find(key);
  if (begin == std::string_view::npos) return std::string(pretty);
  begin += key.size();
  // Find the bracket or semicolon that closes the parameter list; skip nested brackets.
  std::size_t end = begin;
  for (int depth = 0; end < pretty.size(); ++end) {
    const char c = pretty[end];
    if (depth == 0 && (c == ']' || c == ';')) break;
    if (c == '<' || c == '(' || c == '[' || c == '{') ++depth;
    if (c == '>' || c == ')' || c == ']' || c == '}') --depth;
  }
  const std::string_view found = pretty.substr(begin, end - begin);
  std::string name = absl::StrReplaceAll(absl::string_view(found.data(), found.size()),
                                         {{"{anonymous}", "(anonymous)"},
                                          {"(anonymous namespace)", "(anonymous)"},
                                          {"> >", ">>"},
                                          {", ", ","},
                                          {" *", "*"},
                                          {" &", "&"},
                                          {"std::__cxx11::", "std::"},
                                          {"long long unsigned int", "unsigned long long"},
                                          {"long long int", "long long"},
                                          {"long unsigned int", "unsigned long"},
                                          {"long int", "long"},
                                          {"short unsigned int", "unsigned short"},
                                          {"short int", "short"}});
  if (!name.empty() && name.front() == '&') name.erase(0, 1);
  // Some versions of gcc print function pointers as "(& name)".
  if (name.rfind("(& ", 0) == 0 && name.back() == ')') name = name.substr(3, name.size() - 4);
  // Remove the template arguments of a function template: clang does not print them.
  if (key == kFunctionKey && !name.empty() && name.back() == '>') {
    int depth = 0;
    for (std::size_t i = name.size(); i-- > 0;) {
      if (name[i] == '>') ++depth;
      if (name[i] == '<' && --depth == 0) {
        name.erase(i);
        break;
      }
    }
  }
  return name;
}

}  // namespace gradwire::rpc::type_name_internal
