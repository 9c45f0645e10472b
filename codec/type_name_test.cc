#include "gradwire/codec/type_name.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace gradwire::rpc {

namespace named {
struct Server {
  void push(int64_t) {}
  int64_t pull() const { return 0; }
  struct Inner {};
};
int64_t scale(int64_t x, double) { return x; }
template <class T>
struct Box {
  T value() const { return T(); }
};
template <class T>
T twice(T x) {
  return x + x;
}
enum class Mode { kOne };
template <Mode M>
struct Moded {};
}  // namespace named

namespace {

struct Hidden {
  void method() {}
};
void hidden_function() {}

// All compilers must produce the same names, because names are exchanged between programs.
TEST(TypeName, NamespacesAndNestingShow) {
  EXPECT_EQ(cpp_type_name<named::Server>(), "gradwire::rpc::named::Server");
  EXPECT_EQ(cpp_type_name<named::Server::Inner>(), "gradwire::rpc::named::Server::Inner");
}

TEST(TypeName, FunctionsAndMethodsAreNamedWithoutTheirTypes) {
  EXPECT_EQ(cpp_function_name<&named::scale>(), "gradwire::rpc::named::scale");
  EXPECT_EQ(cpp_function_name<&named::Server::push>(), "gradwire::rpc::named::Server::push");
  EXPECT_EQ(cpp_function_name<&named::Server::pull>(), "gradwire::rpc::named::Server::pull");
}

TEST(TypeName, AnonymousNamespaceHasOneSpelling) {
  EXPECT_EQ(cpp_type_name<Hidden>(), "gradwire::rpc::(anonymous)::Hidden");
  EXPECT_EQ(cpp_function_name<&Hidden::method>(), "gradwire::rpc::(anonymous)::Hidden::method");
  EXPECT_EQ(cpp_function_name<&hidden_function>(), "gradwire::rpc::(anonymous)::hidden_function");
}

TEST(TypeName, TemplateArgumentsHaveOneSpelling) {
  EXPECT_EQ(cpp_type_name<named::Box<named::Box<int>>>(),
            "gradwire::rpc::named::Box<gradwire::rpc::named::Box<int>>");
  EXPECT_EQ(cpp_type_name<named::Box<Hidden>>(),
            "gradwire::rpc::named::Box<gradwire::rpc::(anonymous)::Hidden>");
  EXPECT_EQ(cpp_type_name<named::Box<unsigned long>>(), "gradwire::rpc::named::Box<unsigned long>");
  EXPECT_EQ(cpp_type_name<named::Box<int64_t>>(), "gradwire::rpc::named::Box<long>");
  EXPECT_EQ(cpp_type_name<named::Box<unsigned short>>(), "gradwire::rpc::named::Box<unsigned short>");
  EXPECT_EQ(cpp_type_name<named::Box<long long>>(), "gradwire::rpc::named::Box<long long>");
  EXPECT_EQ(cpp_type_name<named::Box<const char*>>(), "gradwire::rpc::named::Box<const char*>");
  EXPECT_EQ(cpp_type_name<named::Box<std::string>>(), "gradwire::rpc::named::Box<std::basic_string<char>>");
  EXPECT_EQ(cpp_function_name<&named::Box<double>::value>(), "gradwire::rpc::named::Box<double>::value");
  EXPECT_EQ(cpp_function_name<&named::twice<int>>(), "gradwire::rpc::named::twice");
  EXPECT_EQ(cpp_type_name<named::Moded<named::Mode::kOne>>(),
            "gradwire::rpc::named::Moded<gradwire::rpc::named::Mode::kOne>");
}

}  // namespace
}  // namespace gradwire::rpc
