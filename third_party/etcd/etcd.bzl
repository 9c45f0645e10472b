"""Finds the etcd server that tests start: the one that tools/setup unpacks, or the one that GRADWIRE_ETCD names."""

def _impl(ctx):
    path = ctx.os.environ.get("GRADWIRE_ETCD")
    if not path:
        cache = ctx.os.environ.get("XDG_CACHE_HOME") or ctx.os.environ.get("HOME", "") + "/.cache"
        path = cache + "/gradwire/etcd-3.4.23/etcd"
    if ctx.path(path).exists:
        ctx.symlink(path, "etcd")
    else:
        # There is no fail() here: the tests report why they are skipped, and all other targets build.
        ctx.file("etcd", "etcd not found at {}: run tools/setup, or set GRADWIRE_ETCD\n".format(path), executable = False)
    ctx.file("BUILD.bazel", """exports_files(["etcd"])\n""")

etcd_repository = repository_rule(
    implementation = _impl,
    environ = ["GRADWIRE_ETCD", "XDG_CACHE_HOME", "HOME"],
    local = True,
)
