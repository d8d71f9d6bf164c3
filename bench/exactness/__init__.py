"""Speculative text against plain text over as many tokens as are wanted: what is played, how, and what it gave."""
