"""What changed between two bundles, in words: `tandem.artifacts.diff.verdict` puts it together."""
