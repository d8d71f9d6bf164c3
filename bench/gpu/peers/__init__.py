"""What others would run: torch's own operators one by one, and Transformers compiled."""
