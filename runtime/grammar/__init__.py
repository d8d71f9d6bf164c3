"""Structured output: grammars that an answer must follow, compiled by llguidance (extra `structured`)."""
