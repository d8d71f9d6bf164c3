"""What a generated text holds: thoughts, tool calls and plain content, read as it comes. Knows nothing of HTTP."""
