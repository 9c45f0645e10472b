"""Rules for code that registers with Gradwire, and for Gradwire's own tests and protocol messages."""

# What every header of Gradwire's own is included by: a user's workspace may have folders of the same names.
_INCLUDE_PREFIX = "gradwire"

def gradwire_cc_library(**kwargs):
    """A cc_library whose static registrars (GRADWIRE_RPC and its like) survive static linking.

    Without alwayslink the linker drops an object file that nobody names, and the functions it registers with it.
    """
    kwargs["alwayslink"] = True
    native.cc_library(**kwargs)

def cc_library(name, srcs = [], hdrs = [], deps = [], **kwargs):
    """A cc_library of Gradwire's own, whose headers are included as "gradwire/FOLDER/FILE.h".

    Bazel prefixes the headers in `hdrs` alone. Those in `srcs`, which only the library itself includes, are in a target
    beside it, NAME.own_headers.

    Args:
      name: the target's name.
      srcs: as in cc_library. A label is a header's if it ends in ".h" or ".inc", or is a filegroup named "..._headers".
      hdrs: as in cc_library.
      deps: as in cc_library.
      **kwargs: as in cc_library.
    """
    sources, own = srcs, []
    if type(srcs) == "list":
        own = [each for each in srcs if each.endswith((".h", ".inc", "_headers"))]
        sources = [each for each in srcs if each not in own]
    if own:
        native.cc_library(
            name = name + ".own_headers",
            hdrs = own,
            include_prefix = _INCLUDE_PREFIX,
            strip_include_prefix = "/",
            testonly = kwargs.get("testonly", False),
            visibility = ["//visibility:private"],
        )
        deps = deps + [":" + name + ".own_headers"]
    if hdrs:
        kwargs["include_prefix"] = _INCLUDE_PREFIX
        kwargs["strip_include_prefix"] = "/"
    native.cc_library(name = name, srcs = sources, hdrs = hdrs, deps = deps, **kwargs)

def gradwire_cc_test(
        name,
        deps = [],
        torch = False,
        grpc = False,
        threads = True,
        plain = False,
        sanitizers = True,
        tags = [],
        env = {},
        **kwargs):
    """A GoogleTest test.

    tools/test runs each test where it finds the most: a test with libtorch plainly, a small test without libtorch under
    ASan and UBSan, a larger one also plainly, and each without libtorch that has threads also under TSan.

    Args:
      name: the target's name.
      deps: as in cc_test.
      torch: the test links libtorch, which is not instrumented: the sanitizer runs leave it out.
      grpc: the test links Debian's gRPC, whose own synchronisation ThreadSanitizer cannot see.
      threads: False for a test that starts no thread (the linked //base/testing:no_threads ends it if it does):
        the TSan run leaves it out.
      plain: a small test without libtorch that has to run without sanitizers too, because it tests what they replace.
      sanitizers: False for a test of what sanitizers replace, as crash handlers: it runs only without them.
      tags: as in cc_test.
      env: as in cc_test.
      **kwargs: as in cc_test.
    """
    size = kwargs.setdefault("size", "small")

    # One class above what the size implies: the machine may be shared, and be ten times slower for a while.
    kwargs.setdefault("timeout", {"small": "moderate", "medium": "long"}.get(size, "eternal"))
    tags = list(tags)
    if torch:
        tags.append("torch")
    elif not sanitizers:
        tags.append("no-sanitizer")
    elif size == "small" and not plain:
        tags.append("sanitized")
    deps = deps + ["//base:tsan_suppressions", "@system//:gtest_main"]
    if not threads:
        tags.append("no-tsan")
        deps.append("//base/testing:no_threads")
    native.cc_test(
        name = name,
        deps = deps,
        tags = tags,
        env = dict(
            env,
            TSAN_OPTIONS = "halt_on_error=1 second_deadlock_stack=1" + (" ignore_noninstrumented_modules=1" if grpc else ""),
        ),
        **kwargs
    )

def gradwire_proto_library(name, src, deps = [], grpc = False, **kwargs):
    """Generates and compiles the C++ of one .proto file of Gradwire's own with the system's protoc.

    It is imported, and its header included, as "gradwire/FOLDER/FILE": protoc registers a file under this name, which
    must not be another's in a program that has messages of its own.
    """
    stem = src[:-len(".proto")]
    hdrs = [stem + ".pb.h"]
    srcs = [stem + ".pb.cc"]
    generated = "$(RULEDIR)/%s.protoc" % name
    flags = "--cpp_out=" + generated
    if grpc:
        hdrs.append(stem + ".grpc.pb.h")
        srcs.append(stem + ".grpc.pb.cc")
        flags += " --grpc_out=%s --plugin=protoc-gen-grpc=/usr/bin/grpc_cpp_plugin" % generated
    repository = native.repository_name()[1:]
    root = "external/" + repository if repository else "."
    native.filegroup(
        name = name + "_src",
        srcs = [src],
        data = [d + "_src" for d in deps],
    )
    native.genrule(
        name = name + "_gen",
        srcs = [src] + [d + "_src" for d in deps],
        outs = hdrs + srcs,
        cmd = " && ".join([
            "mkdir " + generated,
            "protoc -I%s=%s %s $(location %s)" % (_INCLUDE_PREFIX, root, flags, src),
            "mv %s/%s/%s/* $(RULEDIR)" % (generated, _INCLUDE_PREFIX, native.package_name()),
            "rm -r " + generated,
        ]),
    )
    cc_library(
        name = name,
        srcs = srcs,
        hdrs = hdrs,
        # Generated code is not held to the project's warnings.
        copts = ["-w"],
        deps = deps + ["@system//:protobuf"] + (["@system//:grpc++"] if grpc else []),
        **kwargs
    )
