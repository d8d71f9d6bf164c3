"""Training a DFlash2 drafter for a target: texts that the target writes, what it thought of them, what is learnt."""
