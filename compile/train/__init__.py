"""Training of small models of a family that is compiled here: corpus, tokenizer, model, loop, export."""
