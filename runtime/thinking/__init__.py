"""Blocks of thoughts: where they stand in an answer, what they may cost, and when they are closed."""
