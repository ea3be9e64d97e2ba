"""Builds by setuptools, which finds its commands beside this file (pyproject.toml)."""

from setuptools.build_meta import *  # noqa: F403
