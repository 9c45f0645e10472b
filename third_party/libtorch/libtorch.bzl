"""Finds libtorch: the unpacked wheel that tools/setup installs, or the one that GRADWIRE_LIBTORCH names."""

def _impl(ctx):
    root = ctx.os.environ.get("GRADWIRE_LIBTORCH")
    if not root:
        cache = ctx.os.environ.get("XDG_CACHE_HOME") or ctx.os.environ.get("HOME", "") + "/.cache"
        root = cache + "/gradwire/libtorch-2.11.0"
    torch = ctx.path(root + "/torch")
    if not torch.exists:
        # There is no fail() here, because targets without libtorch must build on a machine that does not have it.
        ctx.file("BUILD.bazel", """
genrule(
    name = "missing",
    outs = ["missing.cc"],
    cmd = "echo 'libtorch not found at {root}: run tools/setup, or set GRADWIRE_LIBTORCH' >&2; false",
)

cc_library(
    name = "libtorch",
    srcs = ["missing.cc"],
    visibility = ["//visibility:public"],
)

cc_library(
    name = "libtorch_cuda",
    srcs = ["missing.cc"],
    visibility = ["//visibility:public"],
)
""".format(root = root))
        return

    # All headers except google/, which is Protobuf 3.13 and would hide the system's. Actions run without a sandbox, so
    # a glob without it would not be enough.
    for entry in ctx.path(root + "/torch/include").readdir():
        if entry.basename != "google":
            ctx.symlink(entry, "include/" + entry.basename)
    libs = str(torch) + "/lib"
    runtime = root + "/nvidia/cu13/lib"
    ctx.template("BUILD.bazel", ctx.attr._build_file, {
        "%{libdir}": libs,
        "%{runtimedir}": runtime,
    })

libtorch_repository = repository_rule(
    implementation = _impl,
    attrs = {"_build_file": attr.label(default = "//third_party/libtorch:libtorch.BUILD", allow_single_file = True)},
    environ = ["GRADWIRE_LIBTORCH", "XDG_CACHE_HOME", "HOME"],
    local = True,
)
