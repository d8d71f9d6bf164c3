"""The test suite, mirrored by room. A package, so that `tests.tiny` is ours whatever else is installed."""
