"""Fuzzers: entry points for libFuzzer, their tests and their corpora."""

load("//bazel:defs.bzl", "cc_library", "gradwire_cc_test")

def gradwire_fuzzer(name, deps, test_deps = [], hdrs = [], **kwargs):
    """A fuzzer NAME, which tools/fuzz finds, and its test.

    The files are:
      NAME_fuzzer.cc       LLVMFuzzerTestOneInput (tests/fuzz/fuzzing.h)
      NAME_fuzzer_test.cc  a test that calls fuzzing::run() with seeded mutations of valid inputs
      corpus/NAME/         the inputs from which libFuzzer starts: `tools/fuzz --reseed NAME` makes them from the inputs
                           of the test. An input that crashed stays there, under a name that says what it was

    The targets are:
      NAME_fuzzer       the library
      NAME_fuzzer_test  runs NAME_fuzzer_test.cc, and each file of the corpus
      fuzz_NAME         the program; only --config=fuzz can link it

    Args:
      name: the fuzzer's name.
      deps: the dependencies of NAME_fuzzer.cc.
      test_deps: the dependencies of NAME_fuzzer_test.cc.
      hdrs: headers of the fuzzer for its test.
      **kwargs: as in gradwire_cc_test, for the test. The default of `threads` is False.
    """
    library = name + "_fuzzer"
    cc_library(
        name = library,
        testonly = True,
        srcs = [library + ".cc"],
        hdrs = hdrs,
        # The entry point is called only by libFuzzer.
        alwayslink = True,
        deps = deps + ["//tests/fuzz:fuzzing"],
    )
    corpus = "corpus/" + name
    gradwire_cc_test(
        name = library + "_test",
        srcs = [library + "_test.cc"],
        data = native.glob([corpus + "/*"]),
        env = {"GRADWIRE_FUZZ_CORPUS": "%s/%s" % (native.package_name(), corpus)},
        threads = kwargs.pop("threads", False),
        deps = test_deps + [
            ":" + library,
            "//tests/fuzz:corpus_test",
            "//tests/fuzz:fuzzing",
        ],
        **kwargs
    )
    native.cc_binary(
        name = "fuzz_" + name,
        testonly = True,
        linkopts = ["-fsanitize=fuzzer"],
        tags = [
            "fuzzer",
            "manual",
        ],
        deps = [":" + library],
    )
