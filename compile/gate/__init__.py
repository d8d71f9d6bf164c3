"""The quality gate of low-bit profiles: what the bits that were saved cost, measured before a bundle is sealed."""
