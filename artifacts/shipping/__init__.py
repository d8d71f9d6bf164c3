"""Bundles on their way: to registries and hubs and back. Verified before they leave and before they appear."""
