"""Loads torch's tests once, in the fork server of a pool, instead of in each of its ranks."""

from tests.fidelity.suites import classes

classes()
