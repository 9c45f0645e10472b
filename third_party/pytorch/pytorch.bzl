"""Finds PyTorch for Python, which some tests run beside Gradwire: the folder that tools/setup --pytorch makes, or the one
that GRADWIRE_PYTORCH names."""

def _impl(ctx):
    path = ctx.os.environ.get("GRADWIRE_PYTORCH")
    if not path:
        cache = ctx.os.environ.get("XDG_CACHE_HOME") or ctx.os.environ.get("HOME", "") + "/.cache"
        path = cache + "/gradwire/pytorch-2.11.0"

    # The file says whether the folder is there, so that Bazel runs the tests again once it is. There is no fail() here:
    # the tests report why they are skipped, and all other targets build.
    found = "found" if ctx.path(path + "/torch/distributed").exists else "missing"
    ctx.file("location", "%s\n%s\n" % (path, found), executable = False)
    ctx.file("BUILD.bazel", """exports_files(["location"])\n""")

pytorch_repository = repository_rule(
    implementation = _impl,
    environ = ["GRADWIRE_PYTORCH", "XDG_CACHE_HOME", "HOME"],
    local = True,
)
