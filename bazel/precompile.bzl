"""Precompiled headers for C++ targets."""

# The sanitizers compile without optimisation, which halves the time to compile. But the targets without libtorch in these
# folders move so many bytes, or try so many inputs, that their tests would lose more time than that saves. The tests of
# the second list are themselves compiled without it.
_OPTIMISED_FOLDERS = ("tests/fuzz", "transport")
_OPTIMISED_LIBRARIES = ("collectives",)

# Options of the compiler for these targets.
OPTIMISED_BY_SANITIZERS = ["-O1"]

# Options of the compiler for a target that every configuration optimises. No others have a precompiled header.
OPTIMISED = [
    "-O2",
    "-DNDEBUG",
]

# Labels of this workspace, also in the BUILD files of another one.
_PCH = str(Label("//bazel:pch"))
_PCH_UNOPTIMISED = str(Label("//bazel:pch_unoptimised"))
_HEADERS = str(Label("//bazel/pch:standard")).replace("standard", "%s")

def precompile(name, kwargs):
    """Adds a precompiled header to the attributes of a C++ rule, in the builds that use them.

    A target with options of its own gets none: clang refuses a precompiled header that other options were used for.

    Args:
      name: the header: a target in //bazel/pch.
      kwargs: the attributes, which are changed.
    """
    copts = kwargs.get("copts", [])
    optimise = []
    if copts == OPTIMISED and name == "standard":
        name = "standard_optimised"
        sanitizer = name
    elif copts:
        return
    else:
        folder = native.package_name()
        folders = {
            "standard": _OPTIMISED_FOLDERS + _OPTIMISED_LIBRARIES,
            "tests": _OPTIMISED_FOLDERS,
        }.get(name, ())
        if [each for each in folders if folder == each or folder.startswith(each + "/")]:
            sanitizer = name + "_sanitizer"
            optimise = OPTIMISED_BY_SANITIZERS
        else:
            sanitizer = name
    kwargs["copts"] = copts + select({
        _PCH: _flags(name),
        _PCH_UNOPTIMISED: _flags(sanitizer) + optimise,
        "//conditions:default": [],
    })
    kwargs["deps"] = kwargs.get("deps", []) + select({
        _PCH: [_HEADERS % name],
        _PCH_UNOPTIMISED: [_HEADERS % sanitizer],
        "//conditions:default": [],
    })

def _flags(name):
    # -MMD: without it clang lists all precompiled headers as inputs, by paths that Bazel does not know.
    return ["-include-pch", "$(BINDIR)/bazel/pch/%s.pch" % name, "-MMD", "-Wno-unused-command-line-argument"]
