"""The version of this package. It is Gradwire's version."""

VERSION = "0.1.0"
