#!/usr/bin/python3
"""compile_errors_test.py PROGRAM_H: compiles snippets that include PROGRAM_H and checks the first error of each."""
import os
import subprocess
import sys
import tempfile
import unittest

PROGRAM = sys.argv.pop(1)
# The compiler of continuous integration. Its messages contain the template arguments.
COMPILER = ["clang++", "-std=c++20"]


class CompileErrors(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        # Headers are included as "gradwire/...", as in Bazel.
        os.symlink(os.getcwd(), os.path.join(cls.folder.name, "gradwire"))
        cls.compiler = COMPILER + ["-I" + cls.folder.name, "-x"]
        # A precompiled header, because compiling the headers takes seconds.
        cls.prefix = os.path.join(cls.folder.name, "program.pch")
        subprocess.run(cls.compiler + ["c++-header", PROGRAM, "-o", cls.prefix], check=True)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def compile(self, snippet):
        """Compiles the snippet and returns the lines of the output that are errors."""
        done = subprocess.run(
            self.compiler + ["c++", "-include-pch", self.prefix, "-fsyntax-only", "-Wno-unused-result", "-"],
            input=snippet, stderr=subprocess.PIPE, universal_newlines=True, check=False)
        errors = [line for line in done.stderr.splitlines() if "error: " in line]
        self.assertEqual(done.returncode == 0, not errors, done.stderr)
        return errors

    def refused(self, snippet, *expected):
        errors = self.compile(snippet)
        self.assertTrue(errors, f"the snippet compiles, expected an error: {snippet}")
        for text in expected:
            self.assertIn(text, errors[0])

    def accepted(self, snippet):
        self.assertEqual(self.compile(snippet), [])

    def test_CorrectCallsCompile(self):
        self.accepted("""
            void calls(RRef<Counter> counter, const std::vector<double>& values) {
              rpc_sync<&twice>("a", 5);
              rpc_async<&sum>("a", "name", values);
              remote<&sum>("a", std::string("name"), std::vector<double>{1.0});
              counter.rpc_sync<&Counter::add>(5.5, values);
              remote<Counter>("a", 5, "name");
            }""")

    def test_TextForANumberIsRefused(self):
        self.refused("""void call() { rpc_sync<&twice>("a", "abc"); }""",
                     "ParameterTakes<1, long, const char (&)[4]>", "does not convert implicitly")

    def test_NumberForAVectorIsRefused(self):
        for how in ("rpc_sync", "rpc_async", "remote"):
            self.refused("void call() { %s<&sum>(\"a\", \"name\", 5); }" % how,
                         "ParameterTakes<2, std::vector<double", "does not convert implicitly")

    def test_ViewForAStringIsRefused(self):
        self.refused("""void call(std::string_view name) { rpc_sync<&sum>("a", name, std::vector<double>()); }""",
                     "ParameterTakes<1, std::basic_string<char", "does not convert implicitly")

    def test_ArgumentsOfMethodsAreChecked(self):
        for how in ("rpc_sync", "rpc_async", "remote"):
            self.refused("void call(RRef<Counter> counter) { counter.%s<&Counter::add>(1, 5); }" % how,
                         "ParameterTakes<2, std::vector<double", "does not convert implicitly")

    def test_ArgumentsOfDeclaredConstructorsAreChecked(self):
        self.refused("""void call() { remote<Counter>("a", "abc", "name"); }""",
                     "ParameterTakes<1, long, const char (&)[4]>", "does not convert implicitly")
        self.refused("""void call(Agent& agent) { agent.remote<Counter>("a", 5); }""",
                     "the number of arguments of the call differs")

    def test_OtherParametersThanDeclaredAreRefused(self):
        self.refused("GRADWIRE_RPC_CLASS(Counter, int64_t)", "GRADWIRE_RPC_CONSTRUCTOR and the registration")

    def test_TypeWithoutCodecSaysWhatToDo(self):
        for snippet in ("""NoCodec make(int64_t n) { return {}; }
                           GRADWIRE_RPC(make)""",
                        """int64_t take(const std::vector<NoCodec>& values) { return 0; }
                           GRADWIRE_RPC(take)""",
                        """struct Holder { explicit Holder(NoCodec) {} };
                           void call() { remote<Holder>("a", NoCodec()); }""",
                        "NoCodec call(RRef<NoCodec> there) { return there.to_here(); }"):
            self.refused(snippet, "HasCodec<NoCodec>", "specialise gradwire::rpc::Codec")

    def test_OverloadSaysWhichMacroToUse(self):
        self.refused("GRADWIRE_RPC(overloaded)", "overloads_need_GRADWIRE_RPC_AS")
        self.refused("GRADWIRE_RPC_METHOD(Overloaded, method)", "overloads_need_GRADWIRE_RPC_AS")
        self.refused("GRADWIRE_RPC_IDEMPOTENT(overloaded)", "overloads_need_GRADWIRE_RPC_IDEMPOTENT_AS")

    def test_InheritedMethodsCompile(self):
        self.accepted("""
            struct Derived : Counter { using Counter::Counter; };
            GRADWIRE_RPC_METHOD(Derived, add)
            GRADWIRE_RPC_METHOD_AS(Derived, "named", &Counter::add)
            void call(RRef<Derived> derived) { derived.rpc_sync<&Derived::add>(5, std::vector<double>()); }""")

    def test_MethodOfAnotherClassIsRefused(self):
        for base in ("private Counter", "Left, Right"):
            self.refused("""
                struct Left : Counter {};
                struct Right : Counter {};
                struct Derived : %s {};
                GRADWIRE_RPC_METHOD_AS(Derived, "add", &Counter::add)""" % base,
                         "not an accessible base class")
        self.refused("void call(RRef<NoCodec> other) { other.rpc_sync<&Counter::add>(1, std::vector<double>()); }",
                     "name a method of the referenced class")

    def test_WhatIsNotAMethodIsRefused(self):
        self.refused("GRADWIRE_RPC_METHOD(NoCodec, x)", "got a data member")
        self.refused("""struct Qualified { void method() &; };
                        GRADWIRE_RPC_METHOD(Qualified, method)""", "methods without '&'")

    def test_CorrectStreamsCompile(self):
        self.accepted("""
            void read(Agent& agent) {
              RemoteStream<int64_t> stream = rpc_stream<&numbers>("a", 5);
              stream = agent.rpc_stream<&numbers>(StreamDestination("a", {.window_items = 3}), 5);
              for (int64_t& number : stream) ++number;
            }""")

    def test_StreamIsReadWithRpcStream(self):
        for how in ("rpc_sync", "rpc_async"):
            self.refused("void call() { %s<&numbers>(\"a\", 5); }" % how, "call it with rpc_stream")
        self.refused("""void call() { remote<&numbers>("a", 5); }""", "rpc_stream")

    def test_OtherFunctionsAreNotCalledWithRpcStream(self):
        self.refused("""void call() { rpc_stream<&twice>("a", 5); }""", "call this function with rpc_sync")

    def test_StreamIsNotAPartOfAnotherValue(self):
        for snippet in ("""int64_t take(Stream<int64_t> stream) { return 0; }
                           GRADWIRE_RPC(take)""",
                        """std::vector<Stream<int64_t>> make() { return {}; }
                           GRADWIRE_RPC(make)""",
                        """gradwire::Future<Stream<int64_t>> later() { return {}; }
                           GRADWIRE_RPC(later)"""):
            self.refused(snippet, "a Stream cannot be an argument, or a part of another value")


if __name__ == "__main__":
    unittest.main(verbosity=2)
