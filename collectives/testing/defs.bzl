"""Dependencies that tests of process groups share."""

# The dependencies of tests that run the ranks of a group as threads, over the reference backend.
GROUP_TEST_DEPS = [
    "//base:core",
    "//collectives/group:group_torch",
    "//collectives/testing:group",
    "//collectives/testing:local_backend",
    "//store:stores",
    "@libtorch",
    "@system//:absl",
]
